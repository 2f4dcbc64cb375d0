"""From what a user names (`--target`) to where a run's programs come from.

`rocketmq:5.3.3` is fetched from Maven Central; `rocketmq:/opt/rocketmq` or a directory alone is a
distribution that is there already.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.foreign.installation import Installation, install, need, unpacked
from rocketbed.chaos.backends.foreign.rocketmq import Mode, RocketMQSoftware
from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.network.choice import Net, is_switch, make_fabric
from rocketbed.chaos.backends.process.network.fabric import Fabric
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

KIND: Final = "rocketmq"
IMAGE_KIND: Final = "image"


@dataclass(frozen=True, slots=True)
class ForeignHost(ProcessHost):
    """This system, with a RocketMQ on it."""

    installation: Installation
    mode: Mode = "classic"

    def fabric(self, net: Net, plan: Plan, keeper: Ledger) -> Fabric:
        """The switch, else plain loopback. Raises `HostError` for a proxy."""
        if net == "proxy":
            raise HostError(
                "RocketMQ listens for replication on all addresses, which leaves no port for a"
                " proxy: choose --net switch (root) or plain"
            )
        return make_fabric("switch" if is_switch(net, instead="plain") else "plain", plan, keeper)

    def backend(self, setup: SetUp) -> ProcessBackend:
        software = RocketMQSoftware(self.installation, self.mode, setup.fabric, setup.plan)
        return ProcessBackend(setup, software)


def foreign_host(target: str, mode: Mode = "classic") -> ForeignHost:
    """For `--target`. Raises `InstallationError`, `ScenarioError` for a text that names nothing."""
    if target.startswith(f"{IMAGE_KIND}:"):
        raise ScenarioError(f"{target!r} runs in containers: add --backend docker")
    found = installation_of(target)
    need("java")
    return ForeignHost(found, mode)


def installation_of(target: str) -> Installation:
    """The jars that a target names. Raises what `foreign_host` does."""
    kind, separator, rest = target.partition(":")
    if separator and kind == KIND and rest:
        place = Path(rest).expanduser()
        return unpacked(place) if place.is_dir() else install(rest)
    if Path(target).expanduser().is_dir():
        return unpacked(Path(target).expanduser())
    raise ScenarioError(
        f"{target!r} is not a target: use rocketmq:5.3.3, rocketmq:DIR or DIR for an unpacked one,"
        " or image:NAME (--backend docker)"
    )
