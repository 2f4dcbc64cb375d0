"""Resolves a user's `--target` to the programs of a run.

`rocketmq:5.3.3` is fetched from Maven Central; `rocketmq:/opt/rocketmq` or a directory alone is an
unpacked distribution.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.foreign.installation import Installation, install, need, unpacked
from rocketbed.chaos.backends.foreign.rocketmq import Mode, RocketMQSoftware
from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.network.base import Network
from rocketbed.chaos.backends.process.network.choice import Net, is_switch, make_network
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

    def network(self, net: Net, plan: Plan, keeper: Ledger) -> Network:
        """Return the switch, else plain loopback. Raises `HostError` for a proxy."""
        if net == "proxy":
            raise HostError(
                "RocketMQ listens for replication on all addresses, which leaves no port for a"
                " proxy: choose --net switch (root) or plain"
            )
        return make_network("switch" if is_switch(net, instead="plain") else "plain", plan, keeper)

    def backend(self, setup: SetUp) -> ProcessBackend:
        software = RocketMQSoftware(self.installation, self.mode, setup.network, setup.plan)
        return ProcessBackend(setup, software)


def foreign_host(target: str, mode: Mode = "classic") -> ForeignHost:
    """Return the host for `--target`. Raises `InstallationError`, and `ScenarioError` for a text
    that is not a target."""
    if target.startswith(f"{IMAGE_KIND}:"):
        raise ScenarioError(f"{target!r} runs in containers: add --backend docker")
    installation = installation_of(target)
    need("java")
    return ForeignHost(installation, mode)


def installation_of(target: str) -> Installation:
    """Return the jars that a target names. Raises the errors of `foreign_host`."""
    kind, separator, name = target.partition(":")
    if separator and kind == KIND and name:
        place = Path(name).expanduser()
        return unpacked(place) if place.is_dir() else install(name)
    if Path(target).expanduser().is_dir():
        return unpacked(Path(target).expanduser())
    raise ScenarioError(
        f"{target!r} is not a target: use rocketmq:5.3.3, rocketmq:DIR or DIR for an unpacked one,"
        " or image:NAME (--backend docker)"
    )
