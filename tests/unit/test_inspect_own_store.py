"""The independent reader on directories that rocketbed's own store writes.

The two share no code, so what one writes and the other finds good is right twice over.
"""

import shutil
import struct
from pathlib import Path

import trio

from rocketbed.inspect import (
    Filter,
    Report,
    Severity,
    check_store,
    messages,
    open_directory,
    rebuild,
)
from rocketbed.inspect.marks import crc32c
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.real import real_world
from tests.support.stores import broken, files_below, overwrite, segment_of

BORN = bytes([127, 0, 0, 1]) + struct.pack(">i", 5000)
COUNT = 200


class Topics:
    """A topic table with one batch topic."""

    def exists(self, topic: str) -> bool | None:
        return True

    def is_batch_queue(self, topic: str) -> bool:
        return topic == "Inner"


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=str(root),
        segment_size=16384,
        queue_segment_size=200,
        batch_queue_segment_size=460,
        index_slots=50,
        index_entries=100,
        append_property_crc=True,
        mark_interval_ms=20,
    )


def properties_of(number: int) -> tuple[bytes, str, tuple[str, ...]]:
    unique, key, tag = f"7F000001{number:024X}", f"key{number}", f"tag{number % 5}"
    text = f"UNIQ_KEY\x01{unique}\x02KEYS\x01{key} all\x02TAGS\x01{tag}\x02"
    return text.encode(), tag, (unique, key, "all")


def add(run: Run, number: int) -> None:
    properties, tag, keys = properties_of(number)
    run.add(
        f"Topic{number % 3}",
        number % 4,
        b"body %d" % number * (number % 20),
        properties,
        flag=number,
        sys_flag=0,
        born_ms=1000 + number,
        born_host=BORN if number % 7 else bytes(15) + b"\1" + struct.pack(">i", 5000),
        tag=tag,
        keys=keys,
    )


def inner_body(count: int) -> bytes:
    items = [struct.pack(">5i", 25, 0, 0, 0, 3) + b"abc" + struct.pack(">h", 0)] * count
    return b"".join(items)


async def fill(store: MessageStore) -> None:
    for first in range(0, COUNT, 10):
        run = store.begin()
        for number in range(first, first + 10):
            add(run, number)
        items = [
            BatchItem(b"item %d" % number, 0, properties_of(1000 + first + number)[0])
            for number in range(3)
        ]
        run.add_batch("Batch", 0, items, sys_flag=0, born_ms=1, born_host=BORN)
        store.commit(run)
        run = store.begin()
        run.add_inner_batch(
            "Inner",
            0,
            inner_body(4),
            b"UNIQ_KEY\x01inner%d\x02" % first,
            count=4,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=BORN,
            unique_key=f"inner{first}",
        )
        store.commit(run)
        await trio.lowlevel.checkpoint()
    await store.dispatched.wait_above(store.max_offset - 1)


def examine(root: Path) -> Report:
    opened = open_directory(root)
    try:
        return check_store(opened)
    finally:
        opened.close()


async def write(root: Path, *, copy_to: Path | None = None) -> None:
    """A store that is filled and closed; `copy_to` gets a copy from before the close."""
    store = await MessageStore.open(real_world("test"), config(root), Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await fill(store)
        if copy_to is not None:
            shutil.copytree(root, copy_to)
        await store.close()


async def test_a_stopped_store_is_good(tmp_path: Path) -> None:
    await write(tmp_path / "store")
    report = examine(tmp_path / "store")
    assert report.findings == ()
    assert report.records == COUNT + COUNT // 10 * 4
    opened = open_directory(tmp_path / "store")
    assert opened.sizes.segment == 16384
    assert opened.index_layout == (50, 100)
    assert opened.marks is not None
    assert opened.marks.trusted
    assert opened.marks.flushed_offset == report.log_end
    found = list(messages(opened, Filter(topic="Inner", scan=True)))
    assert [message.queue_offset for message in found] == list(range(80))
    assert len(list(messages(opened, Filter(topic="Topic1", key="key4")))) == 1


async def test_a_killed_store_is_good_but_for_the_kill(tmp_path: Path) -> None:
    await write(tmp_path / "store", copy_to=tmp_path / "killed")
    report = examine(tmp_path / "killed")
    assert report.worst <= Severity.TAIL, report.findings
    assert "S12" in {finding.rule for finding in report.findings}
    assert broken(report) <= {"S5", "S10"}
    assert report.records == COUNT + COUNT // 10 * 4


async def test_rebuilt_queues_and_index_are_the_stores(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await write(root)
    opened = open_directory(root)
    rebuild(opened, str(tmp_path / "out"))
    for part in ("consumequeue", "batchconsumequeue"):
        assert dict(files_below(tmp_path / "out", part)) == dict(files_below(root, part))
    rebuilt = [data for _, data in sorted(files_below(tmp_path / "out", "index"))]
    assert rebuilt == [data for _, data in sorted(files_below(root, "index"))]


async def test_deleted_topics_have_no_queue(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = await MessageStore.open(real_world("test"), config(root), Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await fill(store)
        assert await store.delete_topic("Topic1") == 4
        run = store.begin()
        add(run, 1)
        store.commit(run)
        await store.close()
    report = examine(root)
    assert broken(report) == set(), report.findings


def write_flushed(root: Path, offset: int) -> None:
    """Say that the log was on disk up to an offset."""
    known = struct.pack(">q", offset)
    (root / "rocketbed.flushed").write_bytes(known + struct.pack(">Q", crc32c(known)))


async def test_what_is_torn_above_the_flushed_offset_is_a_tail(tmp_path: Path) -> None:
    """A power loss leaves good records behind a bad one; the marks tell it from damage."""
    await write(tmp_path / "store", copy_to=tmp_path / "killed")
    root = tmp_path / "killed"
    opened = open_directory(root)
    offsets = [item.offset for item in opened.log.scan() if hasattr(item, "store_ms")]
    opened.close()
    bad = offsets[-5]
    path, position = segment_of(root, bad, 16384)
    overwrite(path, position, bytes(80))
    write_flushed(root, bad + 1)
    report = examine(root)
    assert report.verdict == "damage"
    assert "S9" in broken(report)
    write_flushed(root, bad)
    report = examine(root)
    assert "S13" in broken(report)
    assert report.log_end == bad
    graver = [finding for finding in report.findings if finding.severity == Severity.DAMAGE]
    assert {finding.rule for finding in graver} <= {"S11"}, graver
