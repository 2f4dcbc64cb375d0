"""A TCP proxy between machines: its effects on bytes under way and on connections.

Each connection has an end at its client's machine and one at its server's; bytes cross a `Link`,
one for each direction between two machines, which may be cut, slow or narrow. Bytes keep their
order and none is lost: TCP ensures that on a real wire too, only later. Limits of a proxy: the
kernel answers a handshake before the proxy knows of it, so a connection that should hang in
`connect` opens at once and stays mute; and the proxy sees no packets, so loss has its effect on
TCP, segments that come later.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

import trio

from rocketbed.chaos.run.links import HEALTHY, LinkState

BUFFER: Final = 256 * 1024
"""Bytes under way in one direction of a connection; above that a sender has to wait."""
CHUNK: Final = 64 * 1024
SLICE_S: Final = 0.02
"""Duration of each piece of bytes on a link with a rate."""
SEGMENT: Final = 1448
RETRANSMIT_S: Final = 0.2
"""Delay of a stream by a lost segment: TCP's shortest retransmission time."""
ESTABLISHED: Final = 1
"""First byte of TCP_INFO."""
End = Literal["fin", "reset"]


class Link:
    """Direction between two machines."""

    def __init__(self, random: Random) -> None:
        self.state = HEALTHY
        self.is_plain = True
        """True if bytes may pass at once."""
        self._random = random
        self._busy_until = 0.0
        self.uncut = trio.Event()
        """Set while it is not cut."""
        self.uncut.set()

    def set(self, state: LinkState) -> None:
        """Change the state; bytes under way keep their delay."""
        self.state = state
        self.is_plain = state == HEALTHY
        if not state.cut:
            self.uncut.set()
        elif self.uncut.is_set():
            self.uncut = trio.Event()

    def chunk(self) -> int:
        """Return the number of bytes that are taken in one piece."""
        if self.state.rate is None:
            return CHUNK
        return max(1, min(CHUNK, int(self.state.rate * SLICE_S)))

    def arrival(self, size: int) -> float:
        """Return when bytes that leave now arrive; trio's clock."""
        now = trio.current_time()
        if self.state.rate is not None:
            self._busy_until = max(now, self._busy_until) + size / self.state.rate
            now = self._busy_until
        if self.state.loss and size:
            arrives = (1 - self.state.loss) ** -(-size // SEGMENT)
            now += 0.0 if self._random.random() < arrives else RETRANSMIT_S
        return now + self.state.delay_s + self.state.jitter_s * self._random.random()


class ProxyMachine:
    """A machine as the proxy sees it: with or without power."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.powered = trio.Event()
        self.powered.set()

    @property
    def is_silent(self) -> bool:
        return not self.powered.is_set()


@dataclass(eq=False, slots=True)
class Flow:
    """Direction of a connection."""

    link: Link
    reading: trio.socket.SocketType
    writing: trio.socket.SocketType
    failed: Callable[[], None]
    """Called when the end that is written to turns out to be closed."""
    _queue: deque[tuple[float, bytes | End]] = field(default_factory=deque)
    _bytes: int = 0
    _last: float = 0.0
    _filled: trio.Event = field(default_factory=trio.Event)
    _drained: trio.Event = field(default_factory=trio.Event)
    _is_over: bool = False
    """True once nothing will be delivered any more."""

    async def run(self) -> None:
        """Carry bytes until one end has closed or failed and the other has been told."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver)
            await self._take()

    def break_off(self) -> None:
        """Let the end that is written to see a reset, after what is under way."""
        if self._is_over:
            abort(self.writing)
        else:
            self._put("reset", 0)

    async def _take(self) -> None:
        while True:
            try:
                data = await self.reading.recv(self.link.chunk())
            except (OSError, trio.ClosedResourceError):
                self._put("reset", 0)
                return
            if not data:
                self._put("fin", 0)
                return
            if self.link.is_plain and not self._queue:
                with suppress(OSError):  # an error is left to `_deliver`
                    data = data[os.write(self.writing.fileno(), data) :]
            if data:
                self._put(data, len(data))
            while self._bytes >= BUFFER and not self._is_over:
                self._drained = trio.Event()
                await self._drained.wait()

    def _put(self, item: bytes | End, size: int) -> None:
        if not self._is_over:
            self._last = max(self._last, self.link.arrival(size))
            self._queue.append((self._last, item))
            self._bytes += size
            self._filled.set()

    async def _deliver(self) -> None:
        while not self._is_over:
            while not self._queue:
                self._filled = trio.Event()
                await self._filled.wait()
            arrival, item = self._queue[0]
            await trio.sleep_until(arrival)
            await self.link.uncut.wait()
            if not await self._hand_over(item):
                self._is_over = True
            self._queue.popleft()
            self._bytes -= len(item) if isinstance(item, bytes) else 0
            self._drained.set()

    async def _hand_over(self, item: bytes | End) -> bool:
        """Write bytes, or pass an end on. Return whether more may follow."""
        if item == "reset":
            abort(self.writing)
        elif item == "fin":
            with suppress(OSError):
                self.writing.shutdown(socket.SHUT_WR)
        else:
            assert isinstance(item, bytes)
            try:
                while item:
                    item = item[await self.writing.send(item) :]
            except (OSError, trio.ClosedResourceError):
                self.failed()
            else:
                return True
        return False


@dataclass(eq=False, slots=True)
class Crossing:
    """Connection from the client's machine to the server's."""

    near: trio.socket.SocketType
    """Socket accepted from the client."""
    client: ProxyMachine
    server: ProxyMachine
    outward: Link
    back: Link
    _far: trio.socket.SocketType | None = None
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _severed: ProxyMachine | None = None

    async def run(
        self, dial: Callable[[], trio.socket.SocketType], address: tuple[str, int]
    ) -> None:
        """Dial the server, carry bytes both ways until all is over."""
        try:
            with self._scope:
                if await self._connect(dial, address):
                    await self._carry()
            if self._severed is not None:
                await self._be_half_open(self._severed)
        finally:
            self.near.close()
            if self._far is not None:
                self._far.close()

    def reset(self) -> None:
        """Reset both ends at once."""
        abort(self.near)
        if self._far is not None:
            abort(self._far)
        self._scope.cancel()

    def sever(self, machine: ProxyMachine) -> None:
        """Cut the connection off a machine that loses its power: no byte passes any more."""
        if self._far is None and machine is self.server:
            return  # it continues to wait for the server
        if self._severed is None:
            self._severed = machine
            self._scope.cancel()

    async def _connect(
        self, dial: Callable[[], trio.socket.SocketType], address: tuple[str, int]
    ) -> bool:
        if not self.outward.is_plain:
            await trio.sleep_until(self.outward.arrival(0))
        if await self._wait_for_path() and not _is_open(self.near):
            return False  # it was given up: no handshake, so nothing of it may arrive
        far = dial()
        try:
            await far.connect(address)
        except OSError:
            far.close()
            if not self.back.is_plain:
                await trio.sleep_until(self.back.arrival(0))
            abort(self.near)
            return False
        except BaseException:
            far.close()
            raise
        self._far = far
        return True

    async def _carry(self) -> None:
        assert self._far is not None
        outward = Flow(self.outward, self.near, self._far, lambda: back.break_off())
        back = Flow(self.back, self._far, self.near, lambda: outward.break_off())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outward.run)
            nursery.start_soon(back.run)

    async def _wait_for_path(self) -> bool:
        """Wait until both machines have power and both directions are intact. Return whether that
        took time."""
        waited = False
        while (
            self.outward.state.cut
            or self.back.state.cut
            or self.server.is_silent
            or self.client.is_silent
        ):
            waited = True
            await self.server.powered.wait()
            await self.client.powered.wait()
            await self.outward.uncut.wait()
            await self.back.uncut.wait()
        return waited

    async def _be_half_open(self, lost: ProxyMachine) -> None:
        """Keep the connection of the machine that did not lose power, until it sends something and
        is reset."""
        await lost.powered.wait()
        if lost is self.server:
            intact, forgotten = self.near, self._far
        elif self._far is not None:
            intact, forgotten = self._far, self.near
        else:
            return
        if forgotten is not None:
            abort(forgotten)
        await self._wait_for_path()
        await trio.lowlevel.wait_readable(intact)
        abort(intact)


def abort(end: trio.socket.SocketType) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def _is_open(end: trio.socket.SocketType) -> bool:
    try:
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED
    except OSError:
        return False
