"""Ends of the logs of a cluster's nodes, as far as they can be found out.

A running node reports its end. For a node that is stopped or hanging the files are read: messages
that it helped to acknowledge are in its log, whatever has happened to the process since.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from rocketbed.cluster.plan import ClusterError, read_settings
from rocketbed.inspect import CommitLog, Filler, LogEnd, NotAStore, Record, Scanned, open_directory
from rocketbed.inspect.files import READ_SIZE

COMPARED_BYTES: Final = 8 << 20
"""Bytes below the common end of two logs in which messages are compared; more if no message begins
there."""
HOLE_TOPIC: Final = b"!"
"""Topic of the records that fill a hole which was closed by an operator's order."""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """End of the log of one node."""

    name: str
    offset: int | None
    """Offset in bytes; None if it cannot be found out."""
    state: str
    """State of the node: `running`, `stopped`, `not answering`."""
    unqueued: str = ""
    """Description of its messages that cannot be pulled from it; empty if there are none."""
    diverged: bool = False
    """True if it has other bytes than the node that is to be promoted, below the end of both
    logs."""


class _Message(NamedTuple):
    """A whole message of a log, or a filler."""

    start: int
    end: int
    store_ms: int
    """Store time; -1 for a filler."""


def missing_in(target: NodeEnd, ends: Iterable[NodeEnd]) -> str:
    """Describe what the target's log lacks of the others; empty if nothing."""
    if target.state != "running" or target.offset is None:
        return (
            f"{target.name} does not answer: start it (`rocketbed cluster up`), so that it gets"
            " what it lacks"
        )
    longer = []
    ends = list(ends)
    if diverged := [f"{end.name} ({end.state})" for end in ends if end.diverged]:
        return (
            f"{' and '.join(diverged)} {'has' if len(diverged) == 1 else 'have'} other messages"
            f" than {target.name} in the same place of the log: one of them lost its end and went"
            " on, and what either has may have been acknowledged. The promotion truncates what"
            f" {target.name} does not have (it is kept in rocketbed.cut): save these messages first"
        )
    for end in ends:
        if end.offset is None:
            longer.append(f"nothing can be known of the log of {end.name} ({end.state})")
        elif end.offset > target.offset:
            longer.append(f"{end.name} ({end.state}) has {end.offset} bytes of log")
    if not longer and target.unqueued:
        return (
            f"of {target.name}'s log {target.unqueued}: nobody could read these messages there,"
            " and they may have been acknowledged. A topic that was deleted and made again leaves"
            " such a queue until its master has told of it: start the master and look at"
            " `rocketbed cluster status`, or see docs/guides/cluster.md, Failover by hand"
        )
    if not longer:
        return ""
    return (
        f"{', '.join(longer)}, {target.name} only {target.offset}: what {target.name} lacks may"
        " have been acknowledged; start what is stopped and let it catch up, or promote the one"
        " that has most"
    )


def have_diverged(first: Path, second: Path, end: int) -> bool:
    """True if two logs, which both reach `end`, have different messages somewhere below it. Also
    works while processes write to them; False if the logs cannot be read. Blocks.

    A node that lost the end of its log and continued has other messages from there on. Damage does
    not count: only whole messages are compared.
    """
    try:
        with (
            closing(open_directory(first)) as first_store,
            closing(open_directory(second)) as second_store,
        ):
            logs = first_store.log, second_store.log
            low, size = max(log.min_offset for log in logs), COMPARED_BYTES
            while True:
                start = max(end - size, low)
                if _is_same(*logs, start, end):
                    return False
                first_messages, second_messages = (_messages(log, start, end) for log in logs)
                if start == low or (first_messages and second_messages):
                    return _differ(logs, first_messages, second_messages)
                size *= 2
    except (NotAStore, OSError):
        return False


def _is_same(first: CommitLog, second: CommitLog, start: int, end: int) -> bool:
    while start < end:
        first_bytes = first.read(start, min(end - start, READ_SIZE))
        second_bytes = second.read(start, len(first_bytes))
        size = min(len(first_bytes), len(second_bytes))
        if not size or first_bytes[:size] != second_bytes[:size]:
            return False
        start += size
    return True


def _messages(log: CommitLog, low: int, end: int) -> list[_Message]:
    """Return the whole messages that begin in a part of a log, and the fillers of its files
    there."""
    log.flushed_offset = None  # count messages even after bytes that a power loss has torn
    low = next((max(low, file.start) for file in log.segments if file.end > low), end)
    items = takewhile(lambda item: item.offset < end, log.scan(low))
    messages = []
    for item in items:
        if isinstance(item, Filler):
            messages.append(_Message(item.offset, item.offset + item.size, -1))
        elif isinstance(item, Scanned) and item.topic != HOLE_TOPIC:
            messages.append(_Message(item.offset, item.offset + item.size, item.store_ms))
    return messages


def _differ(
    logs: tuple[CommitLog, CommitLog], first: Sequence[_Message], second: Sequence[_Message]
) -> bool:
    """True if a message of the first log overlaps a different message of the second."""
    i, j = 0, 0
    while i < len(first) and j < len(second):
        message, counterpart = first[i], second[j]
        if message.end <= counterpart.start:
            i += 1
        elif counterpart.end <= message.start:
            j += 1
        elif message == counterpart or _differs_in_time(logs, message, counterpart):
            i, j = i + 1, j + 1
        else:
            return True
    return False


def _differs_in_time(logs: tuple[CommitLog, CommitLog], first: _Message, second: _Message) -> bool:
    """True if two messages differ only in their store time, which no checksum covers."""
    if first.start != second.start:
        return False
    first_record, second_record = (log.record_at(first.start) for log in logs)
    if not isinstance(first_record, Record) or not isinstance(second_record, Record):
        return False
    return (
        replace(first_record, store_ms=second_record.store_ms, raw=second_record.raw)
        == second_record
    )


def end_on_disk(store: Path) -> int | None:
    """Return the end of the log in a store directory, at least the offset up to which its marks say
    that it was on disk; None if it cannot be read. Works while a process writes to it. Blocks."""
    try:
        with closing(open_directory(store)) as opened:
            marks, log = opened.marks, opened.log
            end = start = log.min_offset
            if marks is not None and marks.trusted:
                end = max(end, marks.durable_offset, marks.flushed_offset or 0)
                if log.index_at(marks.durable_offset) is not None:
                    start = max(start, marks.durable_offset)
            for item in log.scan(start):
                if isinstance(item, LogEnd):
                    end = max(end, item.offset)
    except (NotAStore, OSError):
        return None
    return end


def needs_slaves(directory: Path) -> bool:
    """True if a master with these settings acknowledges only messages that a slave also has."""
    try:
        settings = read_settings(directory)
    except ClusterError:
        return False
    needed = settings.get("inSyncReplicas", "1")
    return settings.get("brokerRole") == "SYNC_MASTER" and needed.isdigit() and int(needed) > 1
