"""Records that a pull returns: limits of count and bytes, damage, and records that have expired."""

from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from rocketbed.node.store.damage import Damage, DamagedRanges
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.picker import GetResult, Picker
from rocketbed.node.store.status import GetStatus
from rocketbed.wire.message import RECORD_MIN

BLANK = (0, (1 << 31) - 1, 0)
"""A unit without a message."""
FIRST = 100
"""Queue offset of the first unit."""


class Picked(NamedTuple):
    """Result of a pull."""

    ranges: list[tuple[int, int]]
    next_offset: int
    full: bool
    last_physical: int
    expired: bool
    bad_offset: int | None


def drawn_units(random: Random) -> list[tuple[int, ...]]:
    """Physical offset, size and tag hash of each; some out of order, too short or blank."""
    units, at = list[tuple[int, ...]](), random.randrange(3)
    for _ in range(random.randrange(1, 12)):
        draw, size = random.random(), RECORD_MIN + random.choice((0, 0, 0, 1, 40))
        if draw < 0.1:
            units.append(BLANK)
            continue
        at = at - 150 if draw < 0.12 and at > 149 else at
        size = RECORD_MIN - 1 if 0.12 <= draw < 0.14 else size
        size = BLANK[1] if 0.14 <= draw < 0.16 and at else size
        units.append((at, size, random.choice((5, -7, 5 - (1 << 32), 9))))
        at += 0 if draw > 0.97 else size if draw >= 0.16 else RECORD_MIN
    return units


def expected_pick(units: list[tuple[int, ...]], parts: Any, limits: tuple[Any, ...]) -> Picked:
    """Take records one by one while the limits allow; the first one always fits."""
    config, low, written = parts.config, parts.log.min_offset, parts.log.written.value
    count_max, bytes_requested, codes = limits
    ranges, previous, last, expired = list[tuple[int, int]](), -1, -1, False
    for offset, (at, size, code) in enumerate(units, FIRST):
        if (at, size) == BLANK[:2]:
            continue
        bad = [one.start for one in parts.damaged.ranges if one.start < at + size and one.end > at]
        if size < RECORD_MIN or previous >= at:
            return Picked(ranges, offset, bool(ranges), last, expired, None if ranges else at)
        previous = at
        is_cold = config.memory_bytes and written - at > config.memory_bytes
        most = config.transfer_count_disk if is_cold else config.transfer_count_memory
        room = config.transfer_bytes_disk if is_cold else config.transfer_bytes_memory
        room = min(room, bytes_requested or config.transfer_bytes_memory)
        held = sum(size for _, size in ranges)
        if ranges and (len(ranges) + 1 > min(most, count_max) or held + size > room):
            return Picked(ranges, offset, True, last, expired, None)
        matches = codes is None or code in codes
        if matches and bad:
            return Picked(ranges, offset, bool(ranges), last, expired, None if ranges else bad[0])
        if at < low:
            expired = True
        else:
            last = at
            ranges = [*ranges, (at, size)] if matches else ranges
    return Picked(ranges, FIRST + len(units), False, last, expired, None)


@pytest.mark.parametrize("seed", range(10))
def test_returns_records_up_to_the_limits(seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        check_pull(random)


def check_pull(random: Random) -> None:
    units = drawn_units(random)
    end = max(at for at, *_ in units) + RECORD_MIN
    written = end + random.randrange(2)
    config = SimpleNamespace(
        memory_bytes=random.choice((0, 1, max(written - random.choice(units)[0], 1))),
        transfer_count_memory=random.randrange(1, 6),
        transfer_bytes_memory=random.choice((91, 182, 273, 400)),
        transfer_count_disk=random.randrange(1, 4),
        transfer_bytes_disk=random.choice((91, 182)),
    )
    damaged = DamagedRanges()
    for _ in range(random.choice((0, 0, 1, 3))):
        start = random.randrange(end)
        damaged.add(Damage(start, start + random.randrange(1, 99), "bad"))
    log = SimpleNamespace(
        min_offset=random.choice((0, 0, 91, 92)), written=SimpleNamespace(value=written)
    )
    parts: Any = SimpleNamespace(config=config, log=log, damaged=damaged)
    codes = random.choice((None, frozenset((5,)), frozenset((-7, 9)), frozenset[int]()))
    limits = random.randrange(1, 9), random.choice((None, 0, 91, 182, 1000)), codes
    result = GetResult(
        status=GetStatus.NO_MATCHED_MESSAGE, next_offset=FIRST, min_offset=0, max_offset=999
    )
    picker, bad_offset = Picker(parts, result, *limits), None
    try:
        picker.pick(units[:6])
        if not picker.full:
            picker.pick(units[6:])
    except CorruptRecord as exc:
        bad_offset = exc.offset
    expired = result.status is GetStatus.MESSAGE_WAS_REMOVING
    actual = Picked(
        result.ranges, result.next_offset, picker.full, picker.last_physical, expired, bad_offset
    )
    assert actual == expected_pick(units, parts, limits)
