"""A cluster in containers, behind the seam that every backend has.

It is a cluster of processes whose nodes and nameservers are programs in containers: with the same
machines (disks on the host, bound into the container), the same clients in this process, and the
same sequences of actions. It differs in how a program is started, stopped, frozen and limited.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rocketbed.chaos.backends.docker.network import BridgeNetwork, ContainerSwitchNetwork
from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.network.base import Machines, Network
from rocketbed.chaos.backends.process.network.choice import Net, is_switch
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.backends.process.software import Software
from rocketbed.chaos.plan.plan import Plan
from rocketbed.host.docker.client import Daemon
from rocketbed.host.docker.container import Container, Spec, logged
from rocketbed.host.docker.owner import MEMORY, OURS, PYTHON, Owner, give
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.host.member import Launched
from rocketbed.host.program import PRELOAD


class DockerBackend(ProcessBackend):
    """Containers of one run. An async context manager: leaving it removes those that remain."""

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
        assert isinstance(setup.network, BridgeNetwork | ContainerSwitchNetwork)  # by `DockerHost`
        self._plugs = setup.network

    def lacks(self, capability: str) -> str | None:
        return None if capability == "proc.cpu" else super().lacks(capability)

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], own: Path
    ) -> Launched:
        (own / "log").touch()  # read while the container starts
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

    def network(self, net: Net, plan: Plan, keeper: Ledger) -> Network:
        """Return the switch if it is available, else a bridge. Raises `HostError`."""
        if net == "proxy":
            raise HostError("--net proxy is for processes; containers have switch or plain")
        if not is_switch(net, instead="plain"):
            return BridgeNetwork(self._daemon, Machines.of(plan), run=keeper)
        return ContainerSwitchNetwork(self._daemon, self._image, Machines.of(plan), run=keeper)

    def backend(self, setup: SetUp) -> DockerBackend:
        return DockerBackend(self._daemon, self._image, setup)


def contained_command(*arguments: str) -> list[str]:
    """Return the command line of one of our programs within the image; it ends with its
    container."""
    return [PYTHON, "-P", "-m", "rocketbed.host.parent_death", "1", *arguments]
