"""How a broker's replicas stand to the position of a stream, and what follows from that.

In classic mode nothing on disk says what is confirmed: what every listed replica holds is taken for
it, since no failover among these replicas can take it away. A replica that is behind (it was
replaced, or is catching up), away or different therefore holds the stream up; after a limit that is
an error, or with `failOnDataLoss=false` the replica is left out.

What this cannot see: a master that was lost together with every listed replica, and replicas that
are not listed.
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
"""Bytes before a position that its checksum covers, at most."""


class State(Enum):
    """One replica, seen from a position."""

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
    """First physical offset that is there."""
    end: int = 0
    """Physical offset behind its last good record."""
    reason: str = ""

    def __str__(self) -> str:
        text = f"replica {self.replica.name} ({self.replica.root}) {self.state.value}"
        extent = f", it has {self.first} to {self.end}" if self.state is not State.AWAY else ""
        return text + extent + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Standing:
    """What all replicas together say about going on from a position."""

    holders: tuple[View, ...]
    """Replicas to read from."""
    end: int
    """Up to where they may be read now."""
    begin: int
    """Where reading goes on: the position, or the first offset that is left."""
    held_up_by: str = ""
    """Why the stream has to wait here; empty when it can go on."""


def mark_at(replica: Replica, position: int) -> Mark:
    """The mark of a position: its checksum covers up to 4 KiB before it, of the same log in any
    replica. 0 stands for "nothing there to compare". Raises `NotAStore`."""
    return Mark(position, _crc_before(replica.storage, log_files(replica), position) or 0)


def may_begin(replica: Replica, position: int) -> bool:
    """Whether a record says that it begins there, or the log or a file ends there.

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
    """Whether nothing stands at a position or at the start of the file behind it."""
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
    """One replica as it stands to a mark.

    Without `finds_end` the log behind the mark is left alone where the checksum says enough: the
    end of the view is the mark then.
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
            # A live log is longer than where the stream stands: only what is new is looked at.
            end = data_end(replica, mark.at if mark.crc and crc == mark.crc else None)
            state = State.HOLDS if end >= mark.at else State.BEHIND
            return View(replica, state, first, end)
        end = data_end(replica)
        return View(replica, State.BEHIND if end < mark.at else State.DIFFERS, first, end)
    except (NotAStore, DataLost, OSError) as exc:
        return View(replica, State.AWAY, reason=str(exc))


def judge(views: Sequence[View], mark: Mark, *, fail_on_data_loss: bool, overdue: bool) -> Standing:
    """What to do about one broker.

    `overdue`: the stream has been held up here for as long as it may be. Raises `DataLoss` when
    what comes next is gone, `StreamError` for the log of another cluster and when it is overdue.
    """
    broker = views[0].replica.broker
    holders = tuple(view for view in views if view.state is State.HOLDS)
    passed = [view for view in views if view.state is State.RETAINED]
    others = [view for view in views if view not in holders and view not in passed]
    told = "; ".join(map(str, others or passed))
    if holders:
        end = max(min(view.end for view in (*holders, *passed)), mark.at)
        if not others:
            return Standing(holders, end, mark.at)
        if not overdue:
            return Standing(holders, mark.at, mark.at, told)
        if fail_on_data_loss:
            raise StreamError(
                f"broker {broker} at {mark.at}: {told}. What not every listed replica holds is not "
                f"confirmed; repair it, take it off the option path, or set failOnDataLoss=false",
                Condition.UNREADABLE,
            )
        return Standing(holders, end, mark.at)
    return _without_holder(
        broker, views, mark, told, fail_on_data_loss=fail_on_data_loss, overdue=overdue
    )


def _without_holder(
    broker: str,
    views: Sequence[View],
    mark: Mark,
    told: str,
    *,
    fail_on_data_loss: bool,
    overdue: bool,
) -> Standing:
    """No replica has the log up to the position."""
    states = {view.state for view in views}
    if State.DIFFERS in states:
        raise StreamError(
            f"broker {broker}: the log is not the one that this checkpoint was made with, it "
            f"differs before {mark.at}: {told}. It is another cluster's, or was truncated and "
            f"rewritten; start with a new checkpointLocation"
        )
    kept = [view for view in views if view.state is State.RETAINED]
    if kept:
        first = min(view.first for view in kept)
        if fail_on_data_loss:
            raise DataLoss(
                f"broker {broker}: physical offsets {mark.at} to {first} were deleted before the "
                f"stream had read them: {told}. failOnDataLoss=false continues after them"
            )
        readable = tuple(view for view in kept if view.first == first)
        return Standing(readable, max(min(view.end for view in readable), first), first)
    if not overdue:
        return Standing((), mark.at, mark.at, told)
    shorter = [view for view in views if view.state is State.BEHIND]
    if not shorter:
        raise StreamError(f"broker {broker}: no replica can be read: {told}", Condition.UNREADABLE)
    if fail_on_data_loss:
        raise DataLoss(
            f"broker {broker}: no replica has the log up to {mark.at}, which the stream has "
            f"reached: {told}. It was truncated, or replaced by an empty one; failOnDataLoss=false "
            f"continues from its end"
        )
    longest = max(shorter, key=lambda view: view.end)
    return Standing((longest,), longest.end, longest.end)


def _crc_before(storage: Storage, files: Sequence[SegmentFile], position: int) -> int | None:
    """Checksum of the bytes before a position, within one file; None when they are not there.

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
