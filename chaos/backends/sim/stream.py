"""Connections over the simulated network, and their listeners: TCP as programs see it."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from rocketbed.chaos.backends.sim.network import RETRANSMIT_NS, Network
from rocketbed.chaos.backends.sim.parking import Parking
from rocketbed.world.api import Address, Stream

if TYPE_CHECKING:
    from rocketbed.chaos.backends.sim.process import SimProcess

WINDOW = 256 * 1024
"""Bytes sent and not yet read by the peer's process."""
RECEIVE_SIZE = 65_536


class SimStream(trio.abc.HalfCloseableStream):
    """End of a connection: TCP as programs see it."""

    def __init__(
        self, network: Network, process: "SimProcess", local: Address, peer: Address
    ) -> None:
        self.process = process
        self.local = local
        self.remote = peer
        self.peer: SimStream | None = None
        self.tap: Callable[[bytes], None] | None = None
        self._network = network
        self._received = bytearray()
        self._ended = False
        self._reset = False
        self._closed = False
        self._listener: SimListener | None = None
        """Listener that is to accept the connection, until the handshake is over for this end."""
        self._sent_eof = False
        self._in_flight = 0
        self._last_arrival = 0
        self._outgoing: deque[tuple[str, bytes]] = deque()
        self._flying: deque[list[tuple[str, bytes]]] = deque()
        """Items on the wire, each in a list of its own, whose identity tells it from recalled
        ones."""
        self._returned: list[tuple[str, bytes]] = []
        """Items that were lost on a cut link, in order."""
        self._reader = Parking(process)
        self._writer = Parking(process)
        network.ends[self] = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; waits while the peer's window is full."""
        await self._enter(self._writer)
        self._check_writable()
        if self.tap is not None:
            self.tap(bytes(data))
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
        await self._enter(self._writer)
        self._check_writable()
        while self._in_flight >= WINDOW:
            await self._writer.park()
            self._check_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return bytes that have arrived; nothing at the peer's end of file.

        As with trio's sockets other tasks run first if bytes are there already, and while this one
        waits if there are none.
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
        self.process.life.check()
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
        self.process.life.check()
        if not self._closed:
            self._closed = True
            if not self._reset:
                self._transmit("reset" if self._received else "eof", b"")
            self._reader.wake()
            self._writer.wake()
        await trio.lowlevel.checkpoint()

    # Called by the network.

    def open_later(self, listener: "SimListener", delay: int) -> None:
        """Be accepted when the last packet of the handshake comes, in `delay` nanoseconds, or
        earlier, when data of the dialler comes first."""
        self._listener = listener
        self._network.timeline.at(self._network.timeline.now + delay, self._end_handshake)

    def _end_handshake(self) -> None:
        if self._listener is None:
            return
        network = self._network
        if network.link(self.remote[0], self.local[0]).cut:  # it is requested again
            network.timeline.at(network.timeline.now + RETRANSMIT_NS, self._end_handshake)
        else:
            self._open()

    def _open(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None and not self._closed and not self._reset:
            self._network.timeline.record("opened", self.remote, self.local)
            listener.offer(self)

    def acknowledge(self, size: int) -> None:
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
        """Put waiting items on the wire, unless the link is cut."""
        timeline = self._network.timeline
        peer = self.peer
        if peer is None or self._network.link(self.local[0], self.remote[0]).cut:
            return
        if self._returned:
            self._outgoing.extendleft(reversed(self._returned))
            self._returned.clear()
        while self._outgoing:
            flight = [self._outgoing.popleft()]
            delay = self._network.delay(self.local[0], self.remote[0], len(flight[0][1]))
            moment = timeline.now + delay
            self._last_arrival = max(moment, self._last_arrival + 1)
            self._flying.append(flight)
            timeline.at(self._last_arrival, self._land, flight)

    def recall(self) -> None:
        """Take items that a rate holds up off the wire, to send them at the link's next rate."""
        self._outgoing.extendleft(flight[0] for flight in reversed(self._flying))
        self._flying.clear()
        self._last_arrival = self._network.timeline.now

    def _land(self, flight: list[tuple[str, bytes]]) -> None:
        if self._flying and self._flying[0] is flight:
            self._flying.popleft()
            assert self.peer is not None
            self.peer.arrive(*flight[0])

    def arrive(self, kind: str, data: bytes) -> None:
        peer = self.peer
        assert peer is not None
        if self._network.link(peer.local[0], self.local[0]).cut:
            peer._returned.append((kind, data))
            return
        if self._closed:
            if kind != "data":
                self._network.ends.pop(self, None)
            elif self.process.host.has_power:
                self._transmit("reset", b"")
            return
        self._network.timeline.record(kind, self.remote, self.local, len(data))
        if kind == "reset":
            self._listener = None  # no process ever knows of it
        self._open()
        if kind == "data":
            self._received += data
        elif kind == "eof":
            self._ended = True
        else:
            self._reset = True
            self._received.clear()
            self._writer.wake()
            self._network.ends.pop(self, None)
        self._reader.wake()

    def break_off(self) -> None:
        """Receive a reset that the peer never sent."""
        if not self._closed and not self._reset:
            self._reset = True
            self._received.clear()
            self._reader.wake()
            self._writer.wake()
            self._network.ends.pop(self, None)

    def _transmit(self, kind: str, data: bytes) -> None:
        self._outgoing.append((kind, data))
        self.pump()

    def _claim(self, parking: Parking) -> None:
        self.process.life.check()
        if parking.is_occupied:
            raise trio.BusyResourceError("another task is using this direction of the stream")

    async def _enter(self, parking: Parking) -> None:
        self._claim(parking)
        await trio.lowlevel.checkpoint()
        self._check()

    def _check(self) -> None:
        self.process.life.check()
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._reset:
            raise trio.BrokenResourceError("connection reset by peer")

    def _check_writable(self) -> None:
        self._check()
        if self._sent_eof:
            raise trio.ClosedResourceError("this direction of the stream was closed")


class SimListener:
    def __init__(self, network: Network, process: "SimProcess", address: Address) -> None:
        self.process = process
        self.address = address
        self._network = network
        self._waiting: deque[SimStream] = deque()
        self._acceptor = Parking(process)
        self._closed = False
        network.listeners[address] = self

    async def accept(self) -> Stream:
        self.process.life.check()
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            self.process.life.check()
            if self._closed:
                raise trio.ClosedResourceError(f"listener {self.address} is closed")
            await self._acceptor.park()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stop listening; connections that were not accepted are reset."""
        self.process.life.check()
        self.drop()
        for stream in self._waiting:
            stream.abandon("kill")
        self._acceptor.wake()
        await trio.lowlevel.checkpoint()

    def offer(self, stream: SimStream) -> None:
        if self._closed:
            stream.abandon("kill")
            return
        self._waiting.append(stream)
        self._acceptor.wake()

    def drop(self) -> None:
        self._closed = True
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]
