"""Damaged stretches of a log: which reads they refuse, and that there are never too many."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketbed.node.store.damage import JOIN_GAP, RANGES_MAX, SHOWN, Damage, DamagedRanges
from rocketbed.node.store.errors import CorruptRecord


def ranges(*stretches: tuple[int, int], is_readable: bool = False) -> DamagedRanges:
    damaged = DamagedRanges()
    for start, end in stretches:
        damaged.add(Damage(start, end, "bad", is_readable))
    return damaged


def places(damaged: DamagedRanges) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in damaged.ranges]


def test_record_is_refused_only_where_it_meets_damage() -> None:
    damaged = ranges((300, 400), (100, 200), (200, 250))
    assert places(damaged) == [(100, 200), (200, 250), (300, 400)]
    for offset, size, first in [(199, 1, 100), (50, 300, 100), (200, 9, 200), (250, 51, 300)]:
        hit = damaged.hit(offset, size)
        assert hit is not None
        assert hit.start == first
    for offset, size in [(0, 100), (250, 50), (400, 10), (99, 1)]:
        assert damaged.hit(offset, size) is None
        damaged.refuse(offset, size)
    with pytest.raises(CorruptRecord, match="bytes 300 to 400"):
        damaged.refuse(399)


def test_repeated_damage_is_one_range() -> None:
    damaged = ranges((100, 200), (100, 200), (150, 180), (300, 400), (180, 320))
    assert places(damaged) == [(100, 400)]
    assert damaged.count == 2


def test_hits_are_those_of_a_plain_search() -> None:
    random = Random(1)
    damaged = DamagedRanges()
    plain: list[tuple[int, int]] = []
    for _ in range(200):
        start = random.randrange(100_000)
        end = start + random.randrange(1, 300)
        damaged.add(Damage(start, end, "bad"))
        plain.append((start, end))
    for _ in range(2000):
        offset, size = random.randrange(100_000), random.randrange(1, 500)
        expected = any(offset < end and start < offset + size for start, end in plain)
        assert (damaged.hit(offset, size) is not None) is expected


def test_scattered_damage_is_joined_only_beyond_the_bound() -> None:
    damaged = ranges(*((number * 400, number * 400 + 200) for number in range(RANGES_MAX)))
    assert len(damaged.ranges) == RANGES_MAX
    assert damaged.hit(200, 200) is None
    damaged.add(Damage(RANGES_MAX * 400, RANGES_MAX * 400 + 200, "bad"))
    assert places(damaged) == [(0, RANGES_MAX * 400 + 200)]
    assert damaged.ranges[0].reason == "bad, and more behind it"
    assert damaged.hit(200, 200) is not None
    assert damaged.count == RANGES_MAX + 1


def test_distant_damage_is_bounded_and_refused() -> None:
    step = 5 * JOIN_GAP
    count = 3 * RANGES_MAX
    damaged = ranges(*((number * step, number * step + 200) for number in range(count)))
    assert len(damaged.ranges) <= RANGES_MAX
    assert damaged.count == count
    assert all(damaged.hit(number * step, 200) for number in range(count))


def test_served_record_stays_so_between_joined_ranges() -> None:
    damaged = ranges((1000, 1100), is_readable=True)
    for number in range(RANGES_MAX):
        damaged.add(Damage(2000 + number * 400, 2200 + number * 400, "bad"))
    assert places(damaged)[0] == (1000, 1100)
    assert len(damaged.ranges) == 2
    assert damaged.hit(1000, 100) is None


def test_only_the_first_are_shown() -> None:
    damaged = ranges(*((number * 10, number * 10 + 5) for number in range(SHOWN)))
    assert damaged.summary().count("-") == SHOWN
    assert damaged.summary().endswith("70-75")
    damaged.add(Damage(500, 600, "bad"))
    damaged.add(Damage(700, 800, "bad"))
    assert damaged.summary().endswith(";70-75 and 2 more")
    assert DamagedRanges().summary() == ""


stretches = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 99), st.booleans()), max_size=5)


@example([(10, 5, False), (10, 5, True)], 10, 0, 20)
@given(stretches, st.none() | st.integers(0, 400), st.integers(0, 420), st.integers(1, 60))
def test_stretches_of_one_kind_are_merged_and_cut(
    drawn: list[tuple[int, int, bool]], cut: int | None, offset: int, size: int
) -> None:
    damaged = DamagedRanges()
    for start, length, is_readable in drawn:
        damaged.add(Damage(start, start + length, f"at {start}", is_readable=is_readable))
    if cut is not None:
        damaged.cut(cut)
    for kind in (False, True):
        expected = list[tuple[int, int]]()
        for start, length, is_readable in sorted(drawn):
            end = min(start + length, 1000 if cut is None else cut)
            if is_readable != kind or start >= end:
                continue
            if expected and start < expected[-1][1]:
                expected[-1] = expected[-1][0], max(expected[-1][1], end)
            else:
                expected.append((start, end))
        actual = [(one.start, one.end) for one in damaged.ranges if one.is_readable == kind]
        assert actual == expected
        if not kind:
            hits = [start for start, end in expected if start < offset + size and offset < end]
            hit = damaged.hit(offset, size)
            assert (hit.start if hit else None) == (hits[0] if hits else None)
    assert [one.start for one in damaged.ranges] == sorted(one.start for one in damaged.ranges)
