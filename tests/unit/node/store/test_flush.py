"""Flush of a log: its moment, the order of its steps, the recorded end, and failing disks."""

import errno
import math
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.errors import StoreFailed
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.flush import LOOK_S, PAGE, Flusher
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

SIZE = 1 << 15
FOLDER = "/l"
TICK_S = 1 / 64
INTERVAL, THOROUGH = 0.5 / TICK_S, 1.99 / TICK_S
"""In ticks; the two never fall together."""
SYNC = 3 + 1 / 8
"""Ticks that a sync takes: rarely does it end at a write."""
TRANSIENT = errno.EMFILE


class Stage:
    """A log without files that notes what the flusher does."""

    def __init__(self, random: Random, **changes: Any) -> None:
        self.done = list[tuple[Any, ...]]()
        self.nameless, self.short, self.dirty = set[int](), set[int](), set[int]()
        self.lost_name: str | None = None
        self.looks = self.warnings = 0
        self.written_during_sync = 0
        self.sync_s = self.now_s = 0.0
        self.mark_error = 0
        """Errno of the write of the flushed mark."""
        low = SIZE * random.randrange(3)
        self.written, self.flushed, self.dispatched = Watermark(low), Watermark(low), Watermark(low)
        self.failure = Failure()
        values = {
            "sync_flush": random.random() < 0.5, "is_slave": random.random() < 0.5, "root": "/r",
            "flush_interval_ms": 500, "flush_thorough_interval_ms": 1990,
            "flush_least_pages": random.choice((0, 1, 3)),
            "dirty_max": random.choice((20_000, 100_001)),
        }  # fmt: skip
        self.config: Any = SimpleNamespace(**(values | changes))
        segments = SimpleNamespace(
            dirty=self.dirty, sync=self._sync, path=str, size=SIZE, directory=FOLDER,
            file=lambda at: SimpleNamespace(
                has_name=lambda: at not in self.nameless, size=lambda: SIZE - (at in self.short)
            ),
        )  # fmt: skip
        self.log: Any = SimpleNamespace(
            written=self.written, flushed=self.flushed, segments=segments, min_offset=low
        )
        self.mark = SimpleNamespace(first=0, offset=0)
        parts: Any = SimpleNamespace(
            config=self.config, log=self.log, failure=self.failure, dispatched=self.dispatched,
            marks=SimpleNamespace(mark=self.mark, store_flushed=self._store_mark),
            pool=SimpleNamespace(sync_names=self._sync_names, lost_name=self._look),
            world=SimpleNamespace(
                clock=SimpleNamespace(monotonic=lambda: self.now_s),
                log=SimpleNamespace(warning=self._warn),
            ),
        )  # fmt: skip
        self.flusher = Flusher(parts)

    def write(self, count: int) -> None:
        begin, end = self.written.value, self.written.value + count
        self.dirty |= set(range(begin // SIZE * SIZE, end, SIZE))
        self.written.advance(end)

    async def _sync(self, start: int) -> None:
        self.done.append(("sync", start))
        self.dirty.discard(start)
        await trio.sleep(self.sync_s)
        if self.written_during_sync:
            self.write(self.written_during_sync)
            self.written_during_sync = 0
            self.dispatched.advance(self.written.value)

    async def _sync_names(self, *, to: str | None = None) -> None:
        self.done.append(("names", to))

    async def _store_mark(self, end: int, *, durable: bool = False) -> None:
        if self.mark_error:
            raise OSError(self.mark_error, "not written")
        self.done.append(("mark", end, durable))

    def _look(self) -> str | None:
        self.looks += 1
        return self.lost_name

    def _warn(self, event: str, **fields: object) -> None:
        assert (event, fields) == ("store.flushed_mark_not_written", {"error": "not written"})
        self.warnings += 1


@pytest.mark.parametrize("seed", range(60))
async def test_syncs_files_then_names_then_records_the_end(seed: int) -> None:
    random = Random(seed)
    stage = Stage(random)
    flusher, log, written = stage.flusher, stage.log, stage.written
    cut_off = random.choice((None, None, 0, 9))
    if cut_off is not None:
        flusher.whole_end = lambda: written.value - cut_off
    flusher.floor = random.choice((0, 0, log.min_offset + 5000))

    def recorded_end(end: int, whole_end: int) -> int:
        if cut_off is not None:
            end = min(end, whole_end - cut_off)
        elif stage.config.is_slave:
            end = min(end, stage.dispatched.value)
        return max(end, flusher.floor)

    recorded_low = rounds = 0
    for _ in range(8):
        draw = random.random()
        if draw < 0.8:
            stage.write(random.choice((1, PAGE, SIZE, 2 * SIZE + 9)))
        elif draw < 0.9:
            stage.dirty.add(written.value // SIZE * SIZE)
        low = max(stage.dispatched.value, log.min_offset)
        stage.dispatched.advance(random.randrange(low, written.value + 1))
        if random.random() < 0.2:
            log.min_offset = min(log.min_offset + SIZE, written.value // SIZE * SIZE)
        stage.mark.first = random.choice((0, 0, log.min_offset))
        stage.mark.offset = random.choice((0, 0, log.min_offset + random.randrange(-1, 2)))
        stage.written_during_sync = random.choice((0, 700))
        stage.mark_error = random.choice((0, 0, 0, errno.EIO, TRANSIENT))
        end, flushed, dirty = written.value, stage.flushed.value, sorted(stage.dirty)
        record = max(recorded_end(end, end), log.min_offset)
        is_first = log.min_offset > max(recorded_low, stage.mark.first, stage.mark.offset)
        stage.done.clear()
        warnings = stage.warnings
        if is_first and stage.mark_error == errno.EIO and (dirty or end > flushed):
            with pytest.raises(StoreFailed):
                await flusher.flush()
            assert stage.failure.reason is not None
            assert stage.flushed.value == flushed
            return
        assert await flusher.flush() == end
        if not dirty and end <= flushed:
            assert not stage.done
            continue
        rounds += 1
        assert flusher.count == rounds
        steps: list[tuple[Any, ...]] = [*(("sync", at) for at in dirty), ("names", FOLDER)]
        assert stage.done == steps + [("mark", record, is_first)] * (not stage.mark_error)
        assert stage.warnings - warnings == bool(stage.mark_error)
        is_late = is_first and bool(stage.mark_error)
        assert stage.flushed.value == (flushed if is_late else max(flushed, end))
        recorded_low = recorded_low if stage.mark_error else log.min_offset
        assert flusher.flushed_mark(end - 1) == recorded_end(end - 1, written.value)


def synced_at_once(writes: list[tuple[int, int]], low: int) -> list[tuple[float, int]]:
    """Moment and end of each flush where each write is flushed at once."""
    flushes, end, flushed = list[tuple[float, int]](), low, low
    now, pending, dirty = 0.0, [*writes], dict[int, None]()

    def written() -> int:
        at = end
        while pending and pending[0][0] <= now:
            start, at = at, at + pending.pop(0)[1]
            dirty.update(dict.fromkeys(range(start // SIZE * SIZE, at, SIZE)))
        return at

    while pending or flushed < end:
        now = now if flushed < end else max(now, pending[0][0])
        target = end = written()
        for start in sorted(dirty):
            end = written()
            del dirty[start]
            now += SYNC
        end = written()
        flushes.append((now, target))
        flushed = target
    return flushes


def synced_in_intervals(
    writes: list[tuple[int, int]], low: int, config: Any
) -> list[tuple[float, int]]:
    """The same where enough pages, half of the dirty limit, or the long interval cause a flush."""
    half, least = config.dirty_max // 2, max(config.flush_least_pages * PAGE, 1)
    flushes, pending, end, flushed = list[tuple[float, int]](), [*writes], low, low
    look, deadline = INTERVAL, THOROUGH
    while pending or flushed < end:
        at = min(look, float(pending[0][0])) if pending else look
        if pending and pending[0][0] == at:
            end += pending.pop(0)[1]
            if end - flushed <= half:
                continue
        if end > flushed and (end - flushed >= least or end - flushed > half or at >= deadline):
            flushes.append((at, end))
            flushed = end
        deadline = at + THOROUGH if at >= deadline else deadline
        look = at + INTERVAL
    return flushes


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_flushes_when_it_is_due(seed: int, is_sync: bool) -> None:
    async def main(_world: World) -> None:
        await check_moments(Random(seed), is_sync)

    assert run_solo(main).outcome == "ended"


async def check_moments(random: Random, is_sync: bool) -> None:
    stage = Stage(random, sync_flush=is_sync)
    await trio.sleep_until(math.ceil(trio.current_time()))  # exact differences
    begin, low = trio.current_time(), stage.log.min_offset
    stage.sync_s = SYNC * TICK_S if is_sync else 0.0
    writes, at, half = list[tuple[int, int]](), 0, stage.config.dirty_max // 2
    for _ in range(25):
        at += random.choice((1, 2, 9, 31, 63, 150))
        at += at % 32 == 0  # not at the moment of a look
        writes.append((at, random.choice((1, PAGE - 1, PAGE, 3 * PAGE, half, half + 1))))
    flushes = list[tuple[float, int]]()
    stage.flushed.subscribe(lambda end: flushes.append((trio.current_time() - begin, end)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.flusher.run)
        for at, count in writes:
            await trio.sleep_until(begin + at * TICK_S)
            stage.write(count)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    config = stage.config
    expected = synced_at_once(writes, low) if is_sync else synced_in_intervals(writes, low, config)
    assert [end for _, end in flushes] == [end for _, end in expected]
    for (at_s, _), (deadline, _) in zip(flushes, expected, strict=True):
        assert at_s / TICK_S == pytest.approx(deadline, abs=0.5)


@pytest.mark.parametrize("damage", ["nameless", "short", "lost", "failed", "none"])
async def test_stops_where_a_written_file_is_gone(damage: str) -> None:
    stage = Stage(Random(1), sync_flush=True)
    stage.write(1)
    start = stage.log.min_offset
    stage.nameless, stage.short = {start + SIZE}, {start + SIZE}  # a file without changes
    await stage.flusher.flush()
    for at_s, looks in ((LOOK_S / 2, 1), (LOOK_S, 2), (1.5 * LOOK_S, 2), (2 * LOOK_S, 3)):
        stage.now_s = at_s
        stage.write(1)
        await stage.flusher.flush()
        assert stage.looks == looks
    end = stage.flushed.value
    stage.write(1)
    stage.now_s += LOOK_S
    stage.done.clear()
    if damage == "none":
        await stage.flusher.flush()
        return
    if damage == "lost":
        stage.lost_name = "/x"
    elif damage == "failed":
        stage.failure.set(StoreFailed("first"))
    else:
        getattr(stage, damage).add(start)
    reason = {"lost": "/x", "failed": "first"}.get(damage, str(start))
    with pytest.raises(StoreFailed, match=f"^{reason}") as caught:
        await stage.flusher.flush()
    assert stage.failure.reason is caught.value
    assert stage.flushed.value == end
    assert not stage.done or damage == "failed"
    assert ("mark", end + 1, False) not in stage.done
