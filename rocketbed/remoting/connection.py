"""A stream of frames, at either end: requests both ways, matched by `opaque` (design.md 4).

Two tasks. The reader cuts the stream into commands and runs their handlers in order; the writer
drains an outbox. Answers are only appended to the outbox, so a handler never waits for a slow peer;
instead reading from that peer pauses while its outbox or its number of open answers is above a
limit.
"""

import ipaddress
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from rocketbed.remoting.errors import ConnectionLost, RequestTimeout
from rocketbed.remoting.table import HandlerTable
from rocketbed.wire.command import ONEWAY_BIT, Command, ResponseCode, answer
from rocketbed.wire.errors import RemoteProtocolError, RocketbedError
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.wire.message import pack_host
from rocketbed.world.api import Address, Stream, World

READ_SIZE: Final = 256 * 1024
"""Most bytes read from the stream at once, and so the longest run of sends."""
WRITE_SIZE: Final = 256 * 1024
"""Most bytes written to the stream at once, so that a stuck peer is noticed."""
OUTBOX_MAX: Final = 4 * 1024 * 1024
"""Unsent bytes above which reading pauses (design.md 4)."""
WAITING_MAX: Final = 1024
"""Sends waiting for disk or slaves above which reading pauses (design.md 4)."""
TURN_S: Final = 0.0002
"""Time since other tasks last ran, seconds, below which further input is handled without letting
them run: that yield costs a tenth of a request for a peer that sends one at a time."""
AHEAD_MAX: Final = 64
"""Most commands that are cut before the first is handled, if frames are not plain. One by one they
cost a fifth more, because each step evicts the others' data from the processor's caches."""
SPAWNED_MAX: Final = 32
"""Most handlers that run in tasks of their own at the same time (design.md 5)."""
FINISH_S: Final = 5.0
"""Time to write the rest of the outbox after the peer's last byte, seconds."""
REQUEST_TIMEOUT_S: Final = 3.0
"""Time for a request, seconds; a client's default (wire.md 1.8)."""


def _packed(address: Address) -> bytes:
    host = ipaddress.ip_address(address[0])
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return pack_host(str(host), address[1])


class _Pending:
    """A request sent from here that has no answer yet."""

    __slots__ = ("arrived", "response")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.response: Command | None = None


Spawned = Callable[[Command, "Connection"], Awaitable[Command | None]]


class Connection:
    """A stream with a reader and a writer. `run` owns it and returns when it has ended."""

    def __init__(
        self, world: World, stream: Stream, handlers: "HandlerTable[Connection] | None" = None
    ) -> None:
        self.world = world
        self.handlers = handlers or HandlerTable[Connection]()
        self.remote: Address = world.network.peer_address(stream)
        self.local: Address = world.network.local_address(stream)
        self.on_close: list[Callable[[Connection], None]] = []
        """Functions called once each, in order, when the connection has ended."""
        self.remote_bytes = _packed(self.remote)
        """Peer's address as records store it: packed address, port as i32."""
        self.is_closed = False
        self._why = ""
        """Fault of the peer for which this end closed the connection."""
        self.last_active = trio.current_time()
        """Time of the last byte in either direction, on trio's clock."""
        self.write_began: float | None = None
        """Time since which the peer has read nothing of what is written; None when nothing is being
        written."""
        self._stream = stream
        self._frames = FrameReader()
        self._commands: list[Command] = []
        """Commands of the current read that are cut and not handled yet."""
        self._ahead = 1
        """Number of commands that are cut at once after a frame that is not plain; more while few
        are."""
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        """Bytes of the outbox, and while the writer writes, those it is writing."""
        self._waiting = 0
        self._to_spawn: deque[tuple[Spawned, Command]] = deque()
        self._spawned = 0
        self._pending: dict[int, _Pending] = {}
        self._opaque = 0
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._writer_wakes = trio.Event()
        self._reader_wakes = trio.Event()
        self._is_paused = False
        self._is_writing = False
        self._in_read = False
        """True while a read's requests are being handled: their answers are sent together after
        it."""
        self._is_drained = trio.Event()
        self._has_room = trio.Event()
        """Set when the outbox has room, for tasks that wait for that."""

    # --- what callers use

    def send(self, data: bytes) -> None:
        """Append bytes of whole frames to the outbox. Returns at once; does nothing when closed."""
        if self.is_closed:
            return
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        if not self._is_writing and not self._in_read:
            self._send_now()

    def send_parts(self, parts: list[bytes]) -> None:
        """Append a frame in pieces to the outbox, as `send`."""
        if self.is_closed:
            return
        self._outbox += parts
        self._outbox_bytes += sum(map(len, parts))
        if not self._is_writing and not self._in_read:
            self._send_now()

    @property
    def is_full(self) -> bool:
        """True if so many bytes are unsent that no more should be produced for the peer."""
        return self._outbox_bytes > OUTBOX_MAX

    async def room(self) -> None:
        """Wait until the peer has read enough for more to be sent; returns at once when closed."""
        while self.is_full and not self.is_closed:
            if self._has_room.is_set():
                self._has_room = trio.Event()
            await self._has_room.wait()

    def reply(self, to: Command, response: Command | None) -> None:
        """Send the answer to a request, unless it was one-way."""
        if response is not None and not to.flag & ONEWAY_BIT:
            self.send(encode(response))

    def failure(self, command: Command, exc: Exception) -> Command:
        """Return the answer to a request whose handler raised."""
        if isinstance(exc, RocketbedError):
            return answer(command, exc.response_code, str(exc))
        self.world.log.error(
            "remoting.handler_failed",
            peer=self.remote_text,
            code=command.code,
            error=f"{type(exc).__name__}: {exc}",
        )
        return answer(command, ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {exc}")

    def open_wait(self, count: int = 1) -> None:
        """Count answers that wait for something; reading pauses above `WAITING_MAX`."""
        self._waiting += count

    def close_wait(self, count: int = 1) -> None:
        """Undo `open_wait`."""
        self._waiting -= count
        assert self._waiting >= 0
        self._resume()

    def notify(self, command: Command) -> None:
        """Send a one-way request."""
        command.flag |= ONEWAY_BIT
        command.opaque = self._next_opaque()
        self.send(encode(command))

    async def request(self, command: Command, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Command:
        """Send a request and wait for its answer, whatever its code.

        Raises `RequestTimeout`, `ConnectionLost`. After either, and after a cancellation, the peer
        may or may not have run the request; a late answer is dropped.
        """
        if self.is_closed:
            raise ConnectionLost(f"connection to {self.remote_text} is closed")
        opaque = command.opaque = self._next_opaque()
        pending = self._pending[opaque] = _Pending()
        try:
            self.send(encode(command))
            with trio.move_on_after(timeout_s):
                await pending.arrived.wait()
        finally:
            self._pending.pop(opaque, None)
        # Check for the answer first: it counts even if the connection has ended since.
        if pending.response is not None:
            return pending.response
        if self.is_closed:
            reason = f"connection to {self.remote_text} closed before the answer arrived"
            raise ConnectionLost(self._why or reason)
        raise RequestTimeout(
            f"no answer from {self.remote_text} to request {command.code} within {timeout_s:g} s"
        )

    def close(self, why: str = "") -> None:
        """End the connection now; unsent bytes are lost. `why` becomes the error of requests that
        wait for an answer."""
        self._why = self._why or why
        self._scope.cancel()

    @property
    def remote_text(self) -> str:
        """Peer's address as `ip:port`."""
        return f"{self.remote[0]}:{self.remote[1]}"

    @property
    def outbox_bytes(self) -> int:
        """Bytes not yet handed to the stream."""
        return self._outbox_bytes

    async def run(
        self, *, task_status: trio.TaskStatus["Connection"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Read and write until either end closes. Never raises because of the peer."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    try:
                        nursery.start_soon(self._write_loop)
                        task_status.started(self)
                        await self._read_loop()
                        # A peer that has shut down its sending side still reads the answers.
                        await self._drain()
                        nursery.cancel_scope.cancel()
                    finally:
                        self._nursery = None  # from here on the nursery may be closed to new tasks
        finally:
            try:
                self._end()
            finally:
                await trio.aclose_forcefully(self._stream)

    async def _drain(self) -> None:
        """Give the outbox a little time to be sent."""
        with trio.move_on_after(FINISH_S):
            while self._is_writing:
                self._is_drained = trio.Event()
                await self._is_drained.wait()

    # --- reading

    async def _read_loop(self) -> None:
        network, stream = self.world.network, self._stream
        turn_ends = 0.0
        while True:
            await self._uncongested()
            data = b""
            if trio.current_time() < turn_ends and not self._scope.cancel_called:
                data = network.try_receive(stream, READ_SIZE)
            if not data:
                try:
                    data = await network.receive(stream, READ_SIZE)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                if not data:
                    return
                turn_ends = trio.current_time() + TURN_S
            self.last_active = trio.current_time()
            try:
                self._frames.add(data)
                while not self._take_and_send():
                    await trio.lowlevel.checkpoint()
                    await self._uncongested()
            except RemoteProtocolError as exc:
                self.world.log.warning(
                    "remoting.protocol_error", peer=self.remote_text, error=str(exc)
                )
                self._why = f"{self.remote_text} sent what is no frame of RocketMQ's: {exc}"
                return

    async def _uncongested(self) -> None:
        while self._is_congested():
            self._is_paused = True
            self._reader_wakes = trio.Event()
            await self._reader_wakes.wait()

    def _take_and_send(self) -> bool:
        self._in_read = True
        try:
            return self._take()
        finally:
            self._in_read = False
            self._send_now()

    def _take(self) -> bool:
        """Run the handlers of one read, in order; False once the outbox is full.

        A read may hold a thousand pulls, and their answers 200 MB. Raises `RemoteProtocolError` for
        a frame that breaks the protocol, after the frames before it are handled.
        """
        frames = self._frames
        in_run = False
        try:
            while True:
                if not self._commands:
                    at = self._take_plain(frames.position)
                    if at == frames.position:
                        self._ahead = min(2 * self._ahead, AHEAD_MAX)
                    else:
                        in_run, frames.position, self._ahead = True, at, 1
                    self._commands = frames.next(self._ahead)
                    if not self._commands:
                        return True
                in_run = self._handle(self._commands, in_run)
                if self._commands:
                    return False
        finally:
            if in_run:
                self._finish_run()

    def _handle(self, commands: list[Command], in_run: bool) -> bool:
        """Run the handlers of commands, and keep in the list those that wait for room in the
        outbox. `in_run` says that a run is open; returns True if one is open afterwards."""
        handlers = self.handlers
        run = handlers.run
        for number, command in enumerate(commands):
            if command.flag & 1:
                self._resolve(command)
                continue
            handler = run.get(command.code)
            if handler is not None:
                in_run = True
            else:
                # Close the run before any other request, which must see the sends that came before
                # it.
                if in_run:
                    in_run = False
                    self._finish_run()
                if self._outbox_bytes > OUTBOX_MAX:
                    del commands[:number]
                    return False
                handler = handlers.inline.get(command.code)
                if handler is None:
                    self._spawn_or_refuse(command)
                    continue
            try:
                response = handler(command, self)
            except Exception as exc:
                response = self.failure(command, exc)
            if response is not None and not command.flag & ONEWAY_BIT:
                self.send(encode(response))
        commands.clear()
        return in_run

    def _take_plain(self, at: int) -> int:
        """Let plain requests be handled as bytes; return the position of the first other frame."""
        try:
            return self.handlers.plain_run(self._frames.data, at, self)
        except Exception as exc:
            # None of them was handled: the frames go the general way.
            self._log_failed("remoting.plain_run_failed", exc)
            return at

    def _log_failed(self, event: str, exc: Exception) -> None:
        error = f"{type(exc).__name__}: {exc}"
        self.world.log.error(event, peer=self.remote_text, error=error)

    def _finish_run(self) -> None:
        try:
            self.handlers.end_of_run(self)
        except Exception as exc:
            self._log_failed("remoting.run_failed", exc)
            # It is unknown which sends of the run were answered, so the peer must not wait for
            # them.
            self.close()

    def _resolve(self, response: Command) -> None:
        pending = self._pending.pop(response.opaque, None)
        if pending is None:
            self.world.log.debug(
                "remoting.late_answer", peer=self.remote_text, opaque=response.opaque
            )
            return
        pending.response = response
        pending.arrived.set()

    # --- handlers in tasks of their own

    def _spawn_or_refuse(self, command: Command) -> None:
        handler = self.handlers.spawned.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            self.reply(command, answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        self.spawn(handler, command)

    def spawn(self, handler: Spawned, command: Command) -> None:
        """Run an async handler for a request and send its result. At most 32 run at the same
        time."""
        self._to_spawn.append((handler, command))
        if self._spawned < SPAWNED_MAX and self._nursery is not None:
            self._spawned += 1
            self._nursery.start_soon(self._run_spawned)

    async def _run_spawned(self) -> None:
        try:
            while self._to_spawn:
                handler, command = self._to_spawn.popleft()
                self._resume()
                await self.room()
                try:
                    response = await handler(command, self)
                except Exception as exc:
                    response = self.failure(command, exc)
                self.reply(command, response)
        finally:
            self._spawned -= 1
            self._resume()

    # --- writing

    def _send_now(self) -> None:
        """Send what the stream accepts at once; the rest is left to the writer.

        Most answers fit into the socket's buffer. A single request on its connection costs 82 us of
        CPU if the writer is woken, 59 us if not.
        """
        if self._is_writing or not self._outbox:
            return
        # Only while the writer is idle (checked above): bytes of two frames must not mix.
        outbox = self._outbox
        sent = self.world.network.try_send(self._stream, outbox)
        if sent:
            self.last_active = trio.current_time()
            self._outbox_bytes -= sent
            if not self._outbox_bytes:
                outbox.clear()
                return
            number = 0
            while sent >= len(outbox[number]):
                sent -= len(outbox[number])
                number += 1
            del outbox[:number]
            outbox[0] = outbox[0][sent:]
        self._is_writing = True
        self._writer_wakes.set()

    async def _write_loop(self) -> None:
        send_all = self._stream.send_all
        try:
            while True:
                while self._outbox:
                    data = b"".join(self._outbox)
                    self._outbox.clear()
                    await self._write(send_all, data)
                self._is_writing = False
                self._is_drained.set()
                self._writer_wakes = trio.Event()
                await self._writer_wakes.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()

    async def _write(
        self, send_all: Callable[[bytes | memoryview], Awaitable[None]], data: bytes
    ) -> None:
        view = memoryview(data)
        for start in range(0, len(data), WRITE_SIZE):
            part = view[start : start + WRITE_SIZE]
            self.write_began = trio.current_time()
            await send_all(part)
            self.last_active = trio.current_time()
            self.write_began = None
            self._outbox_bytes -= len(part)
            if self._outbox_bytes <= OUTBOX_MAX:
                self._has_room.set()
            self._resume()

    # --- limits and the end

    def _is_congested(self) -> bool:
        return (
            self._outbox_bytes > OUTBOX_MAX
            or self._waiting > WAITING_MAX
            or len(self._to_spawn) > 0
        )

    def _resume(self) -> None:
        if self._is_paused and not self._is_congested():
            self._is_paused = False
            self._reader_wakes.set()

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def _end(self) -> None:
        # Closed before other tasks wake or hooks are called, because none of them may send any
        # more.
        self.is_closed = True
        self._outbox.clear()
        self._has_room.set()
        for pending in self._pending.values():
            pending.arrived.set()
        for hook in self.on_close:
            hook(self)
