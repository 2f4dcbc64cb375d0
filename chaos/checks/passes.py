"""The passes over rows that the checks are made of: a run of a million rows is judged in seconds.

Positions are counted from 0 and returned in rising order; sorts are stable and numbers are exact.
A property test holds each pass to a plain form of it. Source: chaos.md 2.9.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK
from rocketbed.inspect.record import RECORD_SIZE_MIN

Column = NDArray[np.int64]
"""A column of 64-bit integers."""


def column(values: Sequence[int]) -> Column:
    """A column of these values, without a copy where that is possible."""
    if isinstance(values, array) and len(values):
        return np.frombuffer(values, np.int64)
    return np.asarray(values, np.int64)


def where(column: Column, allowed: Iterable[int]) -> Column:
    """Positions of the values that are among `allowed`, as a column."""
    return np.flatnonzero(np.isin(column, list(allowed)))


def known(column: Column) -> Column:
    """Positions of values that are not negative, as a column."""
    return np.flatnonzero(column >= 0)


def take(column: Column, positions: Any) -> Column:
    """The values at these positions."""
    return column[np.asarray(positions, np.int64)]


def join(columns: Sequence[Column]) -> Column:
    return np.concatenate([*columns, np.empty(0, np.int64)])


def pack(queues: Column, offsets: Column) -> Column:
    """Queue number and offset as one key each (`keys.pack`); -1 where either is negative, or the
    offset is too large, as damage may have it (seed 1281009)."""
    none = (queues < 0) | (offsets < 0) | (offsets > OFFSET_MASK)
    return np.where(none, -1, queues << OFFSET_BITS | offsets)


def combine(high: Column, middle: Column, low: Column) -> Column:
    """Three small non-negative numbers as one: 20, 20 and 20 bits; -1 where one is negative."""
    valid = (high >= 0) & (middle >= 0) & (low >= 0)
    return np.where(valid, high << 40 | middle << 20 | low, -1)


def missing(values: Column, present: Column) -> list[int]:
    """Positions of values that are not among `present`."""
    return _positions(np.isin(values, present, invert=True))


def found(values: Column, wanted: Column) -> list[int]:
    """Positions of values that are among `wanted`."""
    return _positions(np.isin(values, wanted))


def lookup(keys: Column, known: Column, values: Column, default: int) -> Column:
    """For each key the value that stands beside its first occurrence in `known`."""
    if not len(known):
        return np.full(len(keys), default, np.int64)
    order = np.argsort(known, kind="stable")
    ranked = known[order]
    at = np.minimum(np.searchsorted(ranked, keys), len(ranked) - 1)
    return np.where(ranked[at] == keys, values[order[at]], default)


def unequal(one: Column, other: Column) -> list[int]:
    """Positions where the columns differ."""
    return _positions(one != other)


def below(one: Column, other: Column | int) -> list[int]:
    """Positions where the value of `one` is less than that of `other`, or than a limit."""
    return _positions(one < other)


def above(column: Column, limit: int) -> list[int]:
    """Positions of values greater than a limit."""
    return _positions(column > limit)


def record_ends(said: Column, places: Column, sizes: Column, lengths: Column) -> Column:
    """Where records end: from where they stand (as said, else as found) and their sizes; an
    unknown size is the body's length and the least that a record has besides. -1: unknown."""
    starts = np.where(said >= 0, said, places)
    taken = np.where(sizes >= 0, sizes, lengths + RECORD_SIZE_MIN)
    return np.where(starts >= 0, starts + taken, -1)


def step(times: Column, values: Column, moments: Column) -> Column:
    """The value of a step function at moments; `times` rise, 0 before the first."""
    return np.concatenate(([0], values))[np.searchsorted(times, moments, side="right")]


def reached(levels: Sequence[Column], goals: Column) -> Column:
    """For each goal how many of the columns are not below it."""
    return np.asarray(np.sum([level >= goals for level in levels], axis=0), np.int64)


def choose(numbers: Column, columns: Sequence[Column]) -> Column:
    """At each position the value of the column with that number."""
    return np.stack(columns)[numbers, np.arange(len(numbers))]


def repeated(values: Column) -> list[list[int]]:
    """Positions of each value that stands more than once; by their first position."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    same = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(same):
        return []
    breaks = np.flatnonzero(np.diff(same) > 1) + 1
    runs = [order[part[0] : part[-1] + 2].tolist() for part in np.split(same, breaks) if len(part)]
    return sorted(runs)


def conflicts(keys: Column, values: Column) -> list[tuple[int, int]]:
    """For each key (not -1) with different values: its first position, and the first one with
    another value."""
    order = np.argsort(keys, kind="stable")
    ranked, beside = keys[order], values[order]
    if not len(ranked):
        return []
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    first = np.repeat(starts, np.diff(np.append(starts, len(ranked))))
    wrong = np.flatnonzero((beside != beside[first]) & (ranked != -1))
    pairs: dict[int, tuple[int, int]] = {}
    for position in wrong.tolist():
        begin = int(first[position])
        pairs.setdefault(begin, (int(order[begin]), int(order[position])))
    return sorted(pairs.values())


def overtaken(
    queues: Column, begins: Column, ends: Column, offsets: Column
) -> list[tuple[int, int]]:
    """Pairs (a, b) of one queue where a ended before b began, and yet offset(a) >= offset(b).

    For each b at most one a, the one with the greatest offset (the first to end of several).
    """
    pairs: list[tuple[int, int]] = []
    by_queue = np.argsort(queues, kind="stable")
    ranked = queues[by_queue]
    cuts = np.flatnonzero(ranked[1:] != ranked[:-1]) + 1
    for members in np.split(by_queue, cuts):
        if not len(members):
            continue
        by_end = members[np.argsort(ends[members], kind="stable")]
        best = np.maximum.accumulate(offsets[by_end])
        ended = np.searchsorted(ends[by_end], begins[members], side="left")
        for number in np.flatnonzero(ended > 0)[
            best[ended[ended > 0] - 1] >= offsets[members[ended > 0]]
        ].tolist():
            greatest = best[ended[number] - 1]
            leader = int(np.argmax(offsets[by_end] == greatest))
            pairs.append((int(by_end[leader]), int(members[number])))
    return sorted(pairs, key=lambda pair: pair[1])


def between(lows: Column, highs: Column, keys: Column) -> Column:
    """For each pair how many of the `keys` lie strictly between the two."""
    ranked = np.sort(keys)
    low = np.searchsorted(ranked, lows, side="right")
    high = np.searchsorted(ranked, highs, side="left")
    return np.asarray(np.maximum(high - low, 0))


def edges(groups: Column) -> tuple[list[int], list[int]]:
    """Positions of the first and of the last of each group (not -1), by group's first."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    if not len(ranked):
        return [], []
    change = ranked[1:] != ranked[:-1]
    firsts = order[np.concatenate(([True], change)) & (ranked != -1)]
    lasts = order[np.concatenate((change, [True])) & (ranked != -1)]
    by_first = np.argsort(firsts, kind="stable")
    return firsts[by_first].tolist(), lasts[by_first].tolist()


def staleness(keys: Column, times: Column, asked: Column, moments: Column) -> Column:
    """For each asked key: its moment less the time at which a greater key of the same queue
    was first known (`times` of `keys`); 0 where none was, or later."""
    if not len(keys):
        return np.zeros(len(asked), np.int64)
    order = np.lexsort((times, keys))
    ranked, known = keys[order], times[order]
    queues = ranked >> OFFSET_BITS
    ends = np.append(np.flatnonzero(queues[1:] != queues[:-1]), len(ranked) - 1)
    earliest = np.empty_like(known)
    begin = 0
    for end in ends.tolist():
        part = known[begin : end + 1][::-1]
        earliest[begin : end + 1] = np.minimum.accumulate(part)[::-1]
        begin = end + 1
    at = np.searchsorted(ranked, asked, side="right")
    inside = np.minimum(at, len(ranked) - 1)
    same = (at < len(ranked)) & (queues[inside] == asked >> OFFSET_BITS)
    return np.where(same, np.maximum(moments - earliest[inside], 0), 0)


def neighbours(groups: Column) -> Column:
    """For each position the one before it in the same group; -1 for the first and for group
    -1."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    before = np.full(len(groups), -1, np.int64)
    same = np.flatnonzero((ranked[1:] == ranked[:-1]) & (ranked[1:] != -1))
    before[order[same + 1]] = order[same]
    return before


def _positions(mask: NDArray[np.bool_]) -> list[int]:
    positions: list[int] = np.flatnonzero(mask).tolist()
    return positions
