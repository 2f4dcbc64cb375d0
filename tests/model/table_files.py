"""A table's file by itself: loaded whole, empty, damaged, from its backup; written beside what a
crash has left and on a full disk; and what a crash at any event of a write leaves of it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

import orjson
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.broker.config_file import (
    LARGE,
    RETRY_S,
    ConfigFile,
    ConfigFileError,
    SavedTable,
    TableLost,
)
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.durable import Loss, ensure_durable
from tests.model.store import ensure_closed

PLACE: Final = "/store/config"
NAME: Final = "topics.json"
PATH: Final = f"{PLACE}/{NAME}"
EMPTY: Final = (b"", b"\0" * 9, b" \t\r\n")
DAMAGED: Final = (b"[1]", b"{", b"\xff", b"7")
Table = dict[str, Any]


class Told:
    """What is logged."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, object]] = []

    def warning(self, event: str, *, path: str, reason: str, kept: object) -> None:
        assert bool(reason), f"told: {event}: no reason"
        self.told.append((event, path, kept))


def run_table_files(seed: int) -> str:
    return run_alone(_main, Random(f"table-files/{seed}")).digest


async def _main(world: World, random: Random) -> None:
    await _written(world, random)
    await _in_the_way(world)
    for text in (*EMPTY, *DAMAGED):
        for backup in (None, b'{"n": 1}', random.choice(EMPTY), random.choice(DAMAGED)):
            await _found(world, text, backup)
    await _crashed(world, random)
    await _saved(world)
    ensure_closed(world)


def _files(disk: Any) -> dict[str, bytes]:
    return {
        path.rpartition("/")[2]: disk.contents(path)
        for path in disk.image().paths()
        if path.startswith(f"{PLACE}/")
    }


def _clear(disk: Any) -> None:
    for name in _files(disk):
        disk.unlink(f"{PLACE}/{name}")


def _whole(table: Table) -> Table:
    return table


async def _refuses(what: str, kind: type[Exception], asked: Callable[[], Awaitable[Any]]) -> None:
    try:
        await asked()
    except kind:
        return
    raise AssertionError(f"refusal: {what}")


async def _load(file: ConfigFile) -> Table | None:
    return file.load(_whole)


# --- one write after the other


async def _written(world: World, random: Random) -> None:
    """The table before is the backup, also where the same process wrote both."""
    disk: Any = world.disk
    file, tables = ConfigFile(world, PLACE, NAME), list[Table]()
    log: Any = Told()
    first = ConfigFile(replace(world, log=log), PLACE, NAME)
    assert await _load(first) is None and not log.told, f"table: there is one: {log.told}"
    assert await _load(file) is None, "table: there is one"
    for number in range(4):
        disk.replace_contents(f"{PATH}.tmp", bytes(5000)) if number else None
        size = random.choice((0, 30, LARGE + 10)) if number else LARGE + 10
        tables.append({"n": number, "text": "x" * size})
        await file.write(tables[-1])
        ensure_durable(world, "a table")
        found = {name: orjson.loads(data) for name, data in _files(disk).items()}
        want = {NAME: tables[-1]} | ({f"{NAME}.bak": tables[-2]} if number else {})
        assert found == want, f"table: {found.keys()} behind write {number}"
        assert file.read_bytes() == disk.contents(PATH), "table: its bytes"
        if random.random() < 0.5:
            file = ConfigFile(world, PLACE, NAME)
            assert await _load(file) == tables[-1] and file.is_clean, "table: it is another one"
    before = _files(disk)
    disk.quota = disk.allocated()
    await _refuses("a full disk", OSError, partial(file.write, {"n": 9}))
    disk.quota = None
    disk.descriptors = disk.open_files
    await _refuses("no descriptor", ConfigFileError, partial(_load, file))
    disk.descriptors = None
    assert file.load(_whole) == tables[-1], "table: a full disk took it"
    assert _files(disk).items() >= before.items(), "table: a full disk took a file"
    await file.write({"n": 9})
    assert orjson.loads(disk.contents(f"{PATH}.bak")) == tables[-1], "table: its backup"


# --- what a start finds


async def _found(world: World, text: bytes, backup: bytes | None) -> None:
    """The backup, where it is whole; else nothing is known, which is refused where a backup is."""
    disk: Any = world.disk
    _clear(disk)
    disk.replace_contents(PATH, text)
    if backup is not None:
        disk.replace_contents(f"{PATH}.bak", backup)
    log: Any = Told()
    file, what = ConfigFile(replace(world, log=log), PLACE, NAME), f"{text!r} beside {backup!r}"
    if backup is not None and not backup.startswith(b'{"'):
        await _refuses(what, TableLost, partial(_load, file))
        return
    want = None if backup is None else {"n": 1}
    assert await _load(file) == want and not file.is_clean, f"table: {what}"
    event = "config.defaults" if backup is None else "config.from_backup"
    kept_as = f"{PATH}.damaged" if text in DAMAGED else None
    told_of = f"{PATH}.bak" if backup else PATH
    assert log.told == [(event, told_of, kept_as)], f"told: {what}: {log.told}"
    assert file.load(_whole) == want, f"table: {what}, once more"
    await file.write({"n": 2})
    kept = {NAME: {"n": 2}} | ({} if backup is None else {f"{NAME}.bak": {"n": 1}})
    found = _files(disk)
    if text in DAMAGED:
        assert found.pop(f"{NAME}.damaged", b"") == text, f"table: {what}: it is not kept"
    told = {name: orjson.loads(data) for name, data in found.items()}
    assert told == kept, f"table: {what}: {told} behind a write"
    await file.write({"n": 3})
    told = orjson.loads(disk.contents(f"{PATH}.bak"))
    assert told == {"n": 2}, f"table: {what}: {told} is the backup then"


async def _in_the_way(world: World) -> None:
    """A folder where a file of the table belongs, or a file where its folder does."""
    disk: Any = world.disk
    for path in (PATH, f"{PATH}.bak", f"{PATH}.tmp"):
        _clear(disk)
        disk.makedirs(path)
        await _refuses(path, ConfigFileError, partial(_load, ConfigFile(world, PLACE, NAME)))
        disk.rmdir(path)
    disk.replace_contents("/store/file", b"mine")
    other = ConfigFile(world, "/store/file", NAME)
    await _refuses("a file for a folder", ConfigFileError, partial(_load, other))


# --- a crash on the way


async def _crashed(world: World, random: Random) -> None:
    """The old one or the new one, whatever is left, and the new one once it is written."""
    disk: Any = world.disk
    _clear(disk)
    file, old, new = ConfigFile(world, PLACE, NAME), {"n": 0}, {"n": 1, "text": "x" * 2000}
    file.load(_whole)
    for table in (old, old):
        await file.write(table)
    images = list[DiskImage]()

    def note(*_: object) -> None:
        images.append(disk.image())
        images.append(Loss(disk).left)
        shaken = SimDisk(disk.image(), random=random)
        shaken.power_cut("random")
        images.append(shaken.image())

    disk.observer = note
    await file.write(new)
    disk.observer = None
    assert len(images) >= 15, f"load: {len(images)} images of a write"
    note()
    for number, image in enumerate(images):
        found = ConfigFile(replace(world, disk=SimDisk(image)), PLACE, NAME).load(_whole)
        is_behind = number >= len(images) - 3
        assert found == new or (found == old and not is_behind), f"table: {found} at {number}"


# --- when it is written


async def _saved(world: World) -> None:
    """After a change, and only then; again where that failed."""
    disk: Any = world.disk
    _clear(disk)
    table, ends = {"n": 0}, list[tuple[bool, float]]()
    saved = SavedTable(world, ConfigFile(world, PLACE, NAME), lambda: table)
    await saved.save()
    assert not _files(disk) and not saved.is_dirty, "saved: without a change"
    saved.touch()
    assert saved.is_dirty, "saved: a change is none"
    await saved.save()
    assert orjson.loads(_files(disk)[NAME]) == table, "saved: a change is not written"
    events = disk.events
    await saved.save()
    assert disk.events == events and not saved.is_dirty, "saved: twice"

    def ended(exc: ConfigFileError | None) -> None:
        ends.append((exc is None, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(saved.run, ended)
        await trio.sleep(1)
        assert not ends, f"saved: {ends} without a change"
        begin = trio.current_time()
        disk.read_only = True
        saved.touch()
        await trio.sleep(1.5 * RETRY_S)
        disk.read_only, table["n"] = False, 5
        await trio.sleep(RETRY_S)
        nursery.cancel_scope.cancel()
    told = [(is_good, round((at - begin) / RETRY_S)) for is_good, at in ends]
    assert told == [(False, 0), (False, 1), (True, 2)], f"saved: {told}"
    assert orjson.loads(_files(disk)[NAME]) == table, "saved: what changed meanwhile"
