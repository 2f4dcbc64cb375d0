"""How a log is brought to disk, by itself: when, in which order, how far it says to be there, and
what becomes of it where a disk fails or somebody takes its files away.
"""

import errno
import math
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import trio

from rocketbed.node.store.errors import StoreFailed
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.flush import LOOK_S, PAGE, Flusher
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

SIZE: Final = 1 << 15
FOLDER: Final = "/l"
INTERVAL_S, THOROUGH_S = 0.5, 1.99
"""It never looks just when all has to be brought to disk."""
FAILS: Final = (errno.EIO, errno.EMFILE)
"""The second one passes."""
TICK_S: Final = 1 / 64
SYNC: Final = 3 + 1 / 8
"""Ticks that a sync takes: hardly any ends just when something is written."""


class _Stage:
    """What a flush works on: it notes what is done."""

    def __init__(self, random: Random) -> None:
        self.done = list[tuple[Any, ...]]()
        self.nameless, self.short = set[int](), set[int]()
        self.lost: str | None = None
        self.looks = 0
        self.more = 0
        """Bytes that come while one file is synced."""
        self.sync_s = 0.0
        self.fails = 0
        """What F cannot be written for."""
        self.now = 0.0
        self.min_offset = SIZE * random.randrange(3)
        self.written, self.flushed = Watermark(self.min_offset), Watermark(self.min_offset)
        self.dispatched = Watermark(self.min_offset)
        self.dirty = set[int]()
        self.first = self.marked = 0
        self.config: Any = SimpleNamespace(
            sync_flush=random.random() < 0.5, is_slave=random.random() < 0.5, root="/r",
            flush_interval_ms=500, flush_thorough_interval_ms=1990,
            flush_least_pages=random.choice((0, 1, 3)), dirty_max=random.choice((20_000, 100_001)),
        )  # fmt: skip
        self.failure = Failure()
        self.warned = 0
        segments = SimpleNamespace(
            dirty=self.dirty, sync=self._sync, path=str, size=SIZE, directory=FOLDER,
            file=lambda at: SimpleNamespace(
                has_name=lambda: at not in self.nameless,
                size=lambda: SIZE - (at in self.short),
            ),
        )  # fmt: skip
        self.log: Any = SimpleNamespace(
            written=self.written, flushed=self.flushed, segments=segments,
            min_offset=self.min_offset,
        )  # fmt: skip
        parts: Any = SimpleNamespace(
            config=self.config, log=self.log, failure=self.failure, dispatched=self.dispatched,
            marks=SimpleNamespace(
                mark=SimpleNamespace(first=0, offset=0), store_flushed=self._store
            ),
            pool=SimpleNamespace(sync_names=self._names, lost_name=self._lost_name),
            world=SimpleNamespace(
                clock=SimpleNamespace(monotonic=lambda: self.now),
                log=SimpleNamespace(warning=self._warn),
            ),
        )  # fmt: skip
        self.parts = parts
        self.flusher = Flusher(parts)

    def write(self, count: int) -> None:
        begin, end = self.written.value, self.written.value + count
        self.dirty |= set(range(begin // SIZE * SIZE, end, SIZE))
        self.written.advance(end)

    async def _sync(self, start: int) -> None:
        self.done.append(("sync", start))
        self.dirty.discard(start)
        await trio.sleep(self.sync_s)
        if self.more:
            more, self.more = self.more, 0
            self.write(more)
            self.dispatched.advance(self.written.value)

    async def _names(self, *, to: str | None = None) -> None:
        self.done.append(("names", to))

    async def _store(self, value: int, *, durable: bool = False) -> None:
        if self.fails:
            raise OSError(self.fails, "not written")
        self.done.append(("F", value, durable))

    def _lost_name(self) -> str | None:
        self.looks += 1
        return self.lost

    def _warn(self, event: str, **fields: object) -> None:
        assert (event, fields) == ("store.flushed_mark_not_written", {"error": "not written"}), (
            f"flush: {event}: {fields}"
        )
        self.warned += 1


async def ask_flush(world: World, random: Random) -> None:
    for _ in range(30):
        await _rounds(_Stage(random), random)
    for _ in range(6):
        await _times(_Stage(random), random)
    await _taken(random)


async def _rounds(stage: _Stage, random: Random) -> None:
    """The files in order, their names, and then how far it is; never what comes meanwhile."""
    flusher, config = stage.flusher, stage.config
    whole = random.choice((None, None, 0, 9))
    if whole is not None:
        flusher.whole_end = lambda: stage.written.value - whole
    flusher.floor = random.choice((0, 0, stage.min_offset + 5000))
    noted, rounds = 0, 0
    for _ in range(8):
        draw = random.random()
        if draw < 0.8:
            stage.write(random.choice((1, PAGE, SIZE, 2 * SIZE + 9)))
        elif draw < 0.9:
            stage.dirty.add(stage.written.value // SIZE * SIZE)  # a file that was changed since
        low = max(stage.dispatched.value, stage.min_offset)
        stage.dispatched.advance(random.randrange(low, stage.written.value + 1))
        if random.random() < 0.2:
            stage.min_offset = stage.log.min_offset = min(
                stage.min_offset + SIZE, stage.written.value // SIZE * SIZE
            )
        mark = stage.parts.marks.mark
        mark.first, mark.offset = (
            random.choice((0, 0, stage.min_offset + by)) for by in (0, random.randrange(-1, 2))
        )
        stage.more = random.choice((0, 700))
        stage.fails = random.choice((0, 0, 0, *FAILS))
        end, before, is_dirty = stage.written.value, stage.flushed.value, [*sorted(stage.dirty)]
        known = end
        if whole is not None:
            known = end - whole
        elif config.is_slave:
            known = min(end, stage.dispatched.value)
        begin = stage.min_offset
        is_first = begin > max(noted, mark.first, mark.offset)
        del stage.done[:]
        warned, more = stage.warned, stage.more
        try:
            found = await flusher.flush()
        except StoreFailed as exc:
            is_due = is_first and stage.fails == errno.EIO and (is_dirty or end > before)
            assert bool(is_due) and exc is stage.failure.reason, f"flush: it failed: {exc}"
            assert stage.flushed.value == before, "flush: what failed is on disk"
            return
        assert found == end, f"flush: {found} is its end, not {end}"
        if not is_dirty and end <= before:
            assert not stage.done, f"flush: {stage.done} for nothing"
            continue
        rounds += 1
        assert flusher.count == rounds, f"flush: {flusher.count} rounds of {rounds}"
        value = max(known, flusher.floor, begin)
        want: list[tuple[Any, ...]] = [*(("sync", at) for at in is_dirty), ("names", FOLDER)]
        want += [] if stage.fails else [("F", value, is_first)]
        assert stage.done == want, f"flush: {stage.done} for {want}"
        assert stage.warned - warned == bool(stage.fails), "flush: of F nothing is said"
        assert not (is_first and stage.fails == errno.EIO), "flush: F may be missing"
        is_late = is_first and bool(stage.fails)
        want_end = before if is_late else max(before, end)
        assert stage.flushed.value == want_end, f"flush: {stage.flushed.value} for {want_end}"
        noted = noted if stage.fails else begin
        assert flusher.flushed_mark(end) == max(known, flusher.floor), (
            f"flush: {end}, {more} more came"
        )
        other = flusher.flushed_mark(end - 1)
        if whole is not None:
            want_end = min(end - 1, stage.written.value - whole)
        else:
            want_end = min(end - 1, stage.dispatched.value) if config.is_slave else end - 1
        assert other == max(want_end, flusher.floor), f"flush: {other} below {end - 1}"


async def _times(stage: _Stage, random: Random) -> None:
    """Under sync flush at once, and again as long as there is more; else each half second what is
    worth it, all of it each two seconds, and at once when half of what may be dirty is."""
    await trio.sleep_until(math.ceil(trio.current_time()))  # whole numbers have exact differences
    config, begin = stage.config, trio.current_time()
    stage.sync_s = SYNC * TICK_S if config.sync_flush else 0.0
    writes, at = list[tuple[int, int]](), 0
    half = config.dirty_max // 2
    for _ in range(25):
        at += random.choice((1, 2, 9, 31, 63, 150))
        at += at % 32 == 0  # not just when it looks
        writes.append((at, random.choice((1, PAGE - 1, PAGE, 3 * PAGE, half, half + 1))))
    found = list[tuple[float, int]]()
    stage.flushed.subscribe(lambda end: found.append((trio.current_time() - begin, end)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.flusher.run)
        for at, count in writes:
            await trio.sleep_until(begin + at * TICK_S)
            stage.write(count)
        await trio.sleep_until(math.ceil(trio.current_time()) + 2 * THOROUGH_S)
        assert stage.flushed.value == stage.written.value, "flush: the rest is not on disk"
        nursery.cancel_scope.cancel()
    model = _at_once if config.sync_flush else _now_and_then
    want, told = model(writes, stage), [(at / TICK_S, end) for at, end in found]
    assert [end for _, end in told] == [end for _, end in want], f"flush: {told} for {want}"
    for (came, end), (due, _) in zip(told, want, strict=True):
        assert abs(came - due) < 0.5, f"flush: {end} at {came}, not at {due}"


def _at_once(writes: list[tuple[int, int]], stage: _Stage) -> list[tuple[float, int]]:
    found, end, flushed = list[tuple[float, int]](), stage.min_offset, stage.min_offset
    now, left, dirty = 0.0, [*writes], dict[int, None]()

    def written() -> int:
        at = end
        while left and left[0][0] <= now:
            start, at = at, at + left.pop(0)[1]
            dirty.update(dict.fromkeys(range(start // SIZE * SIZE, at, SIZE)))
        return at

    while left or flushed < end:
        now = now if flushed < end else max(now, left[0][0])
        to = end = written()
        for start in sorted(dirty):
            end = written()
            del dirty[start]
            now += SYNC
        end = written()
        found.append((now, to))
        flushed = to
    return found


def _now_and_then(writes: list[tuple[int, int]], stage: _Stage) -> list[tuple[float, int]]:
    config = stage.config
    half, least = config.dirty_max // 2, max(config.flush_least_pages * PAGE, 1)
    found, left = list[tuple[float, int]](), [*writes]
    end = flushed = stage.min_offset
    step, thorough = INTERVAL_S / TICK_S, THOROUGH_S / TICK_S
    look, due = step, thorough
    while left or flushed < end:
        at = min(look, float(left[0][0])) if left else look
        if left and left[0][0] == at:
            end += left.pop(0)[1]
            if end - flushed <= half:
                continue
        if end > flushed and (end - flushed >= least or end - flushed > half or at >= due):
            found.append((at, end))
            flushed = end
        due = at + thorough if at >= due else due
        look = at + step
    return found


async def _taken(random: Random) -> None:
    """What is written to has a name still, and its length; others are looked at now and then."""
    for kind in ("nameless", "short", "lost", "failed", "unheard"):
        stage = _Stage(random)
        stage.parts.config.sync_flush = True
        stage.write(1)
        start = stage.min_offset
        clean = start + SIZE
        stage.nameless, stage.short = {clean}, {clean}  # of which nothing is to be synced
        await stage.flusher.flush()
        for late_s, looks in ((LOOK_S / 2, 1), (LOOK_S, 2), (1.5 * LOOK_S, 2), (2 * LOOK_S, 3)):
            stage.now = late_s
            stage.write(1)
            await stage.flusher.flush()
            assert stage.looks == looks, f"flush: {stage.looks} looks until {late_s}"
        end = stage.flushed.value
        stage.write(1)
        stage.now += LOOK_S
        if kind in ("nameless", "short"):
            getattr(stage, kind).add(start)
        elif kind == "lost":
            stage.lost = "/x"
        elif kind == "failed":
            stage.failure.set(StoreFailed("first"))
        del stage.done[:]
        try:
            await stage.flusher.flush()
            assert kind == "unheard", f"flush: {kind}: it goes on"
        except StoreFailed as exc:
            path = {"lost": "/x", "failed": "first"}.get(kind, str(start))
            assert str(exc).startswith(path), f"flush: {kind}: {exc}"
            assert stage.failure.reason is exc, f"flush: {kind}: the store goes on"
            assert stage.flushed.value == end, f"flush: {kind}: it is on disk"
            assert not stage.done or kind == "failed", f"flush: {kind}: {stage.done}"
            assert ("F", end + 1, False) not in stage.done, f"flush: {kind}: F is written"
