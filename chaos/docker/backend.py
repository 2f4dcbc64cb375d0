"""A cluster in containers, behind the seam that every backend has.

It is a cluster of processes whose nodes and nameservers are programs in containers: the same
machines (disks on the host, bound into the container), the same clients in this process, the same
order of things. What differs is how a program is started, stopped, frozen and limited.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.chaos.docker.client import Daemon
from rocketbed.chaos.docker.container import Container, Spec, logged
from rocketbed.chaos.docker.fabric import BridgeFabric, ContainerSwitchFabric
from rocketbed.chaos.host.janitor.record import Ledger
from rocketbed.chaos.host.member import Launched
from rocketbed.chaos.host.program import PRELOAD
from rocketbed.chaos.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.process.network.choice import Net, is_switch
from rocketbed.chaos.process.network.fabric import Fabric, Machines
from rocketbed.chaos.process.run import ProcessHost
from rocketbed.chaos.process.software import Software
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.trial.api import BackendError

PYTHON: Final = "/opt/rocketbed/bin/python"
"""In the image (compose/Dockerfile)."""
USER: Final = 10001
"""The image's user."""
MEMORY: Final = 1 << 30
"""Bytes a node may use, page cache included."""
STORE: Final = "store"


@dataclass(frozen=True, slots=True)
class Owner:
    """As whom a program runs, and whom its files belong to."""

    user: int
    group: int

    def __str__(self) -> str:
        return f"{self.user}:{self.group}"


OURS: Final = Owner(USER, USER)


class DockerBackend(ProcessBackend):
    """One run's containers. An async context manager: leaving it removes what is left."""

    name = "docker"

    def __init__(
        self,
        daemon: Daemon,
        image: str,
        setup: SetUp,
        software: Software | None = None,
        owner: Owner = OURS,
    ) -> None:
        """`software` (None: rocketbed) is in the image and runs as `owner`."""
        super().__init__(setup, software, contained_command)
        self._owner = owner
        self._daemon = daemon
        self._image = image
        self._keeper = setup.keeper
        self._containers: dict[str, Container] = {}
        assert isinstance(setup.fabric, BridgeFabric | ContainerSwitchFabric)  # by `DockerHost`
        self._plugs = setup.fabric

    def lacks(self, capability: str) -> str | None:
        return None if capability == "proc.cpu" else super().lacks(capability)

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], own: Path
    ) -> Launched:
        (own / "log").touch()  # looked at while the container starts
        spec = Spec(
            image=self._image,
            command=logged(command),
            network=self._plugs.network(name),
            directory=own.absolute(),
            user=str(give(own, self._owner)),
            environment=environment,
            files=[path for path in environment.get(PRELOAD, "").split(":") if path],
            memory=MEMORY,
            address=self._plugs.container_address(name),
        )
        container = self._containers[name] = Container(self._daemon, self._keeper, name, spec)
        return container

    async def set_cpu(self, name: str, slowness: float) -> None:
        container = self._containers.get(name)
        if container is not None and container.pid() is not None:
            await container.limit_cpu(None if slowness == 1.0 else 1.0 / slowness)


class DockerHost(ProcessHost):
    """Nodes in containers of one image."""

    def __init__(self, daemon: Daemon, image: str) -> None:
        self._daemon = daemon
        self._image = image

    def fabric(self, net: Net, plan: Plan, keeper: Ledger) -> Fabric:
        """The switch where it can be had, else a bridge. Raises `BackendError`."""
        if net == "proxy":
            raise BackendError("--net proxy is for processes; containers have switch or plain")
        if not is_switch(net, instead="plain"):
            return BridgeFabric(self._daemon, Machines.of(plan), run=keeper)
        return ContainerSwitchFabric(self._daemon, self._image, Machines.of(plan), run=keeper)

    def backend(self, setup: SetUp) -> DockerBackend:
        return DockerBackend(self._daemon, self._image, setup)


def contained_command(*arguments: str) -> list[str]:
    """The command line of one of our programs within the image; it ends with its container."""
    return [PYTHON, "-P", "-m", "rocketbed.chaos.host.tied", "1", *arguments]


def give(own: Path, owner: Owner = OURS) -> Owner:
    """Let a program have its machine's directory; a store that it has already is its own whole.

    As whom it is to run: a harness that is not root has nobody but itself. A directory comes after
    what is in it, so that one cut short is done again.
    """
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid())
    for path in _below(own, owner):
        if path.lstat().st_uid != owner.user:
            os.chown(path, owner.user, owner.group, follow_symlinks=False)
    return owner


def _below(directory: Path, owner: Owner) -> Iterator[Path]:
    for entry in os.scandir(directory):
        path = Path(entry.path)
        is_had = entry.name == STORE and path.lstat().st_uid == owner.user
        if entry.is_dir(follow_symlinks=False) and not is_had:
            yield from _below(path, owner)
        else:
            yield path
    yield directory
