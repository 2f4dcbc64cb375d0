"""Epoch histories: the start of each leader's part of a log, and the common part of two logs. Pure.

Every epoch begins with its marker record, so none is empty, and two logs that hold the same
`(number, start)` are equal up to the end of the shorter one inside that epoch (replication.md 7.3).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rocketbed.replication.errors import HistoryRefused


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """Part of a log that one leader wrote."""

    number: int
    """Assigned by the register, one higher at each election; 0 for what a log held before."""
    start: int
    """Physical offset of its marker, bytes; of epoch 0, 0."""


History = tuple[Epoch, ...]
"""Of a log, oldest first. Invariant: numbers and starts strictly rise."""


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of one epoch in one log."""

    epoch: Epoch
    end: int
    """Start of the next epoch, or end of the log; bytes."""


def check(history: History, end: int) -> History:
    """Return the history itself, if it can be that of a log that ends at `end`.

    Raises `HistoryRefused`; used for every history from a peer or a file.
    """
    for epoch in history:
        if epoch.number < 0 or epoch.start < 0 or epoch.start >= max(end, 1):
            raise HistoryRefused(f"{epoch} cannot be in a log that ends at {end}")
    for before, after in pairwise(history):
        if before.number >= after.number or before.start >= after.start:
            raise HistoryRefused(f"{after} cannot follow {before}")
    return history


def begun(history: History, epoch: Epoch) -> History:
    """Add an epoch whose marker was appended at its start. Raises `HistoryRefused`."""
    return check((*history, epoch), epoch.start + 1)


def cut_to(history: History, end: int) -> History:
    """Return the history of the same log, cut at `end`: an epoch without its marker is dropped."""
    return tuple(epoch for epoch in history if epoch.start < end)


def spans(history: History, end: int) -> Iterator[Span]:
    """Return the epochs of a log that ends at `end`, oldest first."""
    ends = [*(epoch.start for epoch in history[1:]), end]
    return (Span(*pair) for pair in zip(history, ends, strict=False))


def may_be_filled(history: History, cut: int, common: int, segment_size: int) -> bool:
    """True if the whole range of a log with this history from `cut` to `common` may be a filler
    before an epoch's marker: epochs do not show whether another log has the same there."""
    start = next((epoch.start for epoch in history if epoch.start >= common), None)
    if start is None or start % segment_size:
        return False
    return start - segment_size < cut <= common


def common_end(own: History, own_end: int, peer: History, peer_end: int) -> int | None:
    """Return the offset up to which two logs are known to be the same, bytes; None if they share no
    epoch.

    Their newest common epoch decides; newer epochs are on one side only (KIP-279).
    """
    theirs = {span.epoch: span.end for span in spans(peer, peer_end)}
    for span in reversed(list(spans(own, own_end))):
        if span.epoch in theirs:
            return min(span.end, theirs[span.epoch])
    return None
