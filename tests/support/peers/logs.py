"""Bytes of a commit log, read by the format alone."""

from typing import Any

Epochs = tuple[tuple[int, int], ...]
"""Number and first offset of each epoch of a log."""


def record_ends(data: bytes, low: int = 0) -> list[int]:
    """Return the end of each record, fillers included, of a log that begins at `low`."""
    at, ends = 0, []
    while at < len(data):
        at += int.from_bytes(data[at : at + 4], "big")
        ends.append(low + at)
    return ends


def whole_end(data: bytes, limit: int) -> int:
    """Return the end of the last record that ends at or below `limit`."""
    return max((end for end in record_ends(data) if end <= limit), default=0)


def read_log(log: Any) -> tuple[int, bytes]:
    """Return the first offset of an open commit log and all its bytes."""
    low, data, piece = log.min_offset, b"", b"-"
    while piece and low + len(data) < log.written.value:  # the log may be cut meanwhile
        at = low + len(data)
        size = log.segment_size - at % log.segment_size
        piece = log.read(at, min(log.written.value - at, size))
        data += piece
    return low, data


def common_end(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int:
    """Return the offset up to which two logs agree: the end of their newest shared epoch."""
    ends: dict[tuple[int, int], int] = {}
    for history, end in ((mine, my_end), (theirs, their_end)):
        following = [*(start for _, start in history[1:]), end]
        for epoch, stop in zip(history, following, strict=False):
            ends[epoch] = min(ends.get(epoch, stop), stop)
    shared = [epoch for epoch in mine if epoch in theirs]
    return ends[shared[-1]] if shared else 0
