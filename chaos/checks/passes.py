"""Passes over columns of rows, from which the checks are built: they judge a million rows in
seconds.

Positions are counted from 0 and returned in ascending order; sorts are stable and numbers exact. A
property test compares each pass with a plain implementation. Source: chaos.md 2.9.
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
    """Return a column of these values, without a copy where possible."""
    if isinstance(values, array) and len(values):
        return np.frombuffer(values, np.int64)
    return np.asarray(values, np.int64)


def matching(column: Column, allowed: Iterable[int]) -> Column:
    """Return the positions of values that are among `allowed`, as a column."""
    return np.flatnonzero(np.isin(column, list(allowed)))


def non_negative(column: Column) -> Column:
    """Return the positions of non-negative values, as a column."""
    return np.flatnonzero(column >= 0)


def take(column: Column, positions: Any) -> Column:
    """Return the values at these positions."""
    return column[np.asarray(positions, np.int64)]


def join(columns: Sequence[Column]) -> Column:
    return np.concatenate([*columns, np.empty(0, np.int64)])


def pack(queues: Column, offsets: Column) -> Column:
    """Return queue number and offset as one key each (`keys.pack`); -1 where either is negative, or
    damage made the offset too large."""
    invalid = (queues < 0) | (offsets < 0) | (offsets > OFFSET_MASK)
    return np.where(invalid, -1, queues << OFFSET_BITS | offsets)


def combine(high: Column, middle: Column, low: Column) -> Column:
    """Pack three non-negative numbers of 20 bits into one; -1 where one of them is negative."""
    valid = (high >= 0) & (middle >= 0) & (low >= 0)
    return np.where(valid, high << 40 | middle << 20 | low, -1)


def missing(values: Column, present: Column) -> list[int]:
    """Return the positions of values that are not among `present`."""
    return _positions(np.isin(values, present, invert=True))


def included(values: Column, present: Column) -> list[int]:
    """Return the positions of values that are among `present`."""
    return _positions(np.isin(values, present))


def lookup(keys: Column, table: Column, values: Column, default: int) -> Column:
    """Return for each key the value at the first position where `table` has that key."""
    if not len(table):
        return np.full(len(keys), default, np.int64)
    order = np.argsort(table, kind="stable")
    ranked = table[order]
    at = np.minimum(np.searchsorted(ranked, keys), len(ranked) - 1)
    return np.where(ranked[at] == keys, values[order[at]], default)


def unequal(first: Column, second: Column) -> list[int]:
    """Return the positions where the columns differ."""
    return _positions(first != second)


def below(values: Column, limits: Column | int) -> list[int]:
    """Return the positions where a value is less than its limit."""
    return _positions(values < limits)


def above(column: Column, limit: int) -> list[int]:
    """Return the positions of values greater than a limit."""
    return _positions(column > limit)


def record_ends(reported: Column, places: Column, sizes: Column, lengths: Column) -> Column:
    """Return where records end: start (as reported, else as stored) plus size; -1 if unknown.

    An unknown size is the body's length plus the least that a record needs besides.
    """
    starts = np.where(reported >= 0, reported, places)
    used = np.where(sizes >= 0, sizes, lengths + RECORD_SIZE_MIN)
    return np.where(starts >= 0, starts + used, -1)


def step(times: Column, values: Column, moments: Column) -> Column:
    """Return the value of a step function at each moment; `times` ascend, 0 before the first."""
    return np.concatenate(([0], values))[np.searchsorted(times, moments, side="right")]


def reached(levels: Sequence[Column], goals: Column) -> Column:
    """Return for each goal the number of columns that reach it."""
    return np.asarray(np.sum([level >= goals for level in levels], axis=0), np.int64)


def choose(numbers: Column, columns: Sequence[Column]) -> Column:
    """Return at each position the value of the column with that number."""
    return np.stack(columns)[numbers, np.arange(len(numbers))]


def repeated(values: Column) -> list[list[int]]:
    """Return the positions of each value that occurs more than once, by their first position."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    same = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(same):
        return []
    breaks = np.flatnonzero(np.diff(same) > 1) + 1
    runs = [order[part[0] : part[-1] + 2].tolist() for part in np.split(same, breaks) if len(part)]
    return sorted(runs)


def conflicts(keys: Column, values: Column) -> list[tuple[int, int]]:
    """Return for each key (not -1) with different values its first position, and the first one with
    another value."""
    order = np.argsort(keys, kind="stable")
    ranked, ranked_values = keys[order], values[order]
    if not len(ranked):
        return []
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    first = np.repeat(starts, np.diff(np.append(starts, len(ranked))))
    differing = np.flatnonzero((ranked_values != ranked_values[first]) & (ranked != -1))
    pairs: dict[int, tuple[int, int]] = {}
    for position in differing.tolist():
        begin = int(first[position])
        pairs.setdefault(begin, (int(order[begin]), int(order[position])))
    return sorted(pairs.values())


def overtaken(
    queues: Column, begins: Column, ends: Column, offsets: Column
) -> list[tuple[int, int]]:
    """Return pairs (a, b) of one queue where a ended before b began, and yet offset(a) >=
    offset(b).

    For each b at most one a: the one with the greatest offset (the first to end, if several have
    it).
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
    """Return for each pair the number of `keys` strictly between the two."""
    ranked = np.sort(keys)
    low = np.searchsorted(ranked, lows, side="right")
    high = np.searchsorted(ranked, highs, side="left")
    return np.asarray(np.maximum(high - low, 0))


def edges(groups: Column) -> tuple[list[int], list[int]]:
    """Return the positions of the first and the last of each group (not -1), by the group's
    first."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    if not len(ranked):
        return [], []
    change = ranked[1:] != ranked[:-1]
    firsts = order[np.concatenate(([True], change)) & (ranked != -1)]
    lasts = order[np.concatenate((change, [True])) & (ranked != -1)]
    by_first = np.argsort(firsts, kind="stable")
    return firsts[by_first].tolist(), lasts[by_first].tolist()


def staleness(keys: Column, times: Column, queried: Column, moments: Column) -> Column:
    """Return for each queried key its moment minus the first time at which a greater key of the
    same queue was known (`times` of `keys`); 0 if none was yet."""
    if not len(keys):
        return np.zeros(len(queried), np.int64)
    order = np.lexsort((times, keys))
    ranked, ranked_times = keys[order], times[order]
    queues = ranked >> OFFSET_BITS
    ends = np.append(np.flatnonzero(queues[1:] != queues[:-1]), len(ranked) - 1)
    earliest = np.empty_like(ranked_times)
    begin = 0
    for end in ends.tolist():
        part = ranked_times[begin : end + 1][::-1]
        earliest[begin : end + 1] = np.minimum.accumulate(part)[::-1]
        begin = end + 1
    at = np.searchsorted(ranked, queried, side="right")
    inside = np.minimum(at, len(ranked) - 1)
    same = (at < len(ranked)) & (queues[inside] == queried >> OFFSET_BITS)
    return np.where(same, np.maximum(moments - earliest[inside], 0), 0)


def neighbours(groups: Column) -> Column:
    """Return for each position the previous one of the same group; -1 for the first and for group
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
