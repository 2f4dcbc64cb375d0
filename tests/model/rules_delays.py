"""Delayed messages of one level by themselves: which are due, at what time of which clock, and when
what was delivered is written down.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import trio

from rocketbed.node.broker.config_file import TableLost
from rocketbed.node.broker.delays import LOOK_S, ROUND, ROUND_BYTES, DelayOffsets, Delays
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

DIRECTORY: Final = "/rules"
LEVELS: Final = "2s 5s"
DELAY_S: Final = 5
"""Of level 2."""


class _Queue:
    """As much of a store as delivery asks: one queue of messages that wait."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.low = self.min_offset = 0
        self.log = SimpleNamespace(last_store_ms=0)
        self.written, self.flushed = Watermark(), Watermark()
        self.dispatched = Watermark()

    def queue_min(self, _topic: str, _queue: int) -> int:
        return self.low

    def queue_max(self, _topic: str, _queue: int) -> int:
        return len(self.rows)

    def units(self, _topic: str, queue: int, first: int, count: int) -> list[tuple[int, int, int]]:
        assert queue == 1, f"delay: queue {queue} of level 2 is asked"
        return self.rows[first : first + count]


def _delays(
    world: World, wall_ms: Callable[[], int], confirmed: Watermark | None, folder: str = DIRECTORY
) -> tuple[Delays, _Queue, Any]:
    queue, clock = _Queue(), SimpleNamespace(wall_ms=wall_ms)
    told = list[int]()
    log = SimpleNamespace(error=lambda event, **fields: told.append(fields.get("messages", 0)))
    store: Any = SimpleNamespace(delay_levels=LEVELS, index_enabled=True)
    config: Any = SimpleNamespace(config_dir=folder, store=store, is_slave=False, replica=None)
    other: Any = replace(world, clock=clock, log=log)
    topics: Any = None
    fake: Any = queue
    found = Delays(other, config, fake, topics, DelayOffsets(other, config), confirmed=confirmed)
    return found, queue, told


async def ask_delays(world: World, random: Random) -> None:
    for _ in range(6):
        await _due(world, random)
    for number, is_confirmed_first in enumerate((False, True)):
        await _saved(world, f"{DIRECTORY}/{number}", is_confirmed_first=is_confirmed_first)
    delays, _, _ = _delays(world, lambda: 0, None)
    _table_lost(world)
    levels = [delays.level(asked) for asked in (-1, 0, 1, 2, 3)]
    assert levels == [0, 0, 1, 2, 2], f"delay: levels {levels}"
    assert [delays.delay_ms(1), delays.delay_ms(2)] == [2000, 5000], "delay: of the levels"


def _table_lost(world: World) -> None:
    """What it said is in the log too, for who has an index: he tells of it and goes on."""
    disk: Any = world.disk
    folder = f"{DIRECTORY}/lost"
    disk.makedirs(folder)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        disk.replace_contents(f"{folder}/{name}", b"{")
    for indexed in (False, True):
        told = list[str]()
        log: Any = SimpleNamespace(
            error=lambda event, reason, told=told: told.append(event),
            warning=lambda event, **fields: None,
        )
        store = SimpleNamespace(index_enabled=indexed)
        config: Any = SimpleNamespace(config_dir=folder, store=store)
        table = DelayOffsets(replace(world, log=log), config)
        try:
            table.load()
            is_told = told == ["delays.table_lost"]
        except TableLost:
            is_told = not told
            assert not indexed, "delay: a start is refused for a table that the log has too"
        else:
            assert indexed, "delay: a start without positions that only the table had"
        assert is_told, f"delay: of a lost table: {told}"


async def _due(world: World, random: Random) -> None:
    """In order, when their time is there; where the clock says that this is too far, once they
    waited for their delay since they were seen."""
    back = [0]

    def wall_ms() -> int:
        return 10_000_000 + round(trio.current_time() * 1000) - back[0]

    delays, queue, told = _delays(world, wall_ms, None)
    at, dropped, seen = 0, 0, list[tuple[int, float]]()
    delays._next[2] = at
    for _ in range(30):
        for _ in range(random.choice((0, 1, 2, 3, 130) if len(queue.rows) < 300 else (0, 1))):
            size = random.choice(
                (100, 100, 100, 100, ROUND_BYTES // 2, ROUND_BYTES, ROUND_BYTES + 1)
            )
            due_ms = wall_ms() + DELAY_S * 1000
            queue.rows.append((queue.written.value, size, due_ms))
            queue.written.advance(queue.written.value + size)
            queue.log.last_store_ms = max(queue.log.last_store_ms, wall_ms())
        if random.random() < 0.1:
            back[0] += random.choice((1, 3000, 90_000))
        if random.random() < 0.2 and queue.rows:
            gone = random.randrange(at, min(at + 4, len(queue.rows)) + 1)
            queue.min_offset = queue.rows[gone - 1][0] + 1 if gone else 0
            queue.low = max(queue.low, gone if random.random() < 0.5 else queue.low)
        now_s, now_ms, high = trio.current_time(), wall_ms(), len(queue.rows)
        first = sorted((at, queue.low, high))[1] if queue.low <= high else queue.low
        if queue.log.last_store_ms > now_ms and (not seen or seen[-1][0] < high):
            seen.append((high, now_s))
        units, expired, wait_s, room, after = list[Any](), max(queue.low - at, 0), LOOK_S, 0, first
        for number, (physical, size, due_ms) in enumerate(queue.rows[first : first + ROUND + 1]):
            late = [came for end, came in seen if end > after]
            left_s = (due_ms - now_ms) / 1000
            if not late and left_s > DELAY_S:
                if not seen or seen[-1][0] < high:
                    seen.append((high, now_s))
                late = [now_s]
            left_s = min([left_s, *(came + DELAY_S - now_s for came in late[:1])])
            if left_s > 0:
                wait_s = min(LOOK_S, left_s)
                break
            room += size
            if len(units) == ROUND or (units and room > ROUND_BYTES):
                wait_s = 0
                break
            if physical < queue.min_offset:
                expired += 1
            else:
                units.append((after, physical, size))
            after += 1
            if number == ROUND and after < high:
                wait_s = 0
        else:
            wait_s = 0 if after > first and after < high else wait_s
        piece = delays._due_messages(2)
        found = piece.units, piece.after, piece.expired
        assert found == (units, after, expired), f"delay: {found}: {units}, {after}, {expired}"
        assert abs(piece.wait_s - wait_s) < 1e-6, f"delay: a pause of {piece.wait_s} for {wait_s}"
        delays._tell_expired(2, piece)
        dropped += expired
        assert delays.dropped == dropped == sum(told), f"delay: {dropped} are gone, {told}"
        owed = sorted(random.sample(range(high), min(high, random.randrange(1, 4))))
        if owed:
            again = delays._read_again(2, owed)
            there = [one for one in owed if queue.rows[one][0] >= queue.min_offset]
            want = [(one, *queue.rows[one][:2]) for one in there]
            told_owed = again.units, again.after, again.expired
            assert told_owed == (want, owed[-1] + 1, 0), f"delay: {told_owed} for {owed}"
        at = delays._next[2] = piece.after
        await trio.sleep(random.choice((0, 0.25, 1, piece.wait_s, DELAY_S)))


async def _saved(world: World, folder: str, *, is_confirmed_first: bool) -> None:
    """Once all of the log that there was is on disk, and enough others have it, whichever comes
    first; not before."""
    disk: Any = world.disk
    confirmed = Watermark()
    delays, queue, _ = _delays(world, lambda: 1000, confirmed, folder)
    path = f"{folder}/delayOffset.json"
    await delays.save()
    assert not disk.exists(path), "delay: what is not there is saved"
    queue.written.advance(100)
    delays._next, delays._unread = {1: 0, 2: 7}, {1: [], 2: [3, 1]}
    delays._damaged = {2: [3, 5]}
    ends = list[float]()

    async def save() -> None:
        await delays.save()
        ends.append(trio.current_time())

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(save)
        first, last = queue.flushed, confirmed
        if is_confirmed_first:
            first, last = last, first
        for mark, value in ((first, 99), (last, 99), (first, 100), (last, 100)):
            await trio.sleep(1)
            assert not ends, f"delay: saved when {mark.value} were held of 100"
            mark.advance(value)
    assert round(ends[0] - begin) == 4, f"delay: saved after {ends[0] - begin} s"
    stored = delays._offsets.stored()
    told = stored.offset_table, stored.rb_damaged
    assert told == ({2: 7}, {2: [1, 3, 5]}), f"delay: {told} is saved"
    queue.written.advance(200)
    events = disk.events
    await delays.save()
    assert disk.events == events, "delay: what is known is saved again"
