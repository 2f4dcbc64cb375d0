"""Deletion of a log's oldest files: conditions, order of steps, readers, and times of files."""

import errno
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.errors import StoreFailed
from rocketbed.node.store.retention import HOUR_MS, Retention
from rocketbed.world.api import DiskUsage, World
from tests.support.records import record_head
from tests.support.sim.small_store import small_config

SIZE = 256
FOLDER = "/l"
ORDERED_ROUNDS = 20
RESERVED_MS = 10_000


class Stage:
    """A log without files: it notes each step, and lets something happen while names are synced."""

    def __init__(self, world: World, random: Random, **changes: Any) -> None:
        self.world, self.now_ms, self.used = world, world.clock.wall_ms(), 50
        self.starts = [SIZE * number for number in range(2, 4 + random.randrange(5))]
        self.stored = dict.fromkeys(self.starts, self.now_ms - RESERVED_MS)
        self.modified = dict(self.stored)
        self.pinned = set[int]()
        self.done = list[tuple[str, Any]]()
        self.warnings = list[tuple[str, dict[str, Any]]]()
        self.events: dict[int, str] = {}
        """By the number of the sync of names."""
        self.end = self.starts[-1] + SIZE
        config = small_config(
            reserved_ms=RESERVED_MS, delete_when=tuple(range(24)), hanged_file_ms=2000,
            disk_max_used_percent=75, disk_clean_forcibly_percent=85, disk_warning_percent=90,
        )  # fmt: skip
        self.segments: Any = SimpleNamespace(
            starts=self.starts, size=SIZE, directory=FOLDER, path=str, remove=self._remove,
            pinned=lambda at: at in self.pinned,
            has=lambda at: bool(self.starts) and self.starts[0] <= at < self.starts[-1] + SIZE,
            read=lambda at, size: record_head(at, self.stored[at]),
            file=lambda at: SimpleNamespace(
                modified_ms=lambda: self.modified[at],
                set_modified_ms=lambda ms: self.modified.update({at: ms}),
            ),
        )  # fmt: skip
        log: Any = SimpleNamespace(
            warning=lambda event, **fields: self.warnings.append((event, fields)),
            info=lambda event, **fields: None,
        )
        disk = SimpleNamespace(usage=lambda _: DiskUsage(total=100, free=100 - self.used))
        parts: Any = SimpleNamespace(
            config=replace(config, **changes),
            world=SimpleNamespace(clock=world.clock, log=log, mark=lambda name: None, disk=disk),
            log=Log(self),
            marks=SimpleNamespace(mark=SimpleNamespace(offset=self.end)),
            pool=SimpleNamespace(sync_names=self._sync_names),
            queues=SimpleNamespace(
                delete_before=lambda low: self.done.append(("queues", low)),
                correct_min=lambda low: self.done.append(("minimum", low)),
            ),
            index=SimpleNamespace(delete_before=lambda low: self.done.append(("index", low))),
        )
        checkpointer: Any = SimpleNamespace(note=self._note)
        self.parts, self.retention = parts, Retention(parts, checkpointer)

    def configure(self, **changes: Any) -> None:
        self.parts.config = replace(self.parts.config, **changes)

    async def _note(self, **changes: object) -> None:
        self.done.append(("note", changes))

    async def _sync_names(self, *, to: str | None = None) -> None:
        event = self.events.pop(sum(name == "names" for name, _ in self.done), "")
        if event == "fails":
            raise OSError(errno.EIO, "no names")
        if event == "failed":
            raise StoreFailed("names")
        self.done.append(("names", to))
        if event == "pinned" and self.starts:
            self.pinned.add(self.starts[0])
        elif event == "cut":
            del self.starts[:1]
        elif event == "all":
            self.starts.clear()

    def _remove(self, start: int) -> None:
        assert self.starts[:1] == [start]
        self.starts.remove(start)
        self.done.append(("remove", start))

    async def round(self) -> list[int]:
        """Return what one round removed; check its record and the order of its steps."""
        self.done.clear()
        await self.retention.round()
        for number, (name, start) in enumerate(self.done):
            if name == "remove":
                assert self.done[number - 1] == ("names", FOLDER), "removed before a sync"
                assert self.done[number + 1] == ("minimum", start + SIZE)
        return [start for name, start in self.done if name == "remove"]


class Log:
    """Bounds of the stage's log."""

    segment_size = SIZE

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.segments = stage.segments
        self.written = SimpleNamespace(value=stage.end)

    @property
    def min_offset(self) -> int:
        return self._stage.starts[0] if self._stage.starts else self._stage.end


def simulated(check: Callable[..., Awaitable[None]], *arguments: object) -> None:
    assert run_solo(check, *arguments).outcome == "ended"


@pytest.mark.parametrize("seed", range(12))
def test_deletes_old_files_or_for_lack_of_room(seed: int) -> None:
    async def check(world: World) -> None:
        random = Random(seed)
        for _ in range(25):
            await check_conditions(world, random)

    simulated(check)


async def check_conditions(world: World, random: Random) -> None:
    hour = (world.clock.wall_ms() + world.clock.utc_offset_ms()) // HOUR_MS % 24
    stage = Stage(
        world, random, delete_batch_max=random.randrange(1, 4),
        delete_when=random.choice(((), tuple(range(24)), (hour,), (hour + 1,))),
        clean_forcibly_enabled=random.random() < 0.7,
        disk_max_used_percent=random.choice((9, 10, 50, 95, 96)),
        disk_clean_forcibly_percent=random.choice((29, 30, 60, 85, 86)),
        disk_warning_percent=random.choice((34, 35, 70, 90, 91)),
    )  # fmt: skip
    config, starts, now_ms = stage.parts.config, list(stage.starts), stage.now_ms
    ages = [random.choice((9_999, 10_000, 10_001, 30_000, -HOUR_MS, -HOUR_MS - 1)) for _ in starts]
    for start, age in zip(starts, sorted(ages, reverse=True), strict=True):
        stage.stored[start] = stage.modified[start] = now_ms - age
    if random.random() < 0.3:
        times = (0, now_ms - RESERVED_MS, now_ms + 2 * HOUR_MS)
        stage.stored[random.choice(starts)] = random.choice(times)
    stage.pinned = {start for start in starts if random.random() < 0.1}
    written = stage.parts.log.written.value = stage.end - random.choice((0, 1, SIZE, SIZE + 1))
    marked = stage.parts.marks.mark.offset = max(written - random.choice((0, 0, 1, SIZE)), 0)
    is_ordered = random.random() < 0.2
    if is_ordered:
        stage.retention.delete_now()
    stage.used = used = random.choice(
        (9, 10, 11, 30, 31, 35, 36, 50, 51, 60, 61, 70, 71, 85, 86, 90, 91, 95, 96)
    )
    forced = config.clean_forcibly_enabled
    forced = forced and used > sorted((30, config.disk_clean_forcibly_percent, 85))[1]
    tight = used > sorted((10, config.disk_max_used_percent, 95))[1]
    expected = list[int]()
    if forced or tight or is_ordered or hour in config.delete_when:
        for start in starts:
            later = [stage.stored[at] for at in starts if at > start]
            known = [ms for ms in later if stage.stored[start] <= ms <= now_ms + HOUR_MS]
            is_old = bool(known) and 0 < known[0] <= now_ms - RESERVED_MS
            is_safe = start + SIZE <= min(marked, written, stage.end - 1)
            if not is_safe or not (forced or is_old) or start in stage.pinned:
                break
            expected.append(start)
    assert await stage.round() == expected[: config.delete_batch_max]
    assert stage.retention.disk_full == (used > sorted((35, config.disk_warning_percent, 90))[1])


@pytest.mark.parametrize("seed", range(40))
def test_an_interrupted_round_is_continued(seed: int) -> None:
    async def check(world: World) -> None:
        random = Random(seed)
        most = random.randrange(1, 4)
        stage = Stage(world, random, delete_batch_max=most)
        starts = list(stage.starts)
        events = [random.choice(("", "", "", "pinned", "cut", "all", "fails")) for _ in range(4)]
        stage.events = dict(enumerate(events))
        allowed = starts[:-1][:most]
        count = next((at for at, event in enumerate(events) if event), len(events))
        count = min(count, len(allowed))
        assert await stage.round() == allowed[:count]
        assert stage.retention.deleted == count
        assert stage.done[0] == ("note", {"first": allowed[-1] + SIZE, "queue_first": -1})
        last_sync = count + (count < len(allowed) and events[count] != "fails")
        fails = events[count] == "fails" or events[last_sync : last_sync + 1] == ["fails"]
        errors = [fields["error"] for _, fields in stage.warnings]
        assert errors == ["no names"] * fails
        if not fails:
            low = stage.parts.log.min_offset
            assert stage.done[-3:] == [("names", None), ("queues", low), ("index", low)]
        stage.events, stage.pinned = {}, set()
        for _ in starts:
            await stage.round()
        assert stage.starts == starts[-1:] * bool(stage.starts)

    simulated(check)


def test_a_failed_sync_ends_the_store() -> None:
    async def check(world: World) -> None:
        stage = Stage(world, Random(1))
        stage.events = {0: "failed"}
        with pytest.raises(StoreFailed):
            await stage.retention.round()

    simulated(check)


@pytest.mark.parametrize("rounds", [ORDERED_ROUNDS - 1, ORDERED_ROUNDS])
def test_an_order_holds_for_some_rounds(rounds: int) -> None:
    async def check(world: World) -> None:
        stage = Stage(world, Random(1), delete_when=(), reserved_ms=HOUR_MS)
        stage.retention.delete_now()
        for _ in range(rounds):
            assert not await stage.round()
        stage.configure(reserved_ms=RESERVED_MS)
        assert bool(await stage.round()) == (rounds < ORDERED_ROUNDS)

    simulated(check)


def test_a_reader_delays_each_deletion_once() -> None:
    async def check(world: World) -> None:
        await trio.sleep_until(math.ceil(trio.current_time()))  # exact differences
        stage = Stage(world, Random(3), delete_batch_max=1)
        first = stage.starts[0]
        stage.pinned = {first, first + SIZE}
        deleted = 0
        for total, pause_s in (
            (0, 1.5), (0, 0.25), (0, 0.25), (1, 0.25), (1, 1.75), (1, 0.25), (2, 0),
        ):  # fmt: skip
            deleted += len(await stage.round())
            assert deleted == total
            await trio.sleep(pause_s)

    simulated(check)


@pytest.mark.parametrize("late_ms", [0, 1])
def test_corrects_the_time_of_one_file_a_round(late_ms: int) -> None:
    async def check(world: World) -> None:
        stage = Stage(world, Random(1), delete_when=())
        stage.parts.marks.mark.offset = 0
        starts = stage.starts
        starts[:] = [SIZE * number for number in range(6)]
        base_ms, latest_ms = stage.now_ms - 90 * HOUR_MS, stage.now_ms + HOUR_MS
        later = (5, 5, 9, 7, None, 1)
        stage.stored = {
            at: latest_ms + late_ms if ms is None else base_ms + ms
            for at, ms in zip(starts, later, strict=True)
        }
        future = None if late_ms else latest_ms
        youngest = [stage.stored[starts[1]], stage.stored[starts[2]], future, future, None]
        offsets = (HOUR_MS, HOUR_MS + 1, 0, -HOUR_MS, 0)
        stage.modified = {
            at: (ms or 0) + more for at, ms, more in zip(starts, youngest, offsets, strict=False)
        }
        expected = dict(stage.modified)
        due = [(at, ms) for at, ms in zip(starts, youngest, strict=False) if ms is not None]
        for at, ms in due:
            await stage.round()
            if abs(expected[at] - ms) > HOUR_MS:
                expected[at] = ms
            assert stage.modified == expected
        for _ in range(2):
            await stage.round()
        assert stage.modified == expected
        blind = [fields["path"] for name, fields in stage.warnings if "blind" in name]
        assert blind == [str(at) for at, ms in zip(starts, youngest, strict=False) if ms is None]
        recreated = starts.pop(1)
        await stage.round()
        starts.insert(1, recreated)
        stage.modified[recreated] = 0
        await stage.round()
        assert stage.modified[recreated] == youngest[1]

    simulated(check)
