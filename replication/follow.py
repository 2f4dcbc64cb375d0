"""A connection of a slave to its master: compare, then append and acknowledge.

Nothing is appended and nothing acknowledged before the master's bytes were found equal to the end
of our own log; later acknowledgements are for bytes that were compared, or appended after those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.replication.errors import (
    LogDiverged,
    MasterBehind,
    OffsetMismatch,
    ReplicationError,
    SegmentMismatch,
)
from rocketbed.replication.prefix import STEP_SIZE, Divergence
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import Transfer, TransferReader, encode_report
from rocketbed.world.api import Address, Stream

if TYPE_CHECKING:
    from rocketbed.replication.slave import Slave

READ_SIZE: Final = 256 * 1024
UNANSWERED_MAX: Final = 2
"""Heartbeats from below our end after which the master is taken to have nothing there: a RocketMQ
master may send one before it looks for data."""
_REMEDY: Final = (
    "set rbDiverged=cut on this slave to have it truncated to what both have and what it loses kept"
    " in rocketbed.cut, or empty its store"
)


class MasterConnection:
    """A connection to a master: a task that takes its frames, one that acknowledges."""

    def __init__(self, slave: Slave, address: Address, stream: Stream, start: int) -> None:
        """`start` is the report of an empty log, 0 to let the master choose."""
        self._slave = slave
        self._log = slave.log
        self._address = address
        self._stream = stream
        self._frames = TransferReader()
        self._is_fresh = self._log.written.value == self._log.min_offset
        self._first = start if self._is_fresh else self._first_report()
        self._next = self._first
        """Expected offset of the next frame."""
        self._own_end = self._log.written.value
        """End of our log at the connect: lower bytes are compared, not appended."""
        self._master_end = -1
        """End of the master's log, if known and before our end."""
        if slave.search is not None and not self._is_fresh:
            self._first = self._next = slave.search.first_report(self._first)
            bounds = slave.search.bounds
            if bounds is not None and bounds.end < self._own_end:
                self._master_end = bounds.end
        self.divergence: Divergence | None = None
        """Point where the logs diverge, for a slave that may cut its own."""
        self._compared = trio.Event()
        self._is_recorded = trio.Event()
        """Set once the master that the log follows is recorded: until then nothing is acknowledged
        to it."""
        self._is_served = False
        self._unanswered = 0
        self._reason = ""

    async def run(self) -> bool:
        """Follow until the connection ends. Return True if it got as far as following."""
        self._slave.state = "comparing"
        if self._is_fresh:
            self._follow()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_lost, nursery, self._take_frames)
            nursery.start_soon(self._until_lost, nursery, self._record_master)
            nursery.start_soon(self._until_lost, nursery, self._report)
        if self._slave.state != "refused" and self.divergence is None:
            if not self._compared.is_set():
                self._log_not_served()
            self._slave.lost(self._address, self._reason)
        return self._compared.is_set()

    def _log_not_served(self) -> None:
        slave = self._slave
        if slave.search is not None and self._next == self._first:
            slave.search.not_served(self._first)
        slave.world.log.warning(
            "replication.not_served",
            master=address_text(self._address),
            reason=f"{self._reason}, before it sent what this log has from {self._first} to"
            f" {self._own_end}: its log may be shorter, or begin later",
        )

    def _first_report(self) -> int:
        """Return the offset at which the master is to begin: a little before our end, in its
        segment.

        Never 0, which lets the master choose the start of an empty slave. A report of less than we
        have acknowledges less, which is always true.
        """
        log = self._log
        end = log.written.value
        last_segment = (end - 1) - (end - 1) % log.segment_size
        start = max(end - STEP_SIZE, last_segment, log.min_offset, 1)
        # A RocketMQ master counts the first report as an acknowledgement, so it must not be above
        # what is on disk.
        if self._slave.report_flushed:
            start = min(start, max(log.flushed.value, log.min_offset, 1))
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
                self._is_served = True
                self._take(frame)

    def _take(self, frame: Transfer) -> None:
        if self._is_fresh and self._log.written.value == self._own_end and frame.data:
            self._next = self._own_end = frame.offset
            self._is_fresh = False
        if not frame.data:
            self._take_heartbeat(frame.offset)
            return
        if frame.offset != self._next:
            raise OffsetMismatch(
                f"the master sent offset {frame.offset}, {self._next} was to be next"
            )
        self._unanswered = 0
        self._next += len(frame.data)
        # Compare before appending: a frame may begin in our log and extend beyond its end.
        own = self._own_end - frame.offset
        if own > 0:
            self._compare(frame.offset, frame.data[:own])
        if own < len(frame.data):
            self._append(max(frame.offset, self._own_end), frame.data[max(own, 0) :])
        if self._next >= self._own_end:
            if not self._compared.is_set():
                self._follow()
        elif 0 <= self._master_end <= self._next:
            raise self._master_behind(self._next)

    def _take_heartbeat(self, offset: int) -> None:
        """Handle a heartbeat: the master has nothing beyond `offset`."""
        if self._is_fresh:
            return
        if offset != self._next:
            raise OffsetMismatch(f"the master stands at {offset}, this slave at {self._next}")
        # While comparing, one heartbeat proves nothing (see `UNANSWERED_MAX`).
        if offset < self._own_end:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_MAX:
                raise self._master_behind(offset)

    def _master_behind(self, offset: int) -> MasterBehind:
        reason = (
            f"the master has nothing at {offset}, where this log goes on to {self._own_end}: it"
            " lost its end, or has deleted this part"
        )
        self._diverge(offset, reason)
        return MasterBehind(f"{reason}; {self._remedy()}")

    def _remedy(self) -> str:
        return self._slave.advice(self._address) or _REMEDY

    def _diverge(self, offset: int, reason: str) -> None:
        if self._slave.search is not None:
            self.divergence = Divergence(self._first, offset, reason)

    def _compare(self, offset: int, theirs: bytes) -> None:
        position = 0
        while position < len(theirs):
            ours = self._log.read(offset + position, len(theirs) - position)
            piece = theirs[position : position + len(ours)]
            if ours != piece or not ours:
                same = next((i for i in range(len(ours)) if ours[i] != piece[i]), 0)
                offset += position + same
                reason = f"this log differs from the master's at {offset}: one of the two lost its"
                reason += " end and went on"
                self._diverge(offset, reason)
                raise LogDiverged(f"{reason}; {self._remedy()}", offset=offset)
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
        slave.world.mark("replication.following")
        slave.refusal = None
        slave.last_loss = ""
        if slave.search is not None:
            slave.search.reset()
        self._compared.set()
        slave.world.log.info(
            "replication.following", master=address_text(self._address), offset=self._own_end
        )
        for callback in slave.on_following:
            callback()

    async def _record_master(self) -> None:
        memory, name = self._slave.memory, self._slave.master_name(self._address)
        if memory is not None and memory.followed != name:
            await self._compared.wait()
            await memory.note(name)
        self._is_recorded.set()
        await trio.sleep_forever()

    async def _report(self) -> None:
        """Acknowledge at once, whenever the log has grown, and after a silence.

        The first report is a request. Later ones are for bytes that were compared, or appended
        after those; while nothing is compared there is nothing to acknowledge.
        """
        offset = self._first
        await self._stream.send_all(encode_report(offset))
        while not self._compared.is_set():
            with trio.move_on_after(self._slave.heartbeat_s):
                await self._compared.wait()
            if (
                not self._compared.is_set()
                and self._next > self._first
                and self._is_recorded.is_set()
            ):
                offset = max(offset, self._acknowledged())
                await self._stream.send_all(encode_report(offset))
        while not self._is_recorded.is_set():
            with trio.move_on_after(self._slave.heartbeat_s):
                await self._is_recorded.wait()
            # Acknowledges nothing, and keeps the master connected. Not before it has read the first
            # report: a 0 in its place would request another start.
            if not self._is_recorded.is_set() and self._is_served:
                await self._stream.send_all(encode_report(0))
                self._slave.world.log.warning(
                    "replication.note_waits", master=address_text(self._address)
                )
        while True:
            with trio.move_on_after(self._slave.heartbeat_s):
                if self._slave.report_flushed:
                    await self._log.flushed.wait_above(offset)
                else:
                    await self._log.written.wait_above(offset)
            offset = max(offset, self._acknowledged())
            await self._stream.send_all(encode_report(offset))

    def _acknowledged(self) -> int:
        log = self._log
        end = log.flushed.value if self._slave.report_flushed else log.written.value
        return end if self._compared.is_set() else min(end, self._next)

    async def _until_lost(self, nursery: trio.Nursery, part: Callable[[], Awaitable[None]]) -> None:
        """Run one of the three tasks; its end is the connection's."""
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
            if self.divergence is None:
                self._slave.refuse(self._address, exc)
        nursery.cancel_scope.cancel()


def address_text(address: Address | None) -> str:
    """Return `host:port`, empty for none."""
    return f"{address[0]}:{address[1]}" if address else ""
