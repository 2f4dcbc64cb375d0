"""The slave's side of classic replication: follow one master, byte for byte (replication.md 1.5).

The protocol only knows positions, so a slave whose log has other bytes than its master's would
follow blindly for ever: a master that lost its tail in a power cut and went on is such a case.
Ours therefore asks, by its first report, for a last piece of what it already has, and compares it
before it appends or acknowledges anything; a real master serves that as well. Logs that differ, or
a master that has less than we do, are refused and told, at every attempt (design.md 13).
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from replication.api import ReplicaLog
from replication.errors import (
    LogDiverged,
    MasterBehind,
    OffsetMismatch,
    ReplicationError,
    SegmentMismatch,
)
from replication.fresh import LogStart
from rocketbed.wire.bodies import HaClientRuntimeInfo
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import Transfer, TransferReader, encode_report
from rocketbed.world.api import Address, Stream, World

HEARTBEAT_S: Final = 5.0
"""Silence after which a slave reports again (`haSendHeartbeatInterval`)."""
HOUSEKEEPING_S: Final = 20.0
"""Silence after which either side gives a connection up (`haHousekeepingInterval`)."""
CONNECT_S: Final = 5.0
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 0.5
"""Pause before dialling again: doubles from the first to the last (RocketMQ: always 5 s). Short,
since a master that came back acknowledges nothing synchronous until a slave has found it."""
REFUSED_S: Final = 5.0
"""Pause after a master whose log is another one: it will not change soon."""
OVERLAP_SIZE: Final = 64 * 1024
"""Bytes of our own log that are compared with the master's at each connect."""
READ_SIZE: Final = 256 * 1024
UNANSWERED_MAX: Final = 2
"""Heartbeats from below our end before the master is taken to have nothing there."""


class Slave:
    """Follows a master until cancelled. `set_master` says whom; None is nobody."""

    def __init__(
        self,
        world: World,
        log: ReplicaLog,
        *,
        report_flushed: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
        housekeeping_s: float = HOUSEKEEPING_S,
    ) -> None:
        """`report_flushed` acknowledges only what is on disk (SYNC_FLUSH, design.md 11)."""
        self.world = world
        self.log = log
        self.report_flushed = report_flushed
        self.heartbeat_s = heartbeat_s
        self.housekeeping_s = housekeeping_s
        self.master: Address | None = None
        self.state = "idle"
        """`idle`, `connecting`, `comparing`, `following` or `refused`."""
        self.refusal: ReplicationError | None = None
        """Why the last master was refused."""
        self.received = 0
        """Bytes appended since the start of the process."""
        self.find_start: Callable[[], Awaitable[LogStart | None]] | None = None
        """Asked by an empty slave where the master's log begins; None leaves it to the master."""
        self.last_loss = ""
        """Why there was no connection last; one reason is logged once, not at every dialling."""
        self.on_following: list[Callable[[], None]] = []
        """Called each time a master has been found to have the same log."""
        self._changed = trio.Event()
        self._scope: trio.CancelScope | None = None

    def set_master(self, address: Address | None) -> None:
        """Follow the master at this replication address from now on."""
        if address == self.master:
            return
        self.world.log.info("replication.master_set", master=_text(address))
        self.master = address
        self._changed.set()
        self._changed = trio.Event()
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Follow, and follow again."""
        pause = RETRY_FIRST_S
        while True:
            if self.master is None:
                self.state = "idle"
                await self._changed.wait()
                pause = RETRY_FIRST_S
                continue
            address, changed = self.master, self._changed
            followed = await self._attempt(address)
            if self.state == "refused":
                pause = REFUSED_S
            else:
                pause = RETRY_FIRST_S if followed else min(2 * pause, RETRY_LAST_S)
            with trio.move_on_after(pause):
                await changed.wait()

    def runtime_info(self) -> HaClientRuntimeInfo:
        """What code 907 answers about a slave."""
        return HaClientRuntimeInfo(
            master_addr=_text(self.master),
            max_offset=self.log.max_offset,
            is_activated=self.state == "following",
        )

    async def _attempt(self, address: Address) -> bool:
        """One connection, to its end. Whether the master was found to have the same log."""
        self.state = "connecting"
        with trio.CancelScope() as self._scope:
            try:
                with trio.fail_after(CONNECT_S):
                    start = await self._begin_empty_log()
                    stream = await self.world.network.connect(*address)
            except (OSError, trio.TooSlowError) as exc:
                self.lost(address, f"cannot connect: {str(exc) or type(exc).__name__}")
                return False
            try:
                return await MasterConnection(self, address, stream, start).run()
            finally:
                with trio.move_on_after(1, shield=True):
                    await trio.aclose_forcefully(stream)
        return False

    async def _begin_empty_log(self) -> int:
        """For an empty log: what to report instead of 0; takes the first message over, if given."""
        if self.find_start is None or self.log.max_offset > self.log.min_offset:
            return 0
        start = await self.find_start()
        if start is None:
            return 0
        if start.data:
            self.log.append_raw(start.offset, start.data)
        return start.offset

    def lost(self, address: Address, reason: str) -> None:
        """A connection to a master ended, or there was none."""
        self.state = "connecting"
        log = self.world.log.debug if reason == self.last_loss else self.world.log.info
        log("replication.master_lost", master=_text(address), reason=reason)
        self.last_loss = reason


class MasterConnection:
    """One connection to a master: a task that takes its frames, one that reports."""

    def __init__(self, slave: Slave, address: Address, stream: Stream, start: int) -> None:
        """`start` is what an empty log reports, 0 for wherever the master likes."""
        self._slave = slave
        self._log = slave.log
        self._address = address
        self._stream = stream
        self._frames = TransferReader()
        self._is_fresh = self._log.max_offset == self._log.min_offset
        self._first = start if self._is_fresh else self._first_report()
        self._next = self._first
        """Offset that the next frame has to begin with."""
        self._own_end = self._log.max_offset
        """End of our log at the connect: what lies below it is compared, not appended."""
        self._compared = trio.Event()
        self._unanswered = 0
        self._reason = ""

    async def run(self) -> bool:
        """Follow until the connection ends. Whether it came to following at all."""
        self._slave.state = "comparing"
        if self._is_fresh or self._first == self._own_end:
            self._follow()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_lost, nursery, self._take_frames)
            nursery.start_soon(self._until_lost, nursery, self._report)
        if self._slave.state != "refused":
            if not self._compared.is_set():
                self._slave.world.log.warning(
                    "replication.not_served",
                    master=_text(self._address),
                    reason=f"{self._reason}, before it sent what this log has from {self._first} to"
                    f" {self._own_end}: its log may be shorter, or begin later",
                )
            self._slave.lost(self._address, self._reason)
        return self._compared.is_set()

    def _first_report(self) -> int:
        """Where the master is to begin: a little before our end, in its segment.

        Never 0, which asks for wherever an empty slave is to begin. A report of less than we have
        acknowledges less, which is always true.
        """
        log = self._log
        end = log.max_offset
        last_segment = (end - 1) - (end - 1) % log.segment_size
        start = max(end - OVERLAP_SIZE, last_segment, log.min_offset, 1)
        if self._slave.report_flushed:
            start = min(start, max(log.flushed_offset, log.min_offset, 1))
        return start

    async def _take_frames(self) -> None:
        while True:
            data: bytes | bytearray = b""
            with trio.move_on_after(self._slave.housekeeping_s) as scope:
                data = await self._stream.receive_some(READ_SIZE)
            if scope.cancelled_caught:
                self._reason = f"it was silent for {self._slave.housekeeping_s:g} s"
                return
            if not data:
                self._reason = "it closed the connection"
                return
            for frame in self._frames.feed(data):
                self._take(frame)

    def _take(self, frame: Transfer) -> None:
        if self._is_fresh and self._log.max_offset == self._own_end and frame.data:
            self._next = self._own_end = frame.offset
            self._is_fresh = False
        if not frame.data:
            self._hear(frame.offset)
            return
        if frame.offset != self._next:
            raise OffsetMismatch(
                f"the master sent offset {frame.offset}, {self._next} was to be next"
            )
        self._unanswered = 0
        self._next += len(frame.data)
        own = self._own_end - frame.offset
        if own > 0:
            self._compare(frame.offset, frame.data[:own])
        if own < len(frame.data):
            self._append(max(frame.offset, self._own_end), frame.data[max(own, 0) :])
        if self._next >= self._own_end and not self._compared.is_set():
            self._follow()

    def _hear(self, offset: int) -> None:
        """A heartbeat: the master has nothing beyond `offset`."""
        if self._is_fresh:
            return
        if offset != self._next:
            raise OffsetMismatch(f"the master stands at {offset}, this slave at {self._next}")
        if offset < self._own_end:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_MAX:
                raise MasterBehind(
                    f"the master has nothing at {offset}, where this log goes on to"
                    f" {self._own_end}: it lost its end, or has deleted this part; compare the"
                    " two, then cut or empty this slave's store",
                    offset=self._own_end,
                )

    def _compare(self, offset: int, theirs: bytes) -> None:
        position = 0
        while position < len(theirs):
            ours = self._log.read(offset + position, len(theirs) - position)
            piece = theirs[position : position + len(ours)]
            if ours != piece or not ours:
                same = next((i for i in range(len(ours)) if ours[i] != piece[i]), 0)
                raise LogDiverged(
                    f"this log differs from the master's at {offset + position + same}: one of the"
                    " two lost its end and went on; compare them, then cut or empty this"
                    " slave's store",
                    offset=offset + position + same,
                )
            position += len(ours)

    def _append(self, offset: int, data: bytes) -> None:
        size = self._log.segment_size
        if offset // size != (offset + len(data) - 1) // size:
            raise SegmentMismatch(
                f"the master's frame at {offset} goes beyond a segment of {size} bytes:"
                " mappedFileSizeCommitLog has to be equal on both"
            )
        self._log.append_raw(offset, data)
        self._slave.received += len(data)

    def _follow(self) -> None:
        slave = self._slave
        slave.state = "following"
        slave.refusal = None
        slave.last_loss = ""
        self._compared.set()
        slave.world.log.info(
            "replication.following", master=_text(self._address), offset=self._own_end
        )
        for callback in slave.on_following:
            callback()

    async def _report(self) -> None:
        """Report at once, whenever the log has grown, and when long silent."""
        offset = self._first
        while True:
            await self._stream.send_all(encode_report(offset))
            with trio.move_on_after(self._slave.heartbeat_s):
                await self._compared.wait()
                if self._slave.report_flushed:
                    await self._log.wait_flushed_above(offset)
                else:
                    await self._log.wait_above(offset)
            if self._compared.is_set():
                offset = max(offset, self._acknowledged())

    def _acknowledged(self) -> int:
        log = self._log
        return log.flushed_offset if self._slave.report_flushed else log.max_offset

    async def _until_lost(self, nursery: trio.Nursery, part: Callable[[], Awaitable[None]]) -> None:
        """Run one of the two tasks; its end is the connection's."""
        try:
            await part()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._reason = self._reason or str(exc)
        except RemoteProtocolError as exc:
            self._reason = str(exc)
        except OSError as exc:
            self._reason = f"this slave's disk or connection failed: {exc}"
            self._slave.world.log.error("replication.append_failed", error=str(exc))
        except OffsetMismatch as exc:
            self._reason = str(exc)
            self._slave.world.log.warning("replication.offset_mismatch", reason=str(exc))
        except ReplicationError as exc:
            self._slave.state = "refused"
            self._slave.refusal = exc
            self._slave.world.log.error(
                "replication.refused", master=_text(self._address), reason=str(exc)
            )
        nursery.cancel_scope.cancel()


def _text(address: Address | None) -> str:
    return f"{address[0]}:{address[1]}" if address else ""
