"""Compare a broker's replicas with the position of a stream, and decide how to go on.

In classic mode nothing on disk says what is confirmed. Records that every listed replica holds
count as confirmed, since no failover among these replicas can remove them. A replica that lags (it
was replaced, or is catching up), is unreachable or differs therefore holds the stream up; after a
limit that is an error, or with `failOnDataLoss=false` the replica is ignored.

This cannot detect the loss of a master together with every listed replica, and it knows nothing of
replicas that are not listed.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketbed.inspect.commitlog import claims
from rocketbed.inspect.files import SegmentFile
from rocketbed.inspect.record import blank_size
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.replicas import first_offset
from rocketbed.pipeline.files.splits import NotAStore, Replica, data_end, log_files
from rocketbed.pipeline.files.storage import Storage
from rocketbed.pipeline.streams.offsets import DataLoss, Mark, StreamError

COMPARED: Final = 4096
"""Maximum number of bytes before a position that its checksum covers."""


class State(Enum):
    """Relation of one replica to a position."""

    HOLDS = "holds the log up to there"
    BEHIND = "ends before"
    RETAINED = "has deleted that part"
    DIFFERS = "has other bytes there"
    AWAY = "cannot be read"


@dataclass(frozen=True, slots=True)
class View:
    replica: Replica
    state: State
    first: int = 0
    """First physical offset that the replica has."""
    end: int = 0
    """Physical offset after its last good record."""
    reason: str = ""

    def __str__(self) -> str:
        text = f"replica {self.replica.name} ({self.replica.root}) {self.state.value}"
        extent = f", it has {self.first} to {self.end}" if self.state is not State.AWAY else ""
        return text + extent + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Standing:
    """Decision on how to go on from a position, from all replicas together."""

    holders: tuple[View, ...]
    """Replicas to read from."""
    end: int
    """Offset up to which they may be read now."""
    begin: int
    """Offset to go on from: the position, or the first offset not deleted."""
    held_up_by: str = ""
    """Reason to wait at the position; empty if the stream can go on."""


def mark_at(replica: Replica, position: int) -> Mark:
    """Return the mark of a position. Its checksum covers up to 4 KiB before it, which are the same
    in every replica, and is 0 if there is nothing to compare. Raises `NotAStore`."""
    return Mark(position, _crc_before(replica.storage, log_files(replica), position) or 0)


def may_begin(replica: Replica, position: int) -> bool:
    """True if a record claims to begin at the position, or the log or a file ends there.

    Raises `NotAStore`.
    """
    for file in log_files(replica):
        if file.start <= position < file.end:
            pool = replica.storage.pool()
            try:
                head = pool.read(file.path, position - file.start, 36)
            finally:
                pool.close()
            is_end = blank_size(head, 0) == file.end - position
            if is_end or claims(head.ljust(40, b"\0"), 0, position):
                return True
            if position == file.start:
                return not head.strip(b"\0")
            break  # zeros may be within a blank or a body
    return position == data_end(replica)


def is_unwritten(replica: Replica, position: int) -> bool:
    """True if there are only zeros at a position and at the start of the next file."""
    try:
        files = log_files(replica)
    except NotAStore:
        return False
    pool = replica.storage.pool()
    try:
        return not any(
            pool.read(file.path, max(position - file.start, 0), 8).strip(b"\0")
            for file in files
            if position <= file.end
        )
    finally:
        pool.close()


def look(replica: Replica, mark: Mark, *, finds_end: bool = True) -> View:
    """Compare one replica with a mark.

    Without `finds_end` the log after the mark is not read if the checksum is enough: the end of the
    view is the mark then.
    """
    try:
        files = log_files(replica)
        first = first_offset(replica) or 0
        if first > mark.at:
            return View(replica, State.RETAINED, first, data_end(replica))
        crc = _crc_before(replica.storage, files, mark.at)
        if not finds_end and crc == mark.crc:
            return View(replica, State.HOLDS, first, mark.at)
        if mark.crc == 0 or crc is None or crc == mark.crc:
            # A live log goes on after the mark: only the new part is scanned.
            end = data_end(replica, mark.at if mark.crc and crc == mark.crc else None)
            state = State.HOLDS if end >= mark.at else State.BEHIND
            return View(replica, state, first, end)
        end = data_end(replica)
        return View(replica, State.BEHIND if end < mark.at else State.DIFFERS, first, end)
    except (NotAStore, DataLost, OSError) as exc:
        return View(replica, State.AWAY, reason=str(exc))


def judge(views: Sequence[View], mark: Mark, *, fail_on_data_loss: bool, overdue: bool) -> Standing:
    """Decide how to go on with one broker.

    `overdue`: the stream has been held up here for the whole limit. Raises `DataLoss` if the next
    messages are lost, `StreamError` for the log of another cluster and when it is overdue.
    """
    broker = views[0].replica.broker
    holders = tuple(view for view in views if view.state is State.HOLDS)
    passed = [view for view in views if view.state is State.RETAINED]
    obstacles = [view for view in views if view not in holders and view not in passed]
    reasons = "; ".join(map(str, obstacles or passed))
    if holders:
        end = max(min(view.end for view in (*holders, *passed)), mark.at)
        if not obstacles:
            return Standing(holders, end, mark.at)
        if not overdue:
            return Standing(holders, mark.at, mark.at, reasons)
        if fail_on_data_loss:
            raise StreamError(
                f"broker {broker} at {mark.at}: {reasons}. What not every listed replica holds is "
                f"not confirmed; repair it, take it off the option path, or set "
                f"failOnDataLoss=false",
                Condition.UNREADABLE,
            )
        return Standing(holders, end, mark.at)
    return _without_holder(
        broker, views, mark, reasons, fail_on_data_loss=fail_on_data_loss, overdue=overdue
    )


def _without_holder(
    broker: str,
    views: Sequence[View],
    mark: Mark,
    reasons: str,
    *,
    fail_on_data_loss: bool,
    overdue: bool,
) -> Standing:
    """Decide for a broker none of whose replicas has the log up to the position."""
    states = {view.state for view in views}
    if State.DIFFERS in states:
        raise StreamError(
            f"broker {broker}: the log is not the one that this checkpoint was made with, it "
            f"differs before {mark.at}: {reasons}. It is another cluster's, or was truncated and "
            f"rewritten; start with a new checkpointLocation"
        )
    retained = [view for view in views if view.state is State.RETAINED]
    if retained:
        first = min(view.first for view in retained)
        if fail_on_data_loss:
            raise DataLoss(
                f"broker {broker}: physical offsets {mark.at} to {first} were deleted before the "
                f"stream had read them: {reasons}. failOnDataLoss=false continues after them"
            )
        readable = tuple(view for view in retained if view.first == first)
        return Standing(readable, max(min(view.end for view in readable), first), first)
    if not overdue:
        return Standing((), mark.at, mark.at, reasons)
    shorter = [view for view in views if view.state is State.BEHIND]
    if not shorter:
        raise StreamError(
            f"broker {broker}: no replica can be read: {reasons}", Condition.UNREADABLE
        )
    if fail_on_data_loss:
        raise DataLoss(
            f"broker {broker}: no replica has the log up to {mark.at}, which the stream has "
            f"reached: {reasons}. It was truncated, or replaced by an empty one; "
            f"failOnDataLoss=false continues from its end"
        )
    longest = max(shorter, key=lambda view: view.end)
    return Standing((longest,), longest.end, longest.end)


def _crc_before(storage: Storage, files: Sequence[SegmentFile], position: int) -> int | None:
    """Checksum of the bytes before a position, within one file; None if they are missing.

    Never 0, which stands for no checksum.
    """
    for file in files:
        if file.start < position <= file.end:
            count = min(COMPARED, position - file.start)
            pool = storage.pool()
            try:
                data = pool.read(file.path, position - file.start - count, count)
            finally:
                pool.close()
            return (zlib.crc32(data) or 1) if len(data) == count else None
    return None
