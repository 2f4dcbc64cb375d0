"""The passes of `chaos.checks.passes` in plain Python: what theirs are held to."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import isfunction

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.keys import OFFSET_BITS
from rocketbed.chaos.checks.keys import pack as pack_key
from rocketbed.inspect.record import RECORD_SIZE_MIN

Plain = Sequence[int]


def column(values: Sequence[int]) -> Plain:
    return values


def matching(column: Plain, allowed: Iterable[int]) -> list[int]:
    allowed_values = {int(value) for value in allowed}
    return [position for position, value in enumerate(column) if value in allowed_values]


def non_negative(column: Plain) -> list[int]:
    return [position for position, value in enumerate(column) if value >= 0]


def take(column: Plain, positions: Plain) -> list[int]:
    return [column[position] for position in positions]


def join(columns: Sequence[Plain]) -> list[int]:
    return [value for column in columns for value in column]


def pack(queues: Plain, offsets: Plain) -> list[int]:
    return [pack_key(queue, offset) for queue, offset in zip(queues, offsets, strict=True)]


def combine(high: Plain, middle: Plain, low: Plain) -> list[int]:
    return [
        -1 if one < 0 or two < 0 or three < 0 else one << 40 | two << 20 | three
        for one, two, three in zip(high, middle, low, strict=True)
    ]


def missing(values: Plain, present: Plain) -> list[int]:
    present_values = set(present)
    return [position for position, value in enumerate(values) if value not in present_values]


def included(values: Plain, present: Plain) -> list[int]:
    present_values = set(present)
    return [position for position, value in enumerate(values) if value in present_values]


def lookup(keys: Plain, table_keys: Plain, values: Plain, default: int) -> list[int]:
    table = dict(zip(reversed(table_keys), reversed(values), strict=True))
    return [table.get(key, default) for key in keys]


def unequal(first: Plain, second: Plain) -> list[int]:
    pairs = enumerate(zip(first, second, strict=True))
    return [position for position, (left, right) in pairs if left != right]


def below(first: Plain, second: Plain) -> list[int]:
    pairs = enumerate(zip(first, second, strict=True))
    return [position for position, (left, right) in pairs if left < right]


def above(column: Plain, limit: int) -> list[int]:
    return [position for position, value in enumerate(column) if value > limit]


def record_ends(starts: Plain, places: Plain, sizes: Plain, lengths: Plain) -> list[int]:
    ends: list[int] = []
    for start_known, place, size, length in zip(starts, places, sizes, lengths, strict=True):
        start = start_known if start_known >= 0 else place
        size_used = size if size >= 0 else length + RECORD_SIZE_MIN
        ends.append(start + size_used if start >= 0 else -1)
    return ends


def step(times: Plain, values: Plain, moments: Plain) -> list[int]:
    return [values[at - 1] if (at := bisect_right(times, moment)) else 0 for moment in moments]


def reached(levels: Sequence[Plain], goals: Plain) -> list[int]:
    counts = [0] * len(goals)
    for level in levels:
        for position, (value, goal) in enumerate(zip(level, goals, strict=True)):
            counts[position] += value >= goal
    return counts


def choose(numbers: Plain, columns: Sequence[Plain]) -> list[int]:
    return [columns[number][position] for position, number in enumerate(numbers)]


def repeated(values: Plain) -> list[list[int]]:
    if len(set(values)) == len(values):
        return []
    places: dict[int, list[int]] = defaultdict(list)
    for position, value in enumerate(values):
        places[value].append(position)
    return [positions for positions in places.values() if len(positions) > 1]


def conflicts(keys: Plain, values: Plain) -> list[tuple[int, int]]:
    first: dict[int, int] = {}
    conflicting: dict[int, tuple[int, int]] = {}
    for position, (key, value) in enumerate(zip(keys, values, strict=True)):
        if key == -1:
            continue
        before = first.setdefault(key, position)
        if values[before] != value and key not in conflicting:
            conflicting[key] = before, position
    return sorted(conflicting.values())


def overtaken(queues: Plain, begins: Plain, ends: Plain, offsets: Plain) -> list[tuple[int, int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for position, queue in enumerate(queues):
        members[queue].append(position)
    pairs: list[tuple[int, int]] = []
    for positions in members.values():
        by_end = sorted(positions, key=ends.__getitem__)
        sorted_ends = [ends[position] for position in by_end]
        best: list[int] = []
        for position in by_end:
            lead = best[-1] if best else position
            best.append(position if offsets[position] > offsets[lead] else lead)
        for position in positions:
            ended = bisect_left(sorted_ends, begins[position])
            if ended and offsets[best[ended - 1]] >= offsets[position]:
                pairs.append((best[ended - 1], position))
    return sorted(pairs, key=lambda pair: pair[1])


def between(lows: Plain, highs: Plain, keys: Plain) -> list[int]:
    ranked = sorted(keys)
    return [
        max(0, bisect_left(ranked, high) - bisect_right(ranked, low))
        for low, high in zip(lows, highs, strict=True)
    ]


def edges(groups: Plain) -> tuple[list[int], list[int]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, group in enumerate(groups):
        if group != -1:
            first.setdefault(group, position)
            last[group] = position
    return list(first.values()), [last[group] for group in first]


def staleness(keys: Plain, times: Plain, keys_read: Plain, moments: Plain) -> list[int]:
    ranked = sorted(zip(keys, times, strict=True))
    earliest = [0] * len(ranked)
    for position in range(len(ranked) - 1, -1, -1):
        key, time_ns = ranked[position]
        following = position + 1
        same = following < len(ranked) and ranked[following][0] >> OFFSET_BITS == key >> OFFSET_BITS
        earliest[position] = min(time_ns, earliest[following]) if same else time_ns
    sorted_keys = [key for key, _ in ranked]
    ages: list[int] = []
    for key, moment in zip(keys_read, moments, strict=True):
        at = bisect_right(sorted_keys, key)
        same = at < len(ranked) and sorted_keys[at] >> OFFSET_BITS == key >> OFFSET_BITS
        ages.append(max(0, moment - earliest[at]) if same else 0)
    return ages


def neighbours(groups: Plain) -> list[int]:
    last: dict[int, int] = {}
    before: list[int] = []
    for position, group in enumerate(groups):
        before.append(-1 if group == -1 else last.get(group, -1))
        last[group] = position
    return before


def form(*, plain: bool) -> AbstractContextManager[None]:
    """Make all checks use these passes meanwhile, if `plain` is true."""
    return _swapped() if plain else nullcontext()


@contextmanager
def _swapped() -> Iterator[None]:
    before = {name: getattr(passes, name) for name in NAMES}
    vars(passes).update({name: globals()[name] for name in NAMES})
    try:
        yield
    finally:
        vars(passes).update(before)


NAMES = tuple(
    name
    for name, value in vars(passes).items()
    if isfunction(value) and value.__module__ == passes.__name__ and not name.startswith("_")
)
