"""The network as one simulated process sees it (`World.network`)."""

import errno
import os
from functools import partial
from typing import TYPE_CHECKING

import trio

from rocketbed.chaos.backends.sim.network import Network
from rocketbed.chaos.backends.sim.stream import SimListener, SimStream
from rocketbed.world.api import Address, File, Listener, Stream

if TYPE_CHECKING:
    from rocketbed.chaos.backends.sim.process import SimProcess

RETRY_NS = 200_000_000
"""Pause of a dialling host between two attempts (TCP's SYN retransmission, shortened)."""


class HostNetwork:
    """`World.network` of one process."""

    def __init__(self, network: Network, process: "SimProcess") -> None:
        self._network = network
        self._process = process

    async def listen(self, host: str, port: int) -> Listener:
        """Listen on the host's one address, whatever `host` says."""
        self._process.life.check()
        await trio.lowlevel.checkpoint()
        own = self._process.host.address
        address = (own, port or self._network.free_port(own))
        if address in self._network.listeners:
            raise OSError(
                errno.EADDRINUSE, f"cannot listen on {own}:{address[1]}: it is already in use"
            )
        return SimListener(self._network, self._process, address)

    async def connect(self, host: str, port: int) -> Stream:
        """Dial; hangs while the link is cut or the host has no power."""
        target = (await self.resolve(host))[0]
        own = self._process.host.address
        network = self._network
        while not self._process.host.simulation.reachable(own, target):
            await trio.sleep(RETRY_NS / 1e9)
            self._process.life.check()
        await trio.sleep((network.delay(own, target) + network.delay(target, own)) / 1e9)
        self._process.life.check()
        listener = network.listeners.get((target, port))
        if listener is None:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), f"{target}:{port}")
        local = (own, network.free_port(own))
        ours = SimStream(network, self._process, local, (target, port))
        theirs = SimStream(network, listener.process, (target, port), local)
        ours.peer, theirs.peer = theirs, ours
        if port in network.taps:
            ours.tap = partial(network.taps[port], self._process.host.name)
        network.timeline.record("connected", local, (target, port))
        if network.link(own, target).loss:
            theirs.open_later(listener, network.delay(own, target))
        else:
            listener.offer(theirs)
        return ours

    async def resolve(self, host: str) -> list[str]:
        self._process.life.check()
        await trio.lowlevel.checkpoint()
        if host in ("localhost", "127.0.0.1"):
            return [self._process.host.address]
        addresses = self._network.addresses
        if host in addresses:
            return [addresses[host]]
        if host in addresses.values():
            return [host]
        raise OSError(errno.ENOENT, f"unknown host {host!r}")

    def local_address(self, stream: Stream) -> Address:
        return _end(stream).local

    def peer_address(self, stream: Stream) -> Address:
        return _end(stream).remote

    def try_send(self, stream: Stream, parts: list[bytes]) -> int:
        """Return 0: all bytes take the path that has windows and splits."""
        return 0

    def try_receive(self, stream: Stream, max_bytes: int) -> bytes:
        """Return nothing, for the same reason."""
        return b""

    async def receive(self, stream: Stream, max_bytes: int) -> bytes:
        return bytes(await stream.receive_some(max_bytes))

    async def send_file(self, stream: Stream, file: File, offset: int, size: int) -> None:
        data = file.read_at(offset, size)
        if len(data) != size:
            raise OSError(errno.EIO, f"{file.path} ends at {offset + len(data)}")
        await stream.send_all(data)


def _end(stream: Stream) -> SimStream:
    while not isinstance(stream, SimStream):
        inner = getattr(stream, "transport_stream", None)
        if inner is None:
            raise TypeError(f"{stream!r} is not a stream of this network")
        stream = inner
    return stream
