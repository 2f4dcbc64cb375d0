"""Machines on addresses of 127.0.0.0/8 with a TCP proxy between: link faults without root.

Machine m has a public address 127.R.0.m, for the others, and a private one 127.R.1.m, on which its
server listens and from which its programs dial; R is drawn for each run, so that two runs do not
meet. The proxy listens on public addresses, recognises callers by their private one, and dials on
from the caller's public address. It listens only while the server does, so that a dead server
refuses connections; but for a server that is cut off or has no power it listens, and keeps silent.
"""

import errno
import socket
from collections.abc import Mapping
from contextlib import suppress
from random import Random, SystemRandom
from typing import Final, Self

import trio

from rocketbed.chaos.backends.process.network.base import (
    HARNESS,
    Machines,
    Network,
)
from rocketbed.chaos.backends.process.network.proxy import BUFFER, Crossing, Link, ProxyMachine
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.ports import (
    NAMESERVER_PORT,
    NODE_PORT,
    free_node_port,
    free_port,
    is_free,
    node_ports,
)
from rocketbed.world.api import World
from rocketbed.world.real import real_world
from rocketbed.world.sockets import (
    ACCEPT_PAUSE,
    BACKLOG,
    IP_BIND_ADDRESS_NO_PORT,
    OUT_OF_RESOURCES,
)

CLAIM_PORT: Final = 20_127
"""The process that listens here on 127.R.0.254 owns R."""
LOOK_S: Final = 0.02
"""Pause between two checks whether servers listen."""
_STANDS_FOR: Final = "a proxy sees no packets: choose --net switch"


class ProxyNetwork(Network):
    """Cut, delay, rate, reset and silence between machines. An async context manager."""

    name = "proxy"

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self._numbers = names = machines.numbers()
        self._machines = {name: ProxyMachine(name) for name in names}
        self._links = {
            (source, target): Link(Random(f"{machines.seed}/{source}->{target}"))
            for source in names
            for target in names
            if source != target
        }
        self._crossings: set[Crossing] = set()
        self._listeners: dict[tuple[str, int], trio.socket.SocketType] = {}

    async def __aenter__(self) -> Self:
        """Claim addresses and start the proxy. Raises `OSError` if no part of 127.0.0.0/8 is
        free."""
        self._claim, self._run = _claim_run()
        self._choose_ports()
        self._addresses = {name: f"127.{self._run}.0.{n}" for name, n in self._numbers.items()}
        self._private = {name: f"127.{self._run}.1.{n}" for name, n in self._numbers.items()}
        self._served = [
            (name, served)
            for name, port in self._ports.items()
            for served in (node_ports(port) if name in self._nodes else (port,))
        ]
        self._owners = {address: name for name, address in self._private.items()}
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self._nursery.start_soon(self._follow_servers)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._nursery.cancel_scope.cancel()
        try:
            await self._nursery_manager.__aexit__(*exception)  # type: ignore[arg-type]
        finally:
            self._claim.close()

    def lacks(self, capability: str) -> str | None:
        if capability in ("net.cut", "net.delay", "net.rate", "net.reset"):
            return None
        return f"{capability}: {_STANDS_FOR}" if capability.startswith("net.") else None

    def settings(self, machine: str) -> Mapping[str, str]:
        """Return the settings with the private address to listen on, which puts the server on its
        machine."""
        return {**super().settings(machine), "bindAddress": self._private[machine]}

    def world(self, machine: str) -> World:
        return real_world(machine, self._private[machine])

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Set one direction. `loss` has the effect that it has on a TCP stream: retransmissions."""
        self._links[source, target].set(state)
        self._look()
        await trio.lowlevel.checkpoint()

    async def reset(self, first: str, second: str) -> None:
        for crossing in list(self._crossings):
            if {crossing.client.name, crossing.server.name} == {first, second}:
                crossing.reset()
        await trio.lowlevel.checkpoint()

    async def silence(self, machine: str) -> None:
        """Cut the power: old connections pass nothing any more, new ones wait for `restore`."""
        silent = self._machines[machine]
        if not silent.is_silent:
            silent.powered = trio.Event()
            for crossing in self._crossings:
                if silent in (crossing.client, crossing.server):
                    crossing.sever(silent)
            self._look()
        await trio.lowlevel.checkpoint()

    async def restore(self, machine: str) -> None:
        """Restore the power; peers that still send on an old connection get a reset."""
        self._machines[machine].powered.set()
        self._look()
        await trio.lowlevel.checkpoint()

    # --- addresses

    def _choose_ports(self) -> None:
        """Choose RocketMQ's ports, or others if those are in use on all addresses."""
        if not is_free(NAMESERVER_PORT):
            port = free_port()
            self._ports |= {name: port for name in self._ports if name not in self._nodes}
        if not all(map(is_free, node_ports(NODE_PORT))):
            port = free_node_port(self._ports.values())
            self._ports |= dict.fromkeys(self._nodes, port)

    # --- listening

    async def _follow_servers(self) -> None:
        try:
            while True:
                self._look()
                await trio.sleep(LOOK_S)
        finally:
            for key in list(self._listeners):
                self._stop_listening(key)

    def _look(self) -> None:
        for name, port in self._served:
            is_wanted = self._is_concealed(name) or not is_free(port, self._private[name])
            if not is_wanted:
                self._stop_listening((name, port))
            elif (name, port) not in self._listeners:
                self._listen(name, port)

    def _is_concealed(self, machine: str) -> bool:
        """Return whether callers must not notice that their connection would be refused."""
        return self._machines[machine].is_silent or any(
            link.state.cut for pair, link in self._links.items() if machine in pair
        )

    def _listen(self, machine: str, port: int) -> None:
        server = socket.socket()
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER // 2)
            server.bind((self._addresses[machine], port))
            server.listen(BACKLOG)
        except OSError:
            server.close()
            raise
        self._listeners[machine, port] = listener = trio.socket.from_stdlib_socket(server)
        self._nursery.start_soon(self._accept, machine, port, listener)

    def _stop_listening(self, key: tuple[str, int]) -> None:
        listener = self._listeners.pop(key, None)
        if listener is not None:
            listener.close()

    async def _accept(self, machine: str, port: int, listener: trio.socket.SocketType) -> None:
        with suppress(trio.ClosedResourceError):
            while listener.fileno() >= 0:
                try:
                    near, caller = await listener.accept()
                except OSError as error:
                    if error.errno in OUT_OF_RESOURCES:
                        await trio.sleep(ACCEPT_PAUSE)
                    elif error.errno not in (errno.EBADF, errno.ECONNABORTED):  # closed, given up
                        raise
                else:
                    client = self._owners.get(caller[0], HARNESS)
                    self._nursery.start_soon(self._cross, near, client, machine, port)

    async def _cross(
        self, near: trio.socket.SocketType, client: str, server: str, port: int
    ) -> None:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if client == server:
            links = Link(Random()), Link(Random())
        else:
            links = self._links[client, server], self._links[server, client]
        ends = self._machines[client], self._machines[server]
        crossing = Crossing(near, *ends, *links)

        def dial() -> trio.socket.SocketType:
            far = socket.socket()
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER // 2)
            far.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            far.bind((self._addresses[client], 0))
            return trio.socket.from_stdlib_socket(far)

        self._crossings.add(crossing)
        try:
            await crossing.run(dial, (self._private[server], port))
        finally:
            self._crossings.discard(crossing)


def _claim_run() -> tuple[socket.socket, int]:
    """Draw R, and hold it by listening."""
    numbers = list(range(1, 255))
    SystemRandom().shuffle(numbers)
    for number in numbers:
        claim = socket.socket()
        try:
            claim.bind((f"127.{number}.0.254", CLAIM_PORT))
            claim.listen(1)
        except OSError:
            claim.close()
        else:
            return claim, number
    raise OSError(f"all of 127.1.0.254:{CLAIM_PORT} to 127.254.0.254 are taken: end other runs")
