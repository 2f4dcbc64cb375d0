"""Rounds in which files of a log go, one by one: what is on record before, whose name goes when,
who is told, and what becomes of the rest where somebody comes in between or a disk fails.
"""

import errno
import math
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import trio

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import StoreFailed
from rocketbed.node.store.retention import HOUR_MS, Retention
from rocketbed.wire.message import HEAD
from rocketbed.world.api import DiskUsage, World

SIZE: Final = 256
FOLDER: Final = "/l"
ORDERED: Final = 20
"""Rounds for which an order to delete holds."""
BETWEEN: Final = ("", "", "", "pinned", "cut", "all", "fails")
"""What may come while names are brought to disk."""


LEVELS: Final = (
    (30, 0, False), (85, 100, False), (40, 40, False), (10, 0, True), (95, 100, True),
    (40, 40, True),
)  # fmt: skip
"""Percent in use up to which nothing goes, what is set, and whether files are old."""


async def ask_expiry(world: World, random: Random, config: StoreConfig) -> None:
    config = replace(
        config, reserved_ms=10_000, delete_when=tuple(range(24)), hanged_file_ms=2000,
        disk_max_used_percent=75, disk_clean_forcibly_percent=85, disk_warning_percent=90,
    )  # fmt: skip
    for _ in range(40):
        await _one_round(_Stage(world, random, config), random)
    for rounds in (ORDERED - 1, ORDERED):
        await _ordered(_Stage(world, random, config), rounds)
    for used, is_set, is_old in LEVELS:
        await _pressed(_Stage(world, random, config), used, is_set, is_old=is_old)
    await _hanged(_Stage(world, random, config))
    await _times(_Stage(world, random, config), random)


class _Stage:
    """What a round works on: it notes what is done, and knows what comes in between."""

    def __init__(self, world: World, random: Random, config: StoreConfig) -> None:
        self.now = world.clock.wall_ms()
        self.starts = [SIZE * number for number in range(2, 4 + random.randrange(5))]
        self.stored = dict.fromkeys(self.starts, self.now - 10_000)
        self.modified = dict(self.stored)
        self.pinned = set[int]()
        self.done = list[tuple[str, Any]]()
        self.said = list[tuple[str, Any]]()
        self.comes: dict[int, str] = {}
        """By the number of the names that are brought to disk."""
        self.end = self.starts[-1] + SIZE
        self.segments: Any = SimpleNamespace(
            starts=self.starts, size=SIZE, directory=FOLDER, pinned=lambda at: at in self.pinned,
            has=lambda at: bool(self.starts) and self.starts[0] <= at < self.starts[-1] + SIZE,
            path=str, read=lambda at, size: _head(at, self.stored[at]), remove=self._remove,
            file=lambda at: SimpleNamespace(
                modified_ms=lambda: self.modified[at],
                set_modified_ms=lambda ms: self.modified.update({at: ms}),
            ),
        )  # fmt: skip
        log: Any = SimpleNamespace(
            warning=lambda event, **fields: self.said.append((event, fields)),
            info=lambda event, **fields: None,
        )
        self.used = 50
        parts: Any = SimpleNamespace(
            config=config,
            world=SimpleNamespace(
                clock=world.clock, log=log, mark=lambda name: None,
                disk=SimpleNamespace(usage=lambda _: DiskUsage(total=100, free=100 - self.used)),
            ),
            log=_Log(self),
            marks=SimpleNamespace(mark=SimpleNamespace(offset=self.end)),
            pool=SimpleNamespace(sync_names=self._names),
            queues=SimpleNamespace(
                delete_before=lambda low: self.done.append(("queues", low)),
                correct_min=lambda low: self.done.append(("told", low)),
            ),
            index=SimpleNamespace(delete_before=lambda low: self.done.append(("index", low))),
        )  # fmt: skip
        noting: Any = SimpleNamespace(note=self._note)
        self.parts = parts
        self.retention = Retention(parts, noting)

    async def _note(self, **changes: object) -> None:
        self.done.append(("note", changes))

    async def _names(self, *, to: str | None = None) -> None:
        comes = self.comes.pop(sum(name == "names" for name, _ in self.done), "")
        if comes == "fails":
            raise OSError(errno.EIO, "no names")
        if comes == "failed":
            raise StoreFailed("names")
        self.done.append(("names", to))
        if comes == "pinned" and self.starts:
            self.pinned.add(self.starts[0])
        elif comes == "cut":
            del self.starts[:1]
        elif comes == "all":
            self.starts.clear()

    def _remove(self, start: int) -> None:
        assert self.starts[:1] == [start], f"expiry: {start} goes, of {self.starts}"
        assert start not in self.pinned, f"expiry: {start} goes, which somebody reads"
        self.starts.remove(start)
        self.done.append(("remove", start))


class _Log:
    """Where a log begins and ends."""

    segment_size = SIZE

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self.segments = stage.segments
        self.written = SimpleNamespace(value=stage.end)

    @property
    def min_offset(self) -> int:
        return self._stage.starts[0] if self._stage.starts else self._stage.end


async def _one_round(stage: _Stage, random: Random) -> None:
    """Of those that may go, some; each when nobody can bring back an older one without it."""
    starts, last = list(stage.starts), stage.starts[-1]
    at_limit = (last, last, last + 1, last - 1, last - SIZE, stage.end)
    written, marked = random.choice(at_limit), random.choice(at_limit)
    most = random.randrange(1, 4)
    stage.parts.config = replace(stage.parts.config, delete_batch_max=most)
    stage.parts.log.written.value, stage.parts.marks.mark.offset = written, marked
    stage.comes = {number: random.choice(BETWEEN) for number in range(4)}
    comes = [stage.comes[number] for number in range(4)]
    await stage.retention.round()
    may = [start for start in starts[:-1] if start + SIZE <= min(written, marked)][:most]
    goes = 0
    while goes < len(may) and not comes[goes]:
        goes += 1
    removed = [start for name, start in stage.done if name == "remove"]
    assert removed == may[:goes], f"expiry: {removed} went of {starts}, {comes[:goes]}"
    assert stage.retention.deleted == goes, f"expiry: {stage.retention.deleted} are counted"
    _judge(stage.done, [*may[-1:]])
    ends_early = goes < len(may) and comes[goes] != "fails"
    is_failed = bool(may) and "fails" in comes[goes : goes + 1 + ends_early]
    said = [fields["error"] for event, fields in stage.said if event == "store.retention_failed"]
    assert said == ["no names"] * is_failed, f"expiry: {said} is said"
    low = stage.parts.log.min_offset
    if may and not is_failed:
        ends = stage.done[-3:]
        want = [("names", None), ("queues", low), ("index", low)]
        assert ends == want, f"expiry: {ends} behind the last, for {want}"
    # What failed, or was read, is nobody's secret: later rounds do the rest.
    stage.comes, stage.pinned = {}, set()
    stage.parts.log.written.value = stage.parts.marks.mark.offset = stage.end
    for _ in range(len(starts)):
        del stage.done[:]
        left = [*stage.starts[:-1]][:most]
        await stage.retention.round()
        _judge(stage.done, left[-1:])
    assert stage.starts == starts[-1:] * bool(stage.starts), f"expiry: {stage.starts} are left"
    if len(starts) > 1 and not stage.starts:
        return
    stage.starts.insert(0, last - SIZE)
    stage.comes = {sum(name == "names" for name, _ in stage.done): "failed"}
    try:
        await stage.retention.round()
    except StoreFailed:
        return
    raise AssertionError("expiry: a sync that failed ends nothing")


def _judge(done: list[tuple[str, Any]], last: list[int]) -> None:
    """What a start has to know is on record before the first goes, and a name on disk before the
    next one; and nobody is given what lies behind a file that has gone for what was in it."""
    noted = [(number, what) for number, (name, what) in enumerate(done) if name == "note"]
    want = [(0, {"first": one + SIZE, "queue_first": -1}) for one in last]
    assert noted == want, f"expiry: {noted} is on record, for {want}"
    for number, (name, start) in enumerate(done):
        if name == "remove":
            assert done[number - 1] == ("names", FOLDER), f"expiry: {start} goes too early"
            told = done[number + 1]
            assert told == ("told", start + SIZE), f"expiry: {told} when {start} was gone"


async def _ordered(stage: _Stage, rounds: int) -> None:
    """An order holds for so many rounds, and no longer."""
    kept = stage.parts.config
    stage.parts.config = replace(kept, delete_when=(), reserved_ms=HOUR_MS)
    low = stage.starts[0]
    stage.retention.delete_now()
    for _ in range(rounds):
        await stage.retention.round()
    assert stage.starts[0] == low, "expiry: an order makes nothing old"
    stage.parts.config = replace(kept, delete_when=())
    await stage.retention.round()
    goes = rounds < ORDERED
    assert (stage.starts[0] > low) == goes, f"expiry: in round {rounds + 1}: {stage.starts}"


async def _pressed(stage: _Stage, used: int, is_set: int, *, is_old: bool) -> None:
    """What is set is obeyed between two limits, and files go above it."""
    low = stage.starts[0]
    stage.parts.config = replace(
        stage.parts.config, delete_when=(), clean_forcibly_enabled=not is_old,
        disk_max_used_percent=is_set, disk_clean_forcibly_percent=is_set,
        reserved_ms=10_000 if is_old else HOUR_MS,
    )  # fmt: skip
    for more in (0, 1):
        stage.used = used + more
        await stage.retention.round()
        went = stage.starts[0] > low
        assert went == bool(more), f"expiry: {used + more} %, {is_set} set: {went}"


async def _hanged(stage: _Stage) -> None:
    """Who reads a file has so long, from when it could go; for each file anew."""
    await trio.sleep_until(math.ceil(trio.current_time()))  # whole numbers have exact differences
    stage.parts.config = replace(stage.parts.config, delete_batch_max=1)
    first, second = stage.starts[0], SIZE + stage.starts[0]
    stage.starts.append(stage.end)
    stage.stored[stage.end] = stage.modified[stage.end] = stage.now - 10_000
    reads = _Readers(stage, {first, second})
    for goes, pause_s in (
        (0, 1.5), (0, 0.25), (0, 0.25), (1, 0.25), (1, 1.75), (1, 0.25), (2, 0),
    ):  # fmt: skip
        await stage.retention.round()
        assert reads.gone == goes, f"expiry: {reads.gone} went, not {goes}"
        await trio.sleep(pause_s)


class _Readers:
    """Files that may go although somebody reads them."""

    def __init__(self, stage: _Stage, read: set[int]) -> None:
        self.gone, self._stage = 0, stage
        stage.segments.pinned = lambda at: at in read
        stage.segments.remove = self._remove

    def _remove(self, start: int) -> None:
        self.gone += 1
        self._stage.starts.remove(start)


async def _times(stage: _Stage, random: Random) -> None:
    """One file a round is given the time of the first record behind it, if it is an hour off; one
    that is made again is looked at again; whose time nothing tells is named once."""
    stage.parts.config = replace(stage.parts.config, delete_when=())
    stage.parts.marks.mark.offset = 0
    starts = stage.starts
    stage.starts[:] = [SIZE * number for number in range(6)]
    stage.stored = dict(zip(starts, (5, 5, 9, 7, 8, 1), strict=True))
    off = (HOUR_MS, HOUR_MS + 1, 0, -HOUR_MS, 0, 0)
    stage.stored = {at: stage.now - 90 * HOUR_MS + ms for at, ms in stage.stored.items()}
    latest = stage.now + HOUR_MS
    stage.stored[starts[4]] = latest + random.randrange(2)
    behind: list[int | None] = [stage.stored[at] for at in (starts[1], starts[2])]
    later = latest if stage.stored[starts[4]] == latest else None
    behind += [later, later, None]
    stage.modified = {
        at: (ms or 0) + more for at, ms, more in zip(starts, [*behind, 0], off, strict=True)
    }
    want = dict(stage.modified)
    due = [at for at, ms in zip(starts, behind, strict=False) if ms is not None]
    for at in [*due, starts[-1], starts[-1]]:
        await stage.retention.round()
        ms = stage.stored[at] if at == starts[-1] else behind[starts.index(at)]
        if at in due and abs(want[at] - (ms or 0)) > HOUR_MS:
            want[at] = ms or 0
        assert stage.modified == want, f"expiry: times of files: {stage.modified} for {want}"
    blind = [fields["path"] for event, fields in stage.said if event == "store.retention_blind"]
    none = [str(at) for at, ms in zip(starts, behind, strict=False) if ms is None]
    assert blind == none, f"expiry: {blind} tell no time, not {none}"
    again = starts.pop(1)
    await stage.retention.round()
    starts.insert(1, again)
    stage.modified[again] = 0
    await stage.retention.round()
    assert stage.modified[again] == behind[1], "expiry: a file that is made again is passed over"


def _head(start: int, stored_ms: int) -> bytes:
    """The beginning of a record."""
    head = bytearray(HEAD.size + 96)
    head[0:8] = b"\0\0\0\x60\xda\xa3\x20\xa7"
    head[28:36], head[56:64] = start.to_bytes(8, "big"), stored_ms.to_bytes(8, "big")
    return bytes(head)
