"""One end of a simulated connection, and the listener that makes them: TCP as programs see it."""

from collections import deque

import trio

from rocketbed.chaos.sim.network import Network
from rocketbed.chaos.sim.parking import Owner, Parking
from rocketbed.world.api import Address, Stream

WINDOW = 256 * 1024
"""Bytes sent and not yet read by the peer's process."""
RECEIVE_SIZE = 65_536


class SimStream(trio.abc.HalfCloseableStream):
    def __init__(self, network: Network, process: Owner, local: Address, peer: Address) -> None:
        self.process = process
        self.local = local
        self.remote = peer
        self.peer: SimStream | None = None
        self._network = network
        self._received = bytearray()
        self._ended = False
        self._reset = False
        self._closed = False
        self._sent_eof = False
        self._in_flight = 0
        self._last_arrival = 0
        self._outgoing: deque[tuple[str, bytes]] = deque()
        self._returned: list[tuple[str, bytes]] = []
        self._reader = Parking(process)
        self._writer = Parking(process)
        network.add(self)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; waits while the peer's window is full."""
        await self._enter(self._writer)
        self._check_writable()
        view = memoryview(bytes(data))
        while view:
            while self._in_flight >= WINDOW:
                await self._writer.park()
                self._check_writable()
            size = self._network.split_point(min(len(view), WINDOW - self._in_flight))
            self._in_flight += size
            self._transmit("data", bytes(view[:size]))
            view = view[size:]

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the window has room."""
        await self._enter(self._writer)
        self._check_writable()
        while self._in_flight >= WINDOW:
            await self._writer.park()
            self._check_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has arrived; nothing at the peer's end of file.

        As with trio's sockets other tasks run first when something is there already, and while
        this one waits when nothing is.
        """
        if self._received:
            await self._enter(self._reader)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._claim(self._reader)
            self._check()
        while not self._received:
            self._check()
            if self._ended:
                return b""
            await self._reader.park()
        self.process.fate.check()
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        size = RECEIVE_SIZE if max_bytes is None else max_bytes
        data = bytes(self._received[:size])
        del self._received[:size]
        if self.peer is not None:
            self.peer.acknowledge(len(data))
        return data

    async def send_eof(self) -> None:
        await self._enter(self._writer)
        if not self._sent_eof:
            self._check_writable()
            self._sent_eof = True
            self._transmit("eof", b"")

    async def aclose(self) -> None:
        """Close both directions; bytes that arrived and were not read make it a reset."""
        self.process.fate.check()
        if not self._closed:
            self._closed = True
            if not self._reset:
                self._transmit("reset" if self._received else "eof", b"")
            self._reader.wake()
            self._writer.wake()
        await trio.lowlevel.checkpoint()

    # What the network does.

    def acknowledge(self, size: int) -> None:
        """The peer's process has read this much."""
        self._in_flight -= size
        if self._in_flight < WINDOW:
            self._writer.wake()

    def abandon(self, cause: str) -> None:
        if cause == "power":
            self._outgoing.clear()
        elif not self._closed and not self._reset:
            self._transmit("eof" if cause == "end" and not self._received else "reset", b"")
        self._closed = True

    def pump(self) -> None:
        """Put on the wire what waits, unless the link is cut."""
        timeline = self._network.timeline
        peer = self.peer
        if peer is None or self._network.link(self.local[0], self.remote[0]).cut:
            return
        if self._returned:
            self._outgoing.extendleft(reversed(self._returned))
            self._returned.clear()
        while self._outgoing:
            kind, data = self._outgoing.popleft()
            delay = self._network.delay(self.local[0], self.remote[0], len(data))
            moment = timeline.now + delay
            self._last_arrival = max(moment, self._last_arrival + 1)
            timeline.at(self._last_arrival, peer.arrive, kind, data)

    def arrive(self, kind: str, data: bytes) -> None:
        peer = self.peer
        assert peer is not None
        if self._network.link(peer.local[0], self.local[0]).cut:
            peer.hold(kind, data)
            return
        if self._closed:
            self._answer_for_the_dead(kind)
            return
        self._network.timeline.record(kind, self.remote, self.local, len(data))
        if kind == "data":
            self._received += data
        elif kind == "eof":
            self._ended = True
        else:
            self._reset = True
            self._received.clear()
            self._writer.wake()
            self._network.forget(self)
        self._reader.wake()

    def break_off(self) -> None:
        """A reset arrives that the peer never sent."""
        if not self._closed and not self._reset:
            self._reset = True
            self._received.clear()
            self._reader.wake()
            self._writer.wake()
            self._network.forget(self)

    def hold(self, kind: str, data: bytes) -> None:
        """Keep what was lost on a cut link, in order."""
        self._returned.append((kind, data))

    def _answer_for_the_dead(self, kind: str) -> None:
        """Data for a closed end is answered with a reset, if the host has power."""
        if kind == "data" and self.process.host.has_power:
            self._transmit("reset", b"")
        elif kind in ("eof", "reset"):
            self._network.forget(self)

    def _transmit(self, kind: str, data: bytes) -> None:
        self._outgoing.append((kind, data))
        self.pump()

    def _claim(self, parking: Parking) -> None:
        self.process.fate.check()
        if parking.taken:
            raise trio.BusyResourceError("another task is using this direction of the stream")

    async def _enter(self, parking: Parking) -> None:
        self._claim(parking)
        await trio.lowlevel.checkpoint()
        self._check()

    def _check(self) -> None:
        self.process.fate.check()
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._reset:
            raise trio.BrokenResourceError("connection reset by peer")

    def _check_writable(self) -> None:
        self._check()
        if self._sent_eof:
            raise trio.ClosedResourceError("this direction of the stream was closed")


class SimListener:
    def __init__(self, network: Network, process: Owner, address: Address) -> None:
        self.process = process
        self.address = address
        self._network = network
        self._waiting: deque[SimStream] = deque()
        self._acceptor = Parking(process)
        self._closed = False
        network.listeners[address] = self

    async def accept(self) -> Stream:
        self.process.fate.check()
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            self.process.fate.check()
            if self._closed:
                raise trio.ClosedResourceError(f"listener {self.address} is closed")
            await self._acceptor.park()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stop listening; connections nobody accepted are reset."""
        self.process.fate.check()
        self.drop()
        for stream in self._waiting:
            stream.abandon("kill")
        self._acceptor.wake()
        await trio.lowlevel.checkpoint()

    def offer(self, stream: SimStream) -> None:
        self._waiting.append(stream)
        self._acceptor.wake()

    def drop(self) -> None:
        """Take the listener off the network."""
        self._closed = True
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]
