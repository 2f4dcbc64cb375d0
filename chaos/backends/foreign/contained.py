"""A real RocketMQ in containers: the host of `--backend docker --target ...`."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.docker.backend import DockerBackend, DockerHost
from rocketbed.chaos.backends.foreign.image import ImageInstallation, image_of, in_image
from rocketbed.chaos.backends.foreign.installation import InstallationError
from rocketbed.chaos.backends.foreign.rocketmq import Mode, RocketMQSoftware
from rocketbed.chaos.backends.foreign.target import IMAGE_KIND, installation_of
from rocketbed.chaos.backends.process.backend import SetUp
from rocketbed.host.docker.client import Daemon, DockerError
from rocketbed.host.docker.image import Say
from rocketbed.host.member import Launched
from rocketbed.host.program import PRELOAD, without_shim

NO_CLOCK: Final = "this system's libfaketime cannot be loaded into the programs of the image"


class ContainedRocketMQ(RocketMQSoftware):
    """The same commands, without the tie to the harness: a container ends anyway."""

    moves_clock = True
    """True if libfaketime works in the image."""

    def lacks(self, capability: str) -> str | None:
        """Return what is missing in addition to Java's limits: clocks, if libfaketime does not work
        in the image."""
        if capability == "clock.jump" and not self.moves_clock:
            return NO_CLOCK
        return super().lacks(capability)

    def is_clean(self, code: int | None) -> bool:
        """Return true also for an end by SIGTERM, which Docker reports with the same number as
        Java's 143."""
        return code == -signal.SIGTERM or super().is_clean(code)

    def _launched(self, command: Sequence[str]) -> list[str]:
        return list(command)


class ForeignDockerBackend(DockerBackend):
    """Containers of one run with other software."""

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], own: Path
    ) -> Launched:
        reduced = without_shim(dict(environment))
        if self.lacks("clock.jump") == NO_CLOCK:
            reduced.pop(PRELOAD, None)
        return super()._process(name, command, reduced, own)


class ForeignDockerHost(DockerHost):
    """Brokers and nameservers in containers of one image."""

    def __init__(self, daemon: Daemon, installation: ImageInstallation, mode: Mode) -> None:
        super().__init__(daemon, installation.image)
        self._installation = installation
        self._mode = mode

    def backend(self, setup: SetUp) -> DockerBackend:
        software = ContainedRocketMQ(self._installation.jars, self._mode, setup.network, setup.plan)
        software.moves_clock = self._installation.moves_clock
        return ForeignDockerBackend(
            self._daemon, self._image, setup, software, self._installation.owner
        )


def ready_target(daemon: Daemon, target: str, say: Say = lambda line: None) -> ImageInstallation:
    """Return the image that a target names: pulled or built if necessary. Blocks.

    Raises `DockerError`, and `ScenarioError` for a text that is not a target.
    """
    kind, _, name = target.partition(":")
    if kind == IMAGE_KIND and name:
        return in_image(daemon, name, say)
    try:
        installation = installation_of(target)
    except InstallationError as error:
        raise DockerError(str(error)) from error
    return image_of(daemon, installation, say)
