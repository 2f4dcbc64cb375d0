"""How far the log of each node of a cluster goes, as far as that can be seen.

A node that answers says it. Of one that does not, stopped or hanging, the files tell: what was
acknowledged with its help is in its log, whatever happened to the process since.
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

LOOKED_AT: Final = 8 << 20
"""Bytes of two logs, from their common end down, of which the messages are compared; more where
none begins there."""
HOLE_TOPIC: Final = b"!"
"""Of what stands where a hole of the log was closed by an operator's order."""


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """Where the log of one node ends."""

    name: str
    offset: int | None
    """Bytes; None: nothing can be known."""
    state: str
    """How it was seen, in words: `running`, `stopped`, `not answering`."""
    unqueued: str = ""
    """Which of its messages nobody can pull there, in words; empty if there are none."""
    parted: bool = False
    """Whether it has other bytes than the node that is to be promoted, where both have some."""


class _Place(NamedTuple):
    """A whole message of a log, or a filler."""

    start: int
    end: int
    store_ms: int
    """-1 of a filler."""


def missing_in(target: KnownEnd, others: Iterable[KnownEnd]) -> str:
    """What the target lacks of the others' logs, and where it is; empty if nothing."""
    if target.state != "running" or target.offset is None:
        return (
            f"{target.name} does not answer: start it (`rocketbed cluster up`), so that it gets"
            " what it lacks"
        )
    longer = []
    others = list(others)
    if parted := [f"{other.name} ({other.state})" for other in others if other.parted]:
        return (
            f"{' and '.join(parted)} {'has' if len(parted) == 1 else 'have'} other messages than"
            f" {target.name} in the same place of the log: one of them lost its end and went on,"
            " and what either has may have been acknowledged. The promotion cuts off what"
            f" {target.name} does not have (it is kept in rocketbed.cut): save these messages first"
        )
    for other in others:
        if other.offset is None:
            longer.append(f"nothing can be known of the log of {other.name} ({other.state})")
        elif other.offset > target.offset:
            longer.append(f"{other.name} ({other.state}) has {other.offset} bytes of log")
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


def has_parted(one: Path, other: Path, end: int) -> bool:
    """Whether two logs, which both reach `end`, have different messages in a place before it, also
    while processes write to them; not where that cannot be read. Blocks.

    Whoever lost the end of its log and went on has other messages from there on. Damage is none:
    both have to be whole.
    """
    try:
        with closing(open_directory(one)) as mine, closing(open_directory(other)) as theirs:
            logs = mine.log, theirs.log
            low, size = max(log.min_offset for log in logs), LOOKED_AT
            while True:
                start = max(end - size, low)
                if _is_same(*logs, start, end):
                    return False
                left, right = (_places(log, start, end) for log in logs)
                if start == low or (left and right):
                    return _have_parted(logs, left, right)
                size *= 2
    except (NotAStore, OSError):
        return False


def _is_same(one: CommitLog, other: CommitLog, start: int, end: int) -> bool:
    while start < end:
        left = one.read(start, min(end - start, READ_SIZE))
        right = other.read(start, len(left))
        size = min(len(left), len(right))
        if not size or left[:size] != right[:size]:
            return False
        start += size
    return True


def _places(log: CommitLog, low: int, end: int) -> list[_Place]:
    """The whole messages that begin in a part of a log, and the fillers of its files there."""
    log.flushed_offset = None  # they count also where a power cut may have torn what is between
    low = next((max(low, file.start) for file in log.segments if file.end > low), end)
    found = takewhile(lambda item: item.offset < end, log.scan(low))
    places = []
    for item in found:
        if isinstance(item, Filler):
            places.append(_Place(item.offset, item.offset + item.size, -1))
        elif isinstance(item, Scanned) and item.topic != HOLE_TOPIC:  # a hole's is nobody's message
            places.append(_Place(item.offset, item.offset + item.size, item.store_ms))
    return places


def _have_parted(
    logs: tuple[CommitLog, CommitLog], one: Sequence[_Place], other: Sequence[_Place]
) -> bool:
    """Whether a message of one stands where the other has a different one, or a part of one."""
    left, right = 0, 0
    while left < len(one) and right < len(other):
        mine, theirs = one[left], other[right]
        if mine.end <= theirs.start:
            left += 1
        elif theirs.end <= mine.start:
            right += 1
        elif mine == theirs or _is_rotten(logs, mine, theirs):
            left, right = left + 1, right + 1
        else:
            return True
    return False


def _is_rotten(logs: tuple[CommitLog, CommitLog], one: _Place, other: _Place) -> bool:
    """Whether two messages differ by their time only, which no checksum covers."""
    if one.start != other.start:
        return False
    left, right = (log.record_at(one.start) for log in logs)
    if not isinstance(left, Record) or not isinstance(right, Record):
        return False
    return replace(left, store_ms=right.store_ms, raw=right.raw) == right


def end_on_disk(store: Path) -> int | None:
    """Where the log in a store directory ends, also while a process writes to it; None where that
    cannot be read. Blocks.

    At least what its own marks say was on disk once.
    """
    try:
        with closing(open_directory(store)) as opened:
            marks, log = opened.marks, opened.log
            known = start = log.min_offset
            if marks is not None and marks.trusted:
                known = max(known, marks.durable_offset, marks.flushed_offset or 0)
                if log.index_at(marks.durable_offset) is not None:
                    start = max(start, marks.durable_offset)
            for item in log.scan(start):
                if isinstance(item, LogEnd):
                    known = max(known, item.offset)
    except (NotAStore, OSError):
        return None
    return known


def needs_slaves(directory: Path) -> bool:
    """Whether a master with these settings acknowledges only what a slave has too."""
    try:
        settings = read_settings(directory)
    except ClusterError:
        return False
    needed = settings.get("inSyncReplicas", "1")
    return settings.get("brokerRole") == "SYNC_MASTER" and needed.isdigit() and int(needed) > 1
