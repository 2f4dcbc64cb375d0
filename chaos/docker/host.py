"""Docker as the place where a run's cluster lives."""

from typing import Self

from rocketbed.chaos.docker.backend import DockerBackend
from rocketbed.chaos.docker.client import Daemon
from rocketbed.chaos.docker.fabric import BridgeFabric, ContainerSwitchFabric
from rocketbed.chaos.docker.image import ready_image
from rocketbed.chaos.host.janitor.record import Ledger
from rocketbed.chaos.process.backend import SetUp
from rocketbed.chaos.process.network.choice import Net, is_switch
from rocketbed.chaos.process.network.fabric import Fabric
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.scenario.targets import client_names
from rocketbed.chaos.trial.api import BackendError


class DockerHost:
    """Nodes in containers of one image. A context manager: it holds the connection."""

    def __init__(self, daemon: Daemon, image: str) -> None:
        self._daemon = daemon
        self._image = image

    @classmethod
    def open(cls) -> Self:
        """Connect to the daemon and look for the image. Raises `DockerError`."""
        daemon = Daemon.connect()
        try:
            return cls(daemon, ready_image(daemon))
        except BaseException:
            daemon.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._daemon.close()

    def fabric(self, net: Net, plan: Plan, keeper: Ledger) -> Fabric:
        """The switch where it can be had, else a bridge. Raises `BackendError`."""
        nodes, nameservers = plan.shape.nodes, plan.shape.nameserver_names
        if net == "proxy":
            raise BackendError("--net proxy is for processes; containers have switch or plain")
        if not is_switch(net, instead="plain"):
            return BridgeFabric(self._daemon, nodes, nameservers, run=keeper)
        return ContainerSwitchFabric(
            self._daemon,
            self._image,
            nodes,
            nameservers,
            client_names(plan),
            run=keeper,
            seed=str(plan.seed),
        )

    def backend(self, setup: SetUp) -> DockerBackend:
        return DockerBackend(self._daemon, self._image, setup)
