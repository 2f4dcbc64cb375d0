"""Networks between the machines of a process cluster: addresses, and faults of the links.

Three kinds, best first: `SwitchNetwork` (own network namespaces, every packet through our switch),
`ProxyNetwork` (an address of 127.0.0.0/8 for each machine, a TCP proxy between), `PlainNetwork`
(bare loopback, no faults).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import client_names
from rocketbed.chaos.run.links import HEALTHY, LinkState
from rocketbed.host.errors import HostError
from rocketbed.host.ports import HOST, NAMESERVER_PORT, NODE_PORT, free_ports
from rocketbed.world.api import Address, World
from rocketbed.world.real import real_world

HARNESS: Final = "harness"
MACHINES_MAX: Final = 253


@dataclass(frozen=True, slots=True)
class Machines:
    """Names of the machines on a network."""

    nodes: Sequence[str]
    nameservers: Sequence[str] = ()
    clients: Sequence[str] = ()
    """Further machines; `harness` is always one."""
    seed: str = ""
    """Seed of the random faults of links."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        shape = plan.shape
        return cls(shape.nodes, shape.nameserver_names, client_names(plan), str(plan.seed))

    @property
    def servers(self) -> Sequence[str]:
        return [*self.nameservers, *self.nodes]

    def numbers(self) -> dict[str, int]:
        """Number all of them and the harness from 1."""
        unique = dict.fromkeys([*self.nodes, *self.nameservers, *self.clients, HARNESS])
        assert len(unique) <= MACHINES_MAX
        return {name: number for number, name in enumerate(unique, 1)}


class Network(ABC):
    """A network on which each machine has one address, the same from everywhere.

    Used as an async context manager; its machines are given before it is entered.
    """

    name: ClassVar[str]
    """`switch`, `proxy`, `plain` or `bridge`."""

    def __init__(self, machines: Machines) -> None:
        self._nodes = frozenset(machines.nodes)
        self._ports = dict.fromkeys(machines.nameservers, NAMESERVER_PORT)
        """RocketMQ's own ports, for machines with an address each."""
        self._ports |= dict.fromkeys(machines.nodes, NODE_PORT)
        self._addresses: dict[str, str] = {}
        """May be filled later."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    @abstractmethod
    def lacks(self, capability: str) -> str | None:
        """Return why `net.cut`, `net.delay`, `net.reset`, `net.loss` is missing; None if it is
        not."""

    def address(self, machine: str) -> Address:
        """Return the address of the machine's server; its replication port is one above."""
        return self._addresses[machine], self._ports[machine]

    def settings(self, machine: str) -> Mapping[str, str]:
        """Return `listenPort`, `bindAddress` and, of a node, `brokerIP1`, `brokerIP2` of its
        server.

        It listens on the address that others use.
        """
        address = self._addresses[machine]
        lines = {"listenPort": str(self._ports[machine]), "bindAddress": address}
        if machine in self._nodes:
            lines |= {"brokerIP1": address, "brokerIP2": address}
        return lines

    def command(self, machine: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a program on the machine, with an entry command if
        necessary."""
        return list(command)

    @abstractmethod
    def world(self, machine: str) -> World:
        """Return the world of a program of ours on the machine (clients, `harness`)."""

    @abstractmethod
    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Set one direction between two machines."""

    @abstractmethod
    async def reset(self, first: str, second: str) -> None:
        """Reset all connections between two machines."""

    @abstractmethod
    async def silence(self, machine: str) -> None:
        """Drop everything from and to the machine until `restore`: a power cut."""

    @abstractmethod
    async def restore(self, machine: str) -> None:
        """Undo `silence`: the machine has power again, and does not know its old connections."""


class HealthyLinks(Network):
    """A network without faults, reachable from this system."""

    instead: ClassVar[str]
    """Advice on what to choose for faults."""

    def lacks(self, capability: str) -> str | None:
        return self.instead if capability.startswith("net.") else None

    def world(self, machine: str) -> World:
        return real_world(machine)

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        if state != HEALTHY:
            raise HostError(self.instead)

    async def reset(self, first: str, second: str) -> None:
        raise HostError(self.instead)

    async def silence(self, machine: str) -> None:
        """Do nothing: peers will see the process's connections reset."""

    async def restore(self, machine: str) -> None:
        """Do nothing."""


class PlainNetwork(HealthyLinks):
    """Loopback without anything between: kills and disks can be tried, links cannot."""

    name = "plain"
    instead = "the cluster runs on plain loopback: choose --net proxy or switch"

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        ports = free_ports(len(machines.nameservers), len(machines.nodes))
        self._ports = dict(zip(machines.servers, ports, strict=True))
        self._addresses = dict.fromkeys(machines.servers, HOST)
