"""Epoch histories: where each mastership began in a log, and how far two logs are the same. Pure.

Every epoch begins with its marker record, so none is empty, and two logs that hold the same
`(number, start)` are equal up to where the shorter one ends inside that epoch (replication.md 7.3).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rocketbed.replication.errors import HistoryRefused


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One mastership of a log."""

    number: int
    """Given out by the register, one higher at each election; 0 for what a log held before."""
    start: int
    """Physical offset of its marker, bytes; of epoch 0, 0."""


History = tuple[Epoch, ...]
"""Of a log, oldest first. Invariant: numbers and starts strictly rise."""


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of one epoch in one log."""

    epoch: Epoch
    end: int
    """Where the next epoch begins, or the log ends; bytes."""


def check(history: History, end: int) -> History:
    """The history itself, if it can be that of a log that ends at `end`.

    Raises `HistoryRefused`; what comes from a peer or a file goes through here.
    """
    for epoch in history:
        if epoch.number < 0 or epoch.start < 0 or epoch.start >= max(end, 1):
            raise HistoryRefused(f"{epoch} cannot be in a log that ends at {end}")
    for before, after in pairwise(history):
        if before.number >= after.number or before.start >= after.start:
            raise HistoryRefused(f"{after} cannot follow {before}")
    return history


def begun(history: History, epoch: Epoch) -> History:
    """With an epoch whose marker was appended at its start. Raises `HistoryRefused`."""
    return check((*history, epoch), epoch.start + 1)


def cut_to(history: History, end: int) -> History:
    """Of the same log, cut at `end`: an epoch without its marker is none."""
    return tuple(epoch for epoch in history if epoch.start < end)


def spans(history: History, end: int) -> Iterator[Span]:
    """The epochs of a log that ends at `end`, oldest first."""
    ends = [*(epoch.start for epoch in history[1:]), end]
    return (Span(*pair) for pair in zip(history, ends, strict=False))


def may_be_filled(history: History, cut: int, common: int, segment_size: int) -> bool:
    """Whether all that a log of this history has from `cut` to `common` may be what fills a file
    before an epoch's marker: epochs do not tell whether another log has the same there."""
    start = next((one.start for one in history if one.start >= common), None)
    if start is None or start % segment_size:
        return False
    return start - segment_size < cut <= common


def common_end(own: History, own_end: int, other: History, other_end: int) -> int | None:
    """Up to where two logs are known to be the same, bytes; None if they share no epoch.

    The newest epoch that both have tells; newer ones of either side are the other's no (KIP-279).
    """
    theirs = {span.epoch: span.end for span in spans(other, other_end)}
    for span in reversed(list(spans(own, own_end))):
        if span.epoch in theirs:
            return min(span.end, theirs[span.epoch])
    return None
