"""Damaged stretches of a log: which reads they refuse, and that there are never too many."""

from random import Random

import pytest

from rocketbed.node.store.damage import JOIN_GAP, RANGES_MAX, SHOWN, Damage, DamagedRanges
from rocketbed.node.store.errors import CorruptRecord


def ranges(*stretches: tuple[int, int], is_readable: bool = False) -> DamagedRanges:
    made = DamagedRanges()
    for start, end in stretches:
        made.add(Damage(start, end, "bad", is_readable))
    return made


def places(made: DamagedRanges) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in made.ranges]


def test_a_record_is_refused_only_where_it_meets_damage() -> None:
    made = ranges((300, 400), (100, 200), (200, 250))
    assert places(made) == [(100, 200), (200, 250), (300, 400)]
    for offset, size, first in [(199, 1, 100), (50, 300, 100), (200, 9, 200), (250, 51, 300)]:
        hit = made.hit(offset, size)
        assert hit is not None
        assert hit.start == first
    for offset, size in [(0, 100), (250, 50), (400, 10), (99, 1)]:
        assert made.hit(offset, size) is None
        made.refuse(offset, size)
    with pytest.raises(CorruptRecord, match="bytes 300 to 400"):
        made.refuse(399)


def test_what_is_found_again_is_one_stretch() -> None:
    made = ranges((100, 200), (100, 200), (150, 180), (300, 400), (180, 320))
    assert places(made) == [(100, 400)]
    assert made.count == 2


def test_hits_are_those_of_a_plain_search() -> None:
    random = Random(1)
    made = DamagedRanges()
    plain: list[tuple[int, int]] = []
    for _ in range(200):
        start = random.randrange(100_000)
        end = start + random.randrange(1, 300)
        made.add(Damage(start, end, "bad"))
        plain.append((start, end))
    for _ in range(2000):
        offset, size = random.randrange(100_000), random.randrange(1, 500)
        expected = any(offset < end and start < offset + size for start, end in plain)
        assert (made.hit(offset, size) is not None) is expected


def test_scattered_damage_is_joined_only_beyond_the_bound() -> None:
    made = ranges(*((number * 400, number * 400 + 200) for number in range(RANGES_MAX)))
    assert len(made.ranges) == RANGES_MAX
    assert made.hit(200, 200) is None
    made.add(Damage(RANGES_MAX * 400, RANGES_MAX * 400 + 200, "bad"))
    assert places(made) == [(0, RANGES_MAX * 400 + 200)]
    assert made.ranges[0].reason == "bad, and more behind it"
    assert made.hit(200, 200) is not None
    assert made.count == RANGES_MAX + 1


def test_damage_far_apart_is_bounded_too_and_all_of_it_is_refused() -> None:
    step = 5 * JOIN_GAP
    count = 3 * RANGES_MAX
    made = ranges(*((number * step, number * step + 200) for number in range(count)))
    assert len(made.ranges) <= RANGES_MAX
    assert made.count == count
    assert all(made.hit(number * step, 200) for number in range(count))


def test_a_record_that_is_served_stays_so_between_joined_stretches() -> None:
    made = ranges((1000, 1100), is_readable=True)
    for number in range(RANGES_MAX):
        made.add(Damage(2000 + number * 400, 2200 + number * 400, "bad"))
    assert places(made)[0] == (1000, 1100)
    assert len(made.ranges) == 2
    assert made.hit(1000, 100) is None


def test_only_the_first_are_shown() -> None:
    made = ranges(*((number * 10, number * 10 + 5) for number in range(SHOWN)))
    assert made.summary().count("-") == SHOWN
    assert made.summary().endswith("70-75")
    made.add(Damage(500, 600, "bad"))
    made.add(Damage(700, 800, "bad"))
    assert made.summary().endswith(";70-75 and 2 more")
    assert DamagedRanges().summary() == ""
