"""Delayed messages of one level: those that are due by an unsteady clock, and their saved state."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.config_file import TableLost
from rocketbed.node.broker.delays import LOOK_S, ROUND, ROUND_BYTES, DelayOffsets, Delays
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

FOLDER = "/delays"
DELAY_S = 5
"""Delay of level 2."""


class Queue:
    """A store with a single queue of waiting messages."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        """Physical offset, size and due time of each."""
        self.low = self.min_offset = 0
        self.log = SimpleNamespace(last_store_ms=0)
        self.written, self.flushed, self.dispatched = Watermark(), Watermark(), Watermark()

    def queue_min(self, _topic: str, _queue: int) -> int:
        return self.low

    def queue_max(self, _topic: str, _queue: int) -> int:
        return len(self.rows)

    def units(self, _topic: str, queue: int, first: int, count: int) -> list[tuple[int, int, int]]:
        assert queue == 1
        return self.rows[first : first + count]


def delays_of(
    world: World, wall_ms: Callable[[], int], confirmed: Watermark | None = None
) -> tuple[Delays, Queue, list[int]]:
    """Return delays with two levels, their queue, and the counts of dropped messages."""
    queue, clock, dropped = Queue(), SimpleNamespace(wall_ms=wall_ms), list[int]()
    log = SimpleNamespace(error=lambda event, **fields: dropped.append(fields["messages"]))
    store: Any = SimpleNamespace(delay_levels="2s 5s", index_enabled=True)
    config: Any = SimpleNamespace(config_dir=FOLDER, store=store, is_slave=False, replica=None)
    changed: Any = replace(world, clock=clock, log=log)
    messages: Any = queue
    topics: Any = None
    offsets = DelayOffsets(changed, config)
    delays = Delays(changed, config, messages, topics, offsets, confirmed=confirmed)
    return delays, queue, dropped


def test_limits_the_level() -> None:
    async def check(world: World) -> None:
        delays, _, _ = delays_of(world, lambda: 0)
        assert [delays.level(number) for number in (-1, 0, 1, 2, 3)] == [0, 0, 1, 2, 2]

    run_solo(check)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_lost_table_is_needed_only_without_an_index(indexed: bool) -> None:
    async def check(world: World) -> None:
        disk: Any = world.disk
        disk.makedirs(FOLDER)
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            disk.replace_contents(f"{FOLDER}/{name}", b"{")
        events = list[str]()
        log: Any = SimpleNamespace(
            error=lambda event, reason: events.append(event), warning=lambda *_, **__: None
        )
        config: Any = SimpleNamespace(
            config_dir=FOLDER, store=SimpleNamespace(index_enabled=indexed)
        )
        table = DelayOffsets(replace(world, log=log), config)
        if indexed:
            table.load()
        else:
            with pytest.raises(TableLost):
                table.load()
        assert events == ["delays.table_lost"] * indexed

    run_solo(check)


class Model:
    """Moments at which messages were seen while the clock was behind their store times."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.sightings = queue, list[tuple[int, float]]()

    def see(self, now_s: float) -> None:
        if not self.sightings or self.sightings[-1][0] < len(self.queue.rows):
            self.sightings.append((len(self.queue.rows), now_s))

    def piece(self, at: int, now_s: float, now_ms: int) -> tuple[list[Any], int, int, float]:
        """Return the due units from `at` on, the next offset, expired ones, and the pause, s."""
        queue, high = self.queue, len(self.queue.rows)
        first = sorted((at, queue.low, high))[1] if queue.low <= high else queue.low
        if queue.log.last_store_ms > now_ms:
            self.see(now_s)
        units, expired, room, after = list[Any](), max(queue.low - at, 0), 0, first
        for number, (physical, size, due_ms) in enumerate(queue.rows[first : first + ROUND + 1]):
            late = [seen_s for end, seen_s in self.sightings if end > after]
            left_s = (due_ms - now_ms) / 1000
            if not late and left_s > DELAY_S:
                self.see(now_s)
                late = [now_s]
            left_s = min([left_s, *(seen_s + DELAY_S - now_s for seen_s in late[:1])])
            if left_s > 0:
                return units, after, expired, min(LOOK_S, left_s)
            room += size
            if len(units) == ROUND or (units and room > ROUND_BYTES):
                return units, after, expired, 0
            if physical < queue.min_offset:
                expired += 1
            else:
                units.append((after, physical, size))
            after += 1
            if number == ROUND and after < high:
                return units, after, expired, 0
        return units, after, expired, 0 if first < after < high else LOOK_S


async def check_due(world: World, random: Random) -> None:
    back_ms, dropped = 0, 0

    def wall_ms() -> int:
        return 10_000_000 + round(trio.current_time() * 1000) - back_ms

    delays, queue, reports = delays_of(world, wall_ms)
    model, at = Model(queue), 0
    delays._next[2] = at
    for _ in range(30):
        for _ in range(random.choice((0, 1, 2, 3, 130) if len(queue.rows) < 300 else (0, 1))):
            large = (ROUND_BYTES // 2, ROUND_BYTES, ROUND_BYTES + 1)
            size = random.choice((100, 100, 100, 100, *large))
            queue.rows.append((queue.written.value, size, wall_ms() + DELAY_S * 1000))
            queue.written.advance(queue.written.value + size)
            queue.log.last_store_ms = max(queue.log.last_store_ms, wall_ms())
        if random.random() < 0.1:
            back_ms += random.choice((1, 3000, 90_000))
        if random.random() < 0.2 and queue.rows:
            gone = random.randrange(at, min(at + 4, len(queue.rows)) + 1)
            queue.min_offset = queue.rows[gone - 1][0] + 1 if gone else 0
            queue.low = max(queue.low, gone if random.random() < 0.5 else queue.low)
        units, after, expired, pause_s = model.piece(at, trio.current_time(), wall_ms())
        piece = delays._due_messages(2)
        assert (piece.units, piece.after, piece.expired) == (units, after, expired)
        assert piece.wait_s == pytest.approx(pause_s, abs=1e-6)
        delays._tell_expired(2, piece)
        dropped += expired
        assert delays.dropped == dropped == sum(reports)
        count = min(len(queue.rows), random.randrange(1, 4))
        if damaged := sorted(random.sample(range(len(queue.rows)), count)):
            piece = delays._read_again(2, damaged)
            remaining = [one for one in damaged if queue.rows[one][0] >= queue.min_offset]
            assert piece.units == [(one, *queue.rows[one][:2]) for one in remaining]
            assert (piece.after, piece.expired) == (damaged[-1] + 1, 0)
        at = delays._next[2] = piece.after if not damaged else after
        await trio.sleep(random.choice((0, 0.25, 1, pause_s, DELAY_S)))


@pytest.mark.parametrize("seed", range(8))
def test_takes_due_messages_in_order(seed: int) -> None:
    assert run_solo(check_due, Random(seed)).outcome == "ended"


@pytest.mark.parametrize("confirmed_first", [False, True])
def test_saves_once_the_log_is_on_disk_and_confirmed(confirmed_first: bool) -> None:
    async def check(world: World) -> None:
        disk: Any = world.disk
        confirmed, ends = Watermark(), list[float]()
        delays, queue, _ = delays_of(world, lambda: 1000, confirmed)
        await delays.save()
        assert not disk.exists(f"{FOLDER}/delayOffset.json")
        queue.written.advance(100)
        delays._next, delays._unread = {1: 0, 2: 7}, {1: [], 2: [3, 1]}
        delays._damaged = {2: [3, 5]}

        async def save() -> None:
            await delays.save()
            ends.append(trio.current_time())

        begin, marks = trio.current_time(), [queue.flushed, confirmed]
        first, last = reversed(marks) if confirmed_first else marks
        async with trio.open_nursery() as nursery:
            nursery.start_soon(save)
            for mark, value in ((first, 99), (last, 99), (first, 100), (last, 100)):
                await trio.sleep(1)
                assert not ends
                mark.advance(value)
        assert round(ends[0] - begin) == 4
        table = delays._offsets.stored()
        assert (table.offset_table, table.rb_damaged) == ({2: 7}, {2: [1, 3, 5]})
        queue.written.advance(200)
        events = disk.events
        await delays.save()
        assert disk.events == events

    run_solo(check)
