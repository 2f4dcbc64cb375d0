"""Unique keys and client ids, in Java's layout (wire.md 4.6, 6.1)."""

import re
from typing import Any

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.client.ids import UniqueKeys, client_id
from rocketbed.world.api import World


class Clock:
    """A wall clock that a test sets."""

    def __init__(self, now_ms: int, offset_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def utc_offset_ms(self) -> int:
        return self.offset_ms

    def monotonic(self) -> float:
        return 0.0


def with_world(use: Any, clock: Clock | None = None) -> Any:
    from dataclasses import replace

    async def main(world: World) -> Any:
        return use(world if clock is None else replace(world, clock=clock))

    return run_solo(main).value


MARCH_2 = 1_772_409_600_000
"""2026-03-02 00:00 UTC."""
DAY = 86_400_000


def test_layout_of_an_ipv4_key() -> None:
    def use(world: World) -> None:
        key = UniqueKeys(world, "10.0.0.9").next()
        assert re.fullmatch(r"[0-9A-F]{32}", key)
        assert key[:8] == "0A000009"
        assert int(key[8:12], 16) == world.process.pid & 0xFFFF
        assert int(key[20:28], 16) == DAY + 5
        assert key[28:] == "0000"

    with_world(use, Clock(MARCH_2 + 5))


def test_an_ipv6_host_makes_56_characters() -> None:
    key = with_world(lambda world: UniqueKeys(world, "fd00::2").next())
    assert len(key) == 56
    assert key.startswith("FD000000000000000000000000000002")


def test_the_month_is_the_local_one() -> None:
    def use(world: World) -> str:
        return UniqueKeys(world, "10.0.0.9").next()

    local = with_world(use, Clock(MARCH_2 - DAY - 3_600_000, 2 * 3_600_000))
    assert int(local[20:28], 16) == 3_600_000


def test_new_month_begins_at_zero_and_december_ends() -> None:
    clock = Clock(1_798_761_599_999)  # 2026-12-31 23:59:59.999 UTC

    def use(world: World) -> list[int]:
        keys = UniqueKeys(world, "10.0.0.9")
        counters = []
        for step in (0, 1, 1):
            clock.now_ms += step
            counters.append(int(keys.next()[20:28], 16))
        return counters

    assert with_world(use, clock) == [31 * DAY - 1, 0, 1]


def test_clock_before_the_month_counts_as_its_start() -> None:
    clock = Clock(MARCH_2 - DAY)

    def use(world: World) -> int:
        keys = UniqueKeys(world, "10.0.0.9")
        keys.next()
        clock.now_ms -= 5000
        return int(keys.next()[20:28], 16)

    assert with_world(use, clock) == 0


def test_keys_differ_within_a_millisecond_and_between_producers() -> None:
    def use(world: World) -> list[str]:
        makers = [UniqueKeys(world, "10.0.0.9") for _ in range(3)]
        return [maker.next() for _ in range(20_000) for maker in makers]

    keys = with_world(use, Clock(MARCH_2))
    assert len(set(keys)) == 60_000


def test_client_id() -> None:
    first, second = with_world(lambda world: [client_id(world, "10.0.0.9") for _ in range(2)])
    assert re.fullmatch(r"10\.0\.0\.9@\d+#\d+", first)
    assert first != second
