"""Files in which a store records what is synced: durable when written, and never half read."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from rocketbed.node.store.checkpoint import Checkpoint, Witnesses
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.marks import Mark, Marks, decode_mark, encode_mark
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.durable import Loss, ensure_durable
from tests.model.store import ROOT, ensure_closed

STAGING = f"{ROOT}/rocketbed.tmp"
MARK, FLUSHED = f"{ROOT}/rocketbed.ckpt", f"{ROOT}/rocketbed.flushed"
CHECKPOINT, ABORT = f"{ROOT}/checkpoint", f"{ROOT}/abort"
LEFTOVER = b"of a crash" * 1000


def on_disk(test: Any) -> Any:
    """Make a test of a function that gets a world with the store's folders."""

    def run() -> None:
        async def main(world: World) -> None:
            world.disk.makedirs(STAGING)
            await test(world, world.disk)
            ensure_closed(world)

        run_alone(main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def marks_of(world: World) -> Marks:
    return Marks(world, ROOT, STAGING, Failure())


@on_disk
async def test_a_mark_is_synced_when_it_is_stored(world: World, disk: Any) -> None:
    marks = marks_of(world)
    assert marks.load() is None
    assert not marks.has_traces
    for number in range(3):
        mark = Mark(store_id=f"{number}", offset=number << 20, deleted={"T": 9, "U": 12})
        disk.replace_contents(f"{STAGING}/rocketbed.ckpt.new", LEFTOVER)
        await marks.store(mark)
        ensure_durable(world, "a mark")
        assert disk.contents(MARK) == encode_mark(mark)
        reopened = marks_of(world)
        assert reopened.load() == mark == reopened.mark == marks.mark
        await marks.update(resend_to=number)
        assert reopened.load() == marks.mark == replace(mark, resend_to=number)
    assert mark.deleted_below(10) == {"T": 9, "U": 10}
    assert marks_of(world).mark == Mark(store_id="", offset=0)


@on_disk
async def test_a_damaged_mark_is_none_but_leaves_traces(world: World, disk: Any) -> None:
    marks = marks_of(world)
    await marks.store(Mark(store_id="x", offset=1))
    data = disk.contents(MARK)
    for at in range(len(data)):
        assert decode_mark(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]) is None
    for damaged in (data[:-1], data[1:], data + b"\n", b""):
        disk.replace_contents(MARK, damaged)
        assert marks.load() is None
        assert marks.has_traces


@on_disk
async def test_the_flushed_offset_is_a_number_or_unknown(world: World, disk: Any) -> None:
    """A damaged one is another thing than an unknown one."""
    marks = marks_of(world)
    assert marks.load_flushed() is None
    assert marks.has_lost_flushed
    for value in (0, 1, 12345, None, (1 << 63) - 1):
        await marks.store_flushed(value, durable=True)
        if value != 0:  # the first one makes the file, whose name is not synced yet
            ensure_durable(world, "the flushed offset")
        await disk.sync_dir(ROOT)
        assert (marks.load_flushed(), marks.has_lost_flushed) == (value, False)
        assert marks.has_traces
    await marks.store_flushed(5)
    assert FLUSHED in Loss(disk).behind, "it is synced only if asked"
    data = disk.contents(FLUSHED)
    assert (data[:8], len(data)) == (struct.pack(">q", 5), 16)
    for damaged in (data[:-1], data + b"\0", b"", data[:7] + b"\6" + data[8:], bytes(16)):
        disk.replace_contents(FLUSHED, damaged)
        assert (marks.load_flushed(), marks.has_lost_flushed) == (None, True)
    await marks.store_flushed(None)
    assert disk.contents(FLUSHED)[:8] == b"\xff" * 8


@on_disk
async def test_the_checkpoint_is_one_synced_page(world: World, disk: Any) -> None:
    witnesses = Witnesses(world, ROOT, STAGING)
    assert (witnesses.load_checkpoint(), witnesses.checkpoint_bytes()) == (Checkpoint(), bytes(40))
    names = ("physic_ms", "logics_ms", "index_ms", "master_flushed_offset", "confirm_offset",
             "logics_offset")  # fmt: skip
    for number in range(3):
        values = [(number + 1) * 1000 + place for place in range(6)]
        stored = Checkpoint(**dict(zip(names, values, strict=True)))
        syncs: list[str] = []
        disk.observer = lambda kind, *_, syncs=syncs: syncs.append(kind)
        await witnesses.store_checkpoint(stored)
        disk.observer = None
        ensure_durable(world, "a checkpoint")
        assert ("sync_dir" in syncs) == (number == 0), "the name is new once"
        page = struct.pack(">6q", *values).ljust(4096, b"\0")
        assert disk.contents(CHECKPOINT) == page
        assert (witnesses.load_checkpoint(), witnesses.checkpoint_bytes()) == (stored, page[:40])
    disk.replace_contents(CHECKPOINT, page[:20])
    assert witnesses.load_checkpoint().physic_ms == values[0]
    assert witnesses.checkpoint_bytes() == page[:20] + bytes(20)


@on_disk
async def test_the_abort_file_is_durable_and_durably_removed(world: World, disk: Any) -> None:
    witnesses, process = Witnesses(world, ROOT, STAGING), world.process
    for boot in (None, "another"):
        assert witnesses.load_abort() is None
        disk.replace_contents(f"{STAGING}/abort.new", LEFTOVER)
        await witnesses.store_abort("an-id", boot)
        ensure_durable(world, "the abort file")
        assert disk.contents(ABORT).count(b"\n") == 3
        assert disk.contents(ABORT).endswith(b"\n"), "bytes of a leftover file"
        expected = (str(process.pid), "an-id", boot or process.boot_id, False)
        assert fields_of_abort(witnesses) == expected
        await witnesses.remove_abort()
        assert ABORT not in Loss(disk).back


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ("", "", "", True)),
        (b"17\n", ("17", "", "", False)),
        (b"\nuuid=x\n", ("", "x", "", False)),
        (b"\xff", ("\ufffd", "", "", False)),
    ],
)
def test_a_foreign_abort_file_is_read(data: bytes, expected: tuple[str, str, str, bool]) -> None:
    async def main(world: World) -> None:
        disk: Any = world.disk
        disk.makedirs(STAGING)
        disk.replace_contents(ABORT, data)
        assert fields_of_abort(Witnesses(world, ROOT, STAGING)) == expected

    run_alone(main)


def fields_of_abort(witnesses: Witnesses) -> tuple[str, str, str, bool]:
    abort = witnesses.load_abort()
    assert abort is not None
    return abort.pid, abort.store_id, abort.boot_id, abort.is_empty
