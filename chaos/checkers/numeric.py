"""The passes on NumPy arrays. What each does: `passes.Passes`."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocketbed.chaos.checkers.keys import OFFSET_BITS
from rocketbed.inspect.record import RECORD_SIZE_MIN

Array = NDArray[np.int64]


def column(values: Sequence[int]) -> Array:  # noqa: D103
    if isinstance(values, array) and len(values):
        return np.frombuffer(values, np.int64)
    return np.asarray(values, np.int64)


def where(column: Array, allowed: Iterable[int]) -> Array:  # noqa: D103
    mask = np.zeros(len(column), bool)
    for value in allowed:
        mask |= column == int(value)
    return np.flatnonzero(mask)


def known(column: Array) -> Array:  # noqa: D103
    return np.flatnonzero(column >= 0)


def take(column: Array, positions: Any) -> Array:  # noqa: D103
    return column[np.asarray(positions, np.int64)]


def join(columns: Sequence[Array]) -> Array:  # noqa: D103
    return np.concatenate([*columns, np.empty(0, np.int64)])


def pack(queues: Array, offsets: Array) -> Array:  # noqa: D103
    return np.where((queues < 0) | (offsets < 0), -1, queues << OFFSET_BITS | offsets)


def combine(high: Array, middle: Array, low: Array) -> Array:  # noqa: D103
    valid = (high >= 0) & (middle >= 0) & (low >= 0)
    return np.where(valid, high << 40 | middle << 20 | low, -1)


def missing(values: Array, present: Array) -> list[int]:  # noqa: D103
    return _positions(~_among(values, present))


def found(values: Array, wanted: Array) -> list[int]:  # noqa: D103
    return _positions(_among(values, wanted))


def lookup(keys: Array, known: Array, values: Array, default: int) -> Array:  # noqa: D103
    if not len(known):
        return np.full(len(keys), default, np.int64)
    order = np.argsort(known, kind="stable")
    ranked = known[order]
    at = np.minimum(np.searchsorted(ranked, keys), len(ranked) - 1)
    return np.where(ranked[at] == keys, values[order[at]], default)


def unequal(one: Array, other: Array) -> list[int]:  # noqa: D103
    return _positions(one != other)


def below(one: Array, other: Array) -> list[int]:  # noqa: D103
    return _positions(one < other)


def above(column: Array, limit: int) -> list[int]:  # noqa: D103
    return _positions(column > limit)


def record_ends(  # noqa: D103
    said: Array, places: Array, sizes: Array, lengths: Array
) -> Array:
    starts = np.where(said >= 0, said, places)
    taken = np.where(sizes >= 0, sizes, lengths + RECORD_SIZE_MIN)
    return np.where(starts >= 0, starts + taken, -1)


def step(times: Array, values: Array, moments: Array) -> Array:  # noqa: D103
    return np.concatenate(([0], values))[np.searchsorted(times, moments, side="right")]


def reached(levels: Sequence[Array], goals: Array) -> Array:  # noqa: D103
    counts = np.zeros(len(goals), np.int64)
    for level in levels:
        counts += level >= goals
    return counts


def choose(numbers: Array, columns: Sequence[Array]) -> Array:  # noqa: D103
    return np.stack(columns)[numbers, np.arange(len(numbers))]


def repeated(values: Array) -> list[list[int]]:  # noqa: D103
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    same = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(same):
        return []
    breaks = np.flatnonzero(np.diff(same) > 1) + 1
    runs = [order[part[0] : part[-1] + 2].tolist() for part in np.split(same, breaks) if len(part)]
    return sorted(runs)


def conflicts(keys: Array, values: Array) -> list[tuple[int, int]]:  # noqa: D103
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


def overtaken(  # noqa: D103
    queues: Array, begins: Array, ends: Array, offsets: Array
) -> list[tuple[int, int]]:
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


def between(lows: Array, highs: Array, keys: Array) -> Array:  # noqa: D103
    ranked = np.sort(keys)
    low = np.searchsorted(ranked, lows, side="right")
    high = np.searchsorted(ranked, highs, side="left")
    return np.asarray(np.maximum(high - low, 0))


def edges(groups: Array) -> tuple[list[int], list[int]]:  # noqa: D103
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    if not len(ranked):
        return [], []
    change = ranked[1:] != ranked[:-1]
    firsts = order[np.concatenate(([True], change)) & (ranked != -1)]
    lasts = order[np.concatenate((change, [True])) & (ranked != -1)]
    by_first = np.argsort(firsts, kind="stable")
    return firsts[by_first].tolist(), lasts[by_first].tolist()


def staleness(  # noqa: D103
    keys: Array, times: Array, asked: Array, moments: Array
) -> Array:
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


def neighbours(groups: Array) -> Array:  # noqa: D103
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    before = np.full(len(groups), -1, np.int64)
    same = np.flatnonzero((ranked[1:] == ranked[:-1]) & (ranked[1:] != -1))
    before[order[same + 1]] = order[same]
    return before


def _among(values: Array, known: Array) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(values), bool)
    ranked = np.sort(known)
    at = np.minimum(np.searchsorted(ranked, values), len(ranked) - 1)
    return np.asarray(ranked[at] == values)


def _positions(mask: NDArray[np.bool_]) -> list[int]:
    return [int(position) for position in np.flatnonzero(mask)]
