"""The files in which a store says what is on disk: what was written comes back, on disk when the
call returns, whatever a crash has left beside it; nothing that is not whole does.
"""

import struct
from dataclasses import replace
from random import Random
from typing import Any, Final

import crcmod.predefined
import orjson

from rocketbed.node.store.checkpoint import Checkpoint, Witnesses
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.indexfile import Header
from rocketbed.node.store.marks import AcceptedCut, Mark, Marks, decode_mark, encode_mark
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.durable import Loss, ensure_durable
from tests.model.store import ROOT, ensure_closed

STAGING: Final = f"{ROOT}/rocketbed.tmp"
CHECKPOINT: Final = f"{ROOT}/checkpoint"
FLUSHED: Final = f"{ROOT}/rocketbed.flushed"
ABORT: Final = f"{ROOT}/abort"
OLDEST: Final = (
    "id",
    "w",
    "sizes",
    "record",
    "units",
    "index",
    "index_filled_ms",
    "cut",
    "clean",
    "deleted",
)
"""Fields that every mark has."""
LONGER: Final = b"mine" * 2000
TIMES: Final = 4
crc32c: Any = crcmod.predefined.mkCrcFun("crc-32c")


def run_own_files(seed: int) -> str:
    return run_alone(_main, Random(f"own-files/{seed}")).digest


async def _main(world: World, random: Random) -> None:
    disk: Any = world.disk
    disk.makedirs(ROOT)
    disk.makedirs(STAGING)
    for step in (_marks, _flushed, _checkpoints, _aborts):
        await step(world, random)
        ensure_closed(world)


# --- the durable mark


def _drawn(random: Random) -> Mark:
    """Every field has a value of its own."""

    def some() -> int:
        return random.randrange(1, 1 << 40)

    return Mark(
        store_id=f"{random.getrandbits(64):x}", offset=some(), sizes=(some(), some(), 3, 4, 5),
        record_start=some(), queue_count=some(), queue_total=some(), queue_first=some(),
        index=("name", Header(some(), some(), some(), some(), 7, 8)), index_filled_ms=some(),
        cut_to=random.choice((None, some())), clean=random.choice((None, "ab" * 40)),
        deleted={"T": some(), "U": some()}, remaking=("T",), first=some(),
        claimed={"T/0": some()}, accepted=(AcceptedCut(some(), some(), 3, some()),),
        scrubbed=some(), damage=((some(), some(), "why"),), index_damage="bad",
        index_tags=random.random() < 0.5, followed=random.choice((None, "", "a:1")),
        inherited=some(), resend_to=some(),
    )  # fmt: skip


async def _marks(world: World, random: Random) -> None:
    disk: Any = world.disk
    marks, path = Marks(world, ROOT, STAGING, Failure()), f"{ROOT}/rocketbed.ckpt"
    assert marks.load() is None and not marks.has_traces, "mark: there is one"
    for _ in range(TIMES):
        mark = _drawn(random)
        disk.replace_contents(f"{STAGING}/rocketbed.ckpt.new", LONGER)  # of a crash
        await marks.store(mark)
        ensure_durable(world, "a mark")
        assert disk.contents(path) == encode_mark(mark), "mark: and something behind it"
        again = Marks(world, ROOT, STAGING, Failure())
        assert again.load() == mark == again.mark, f"mark: {again.mark} for {mark}"
        assert marks.mark == mark and marks.has_traces, "mark: it is another one in memory"
        at = random.randrange(1 << 40)
        await marks.update(resend_to=at)
        assert again.load() == marks.mark and again.mark.resend_to == at, "mark: an update is lost"
        data = encode_mark(mark)
        where = random.randrange(len(data))
        spoilt = (data[:-1], data[1:], data + b"\n", data[:where], b"",
                  data[:where] + bytes((data[where] ^ 1,)) + data[where + 1 :])  # fmt: skip
        for text in spoilt:
            assert decode_mark(text) is None, f"mark: {text!r} was taken for {data!r}"
        disk.replace_contents(path, spoilt[0])
        assert again.load() is None and again.has_traces, "mark: half a mark was taken"
        end = random.randrange(1 << 40)
        lower = {topic: at if at < end else end for topic, at in mark.deleted.items()}
        assert mark.deleted_below(end) == lower, f"mark: deleted below {end}"
    plain = Mark(store_id="x", offset=0)
    assert decode_mark(encode_mark(plain)) == plain, "mark: one without anything"
    assert Marks(world, ROOT, STAGING, Failure()).mark == replace(plain, store_id=""), (
        "mark: the first one"
    )
    known = orjson.loads(encode_mark(plain).split(b"\n")[1])
    text = orjson.dumps({name: known[name] for name in OLDEST})
    old = b"rocketbed-ckpt 1\n%s\n%08x\n" % (text, crc32c(text))
    assert decode_mark(old) == plain, f"mark: one of a former version: {decode_mark(old)}"


async def _flushed(world: World, random: Random) -> None:
    """A number, or not known; damaged is another thing than not known."""
    disk: Any = world.disk
    marks = Marks(world, ROOT, STAGING, Failure())
    assert marks.load_flushed() is None and marks.has_lost_flushed, "F: there is one"
    for value in (0, 1, random.randrange(1 << 62), None, (1 << 63) - 1):
        await marks.store_flushed(value, durable=True)
        if value != 0:  # which made the file, whose name is not on disk yet
            ensure_durable(world, "F")
        await disk.sync_dir(ROOT)
        told = marks.load_flushed(), marks.has_lost_flushed, marks.has_traces
        assert told == (value, False, True), f"F: {told} for {value}"
    await marks.store_flushed(5)
    assert FLUSHED in Loss(disk).behind, "F: it waits for the disk each time"
    data = disk.contents(FLUSHED)
    want = struct.pack(">q", 5)
    assert data[:8] == want and len(data) == 16, f"F: {data!r}"
    await marks.store_flushed(None)
    unknown = disk.contents(FLUSHED)[:8]
    assert unknown == b"\xff" * 8, f"F: {unknown!r} for not known"
    for spoilt in (data[:-1], data + b"\0", b"", data[:7] + b"\6" + data[8:], bytes(16)):
        disk.replace_contents(FLUSHED, spoilt)
        told = marks.load_flushed(), marks.has_lost_flushed, True
        assert told == (None, True, True), f"F: {spoilt!r} is {told}"


# --- RocketMQ's


async def _checkpoints(world: World, random: Random) -> None:
    """One page, of which the first time its name is new."""
    disk: Any = world.disk
    witnesses = Witnesses(world, ROOT, STAGING)
    none = Checkpoint(), bytes(40)
    told = witnesses.load_checkpoint(), witnesses.checkpoint_bytes()
    assert told == none, f"checkpoint: {told} where there is none"
    for number in range(TIMES):
        values = [random.randrange(1 << 60) for _ in range(6)]
        names = "physic_ms", "logics_ms", "index_ms", "master_flushed_offset", "confirm_offset"
        stored = Checkpoint(**dict(zip((*names, "logics_offset"), values, strict=True)))
        syncs: list[str] = []
        disk.observer = lambda kind, path, *_, syncs=syncs: syncs.append(kind)
        await witnesses.store_checkpoint(stored)
        disk.observer = None
        ensure_durable(world, "a checkpoint")
        assert ("sync_dir" in syncs) == (not number), f"checkpoint: {number}: {syncs}"
        data = disk.contents(CHECKPOINT)
        want = struct.pack(">6q", *values).ljust(4096, b"\0")
        assert data == want, f"checkpoint: {data[:60]!r}"
        told = witnesses.load_checkpoint(), witnesses.checkpoint_bytes()
        assert told == (stored, want[:40]), f"checkpoint: {told}"
    disk.replace_contents(CHECKPOINT, want[:20])
    told = witnesses.load_checkpoint(), witnesses.checkpoint_bytes()
    assert told[0].physic_ms == values[0], f"checkpoint: {told} of 20 bytes"
    assert told[1] == want[:20] + bytes(20), f"checkpoint: {told} of 20 bytes"


async def _aborts(world: World, random: Random) -> None:
    """Whole when it has its name; gone, also after a power cut, when it was removed."""
    disk: Any = world.disk
    witnesses = Witnesses(world, ROOT, STAGING)
    for boot in (None, "another"):
        assert witnesses.load_abort() is None, "abort: there is one"
        disk.replace_contents(f"{STAGING}/abort.new", LONGER)  # of a crash
        await witnesses.store_abort("an-id", boot)
        ensure_durable(world, "abort")
        text = disk.contents(ABORT)
        assert text.count(b"\n") == 3 and text[-1:] == b"\n", f"abort: {text[:80]!r}"
        found = witnesses.load_abort()
        want = str(world.process.pid), "an-id", boot or world.process.boot_id, False
        assert found is not None
        told = found.pid, found.store_id, found.boot_id, found.is_empty
        assert told == want, f"abort: {told} for {want}"
        await witnesses.remove_abort()
        assert ABORT not in Loss(disk).back, "abort: it would be back"
    for text, want in (
        (b"", ("", "", "", True)), (b"17\n", ("17", "", "", False)),
        (b"\nuuid=x\n", ("", "x", "", False)), (b"\xff", ("\ufffd", "", "", False)),
    ):  # fmt: skip
        disk.replace_contents(ABORT, text)
        found = witnesses.load_abort()
        assert found is not None
        told = found.pid, found.store_id, found.boot_id, found.is_empty
        assert told == want, f"abort: {text!r} is {told}"
    disk.unlink(ABORT)
