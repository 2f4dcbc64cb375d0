"""Less usual inhabitants of a directory: batch queues, extended units, multi-dispatch, delays."""

import struct
from pathlib import Path

import pytest

from rocketbed.inspect import Filter, Severity, messages, open_directory, rebuild
from rocketbed.inspect.consumequeue import BATCH_UNIT, UNIT
from rocketbed.inspect.files import FilePool, SegmentFile
from rocketbed.inspect.index import IndexLayout, derive_layout
from rocketbed.inspect.properties import index_key_hash, java_hash
from rocketbed.inspect.writers import GAP_UNITS_MAX, IndexWriter, QueueWriter, SlotRefused
from tests.support.stores import (
    QUEUE_SEGMENT,
    SETTINGS,
    STORE_MS,
    Spec,
    broken,
    build,
    check,
    index_file,
    only,
    overwrite,
    queue_file,
    some,
)

TOPICS = '{"topicConfigTable":{"B":{"topicName":"B","attributes":{"queue.type":"BatchCQ"}}}}'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


# Batch queues


def inner(count: int, base: int) -> Spec:
    item = struct.pack(">5i", 25, 0, 0, 0, 3) + b"abc" + struct.pack(">h", 0)
    properties = (("INNER_NUM", str(count)), ("INNER_BASE", str(base)), ("UNIQ_KEY", f"u{base}"))
    return Spec("B", body=item * count, properties=properties, sys_flag=0xC0, queue_offset=base)


def build_batches(root: Path) -> Path:
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(TOPICS)
    build(root, [inner(3, 0), inner(2, 3), inner(5, 5)])
    return next((root / "batchconsumequeue" / "B" / "0").iterdir())


def test_batch_queues(root: Path) -> None:
    build_batches(root)
    assert check(root).findings == ()
    opened = open_directory(root, SETTINGS)
    assert opened.batch_queues["B", 0].bounds(0) == (0, 10)
    batch = list(messages(opened, Filter(topic="B", queue_id=0, offset=4)))
    assert [message.queue_offset for message in batch] == [4, 5, 6, 7, 8, 9]
    assert {message.as_row()["bodyLength"] for message in batch} == {3}


def test_single_message_in_a_batch_queue_is_a_batch_of_one(root: Path) -> None:
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(TOPICS)
    build(root, [inner(3, 0), Spec("B", body=b"one", queue_offset=3), inner(2, 4)])
    assert check(root).findings == ()
    opened = open_directory(root, SETTINGS)
    assert opened.batch_queues["B", 0].bounds(0) == (0, 6)
    (message, *_) = messages(opened, Filter(topic="B", queue_id=0, offset=3))
    assert (message.queue_offset, message.body) == (3, b"one")


def test_s5_a_missing_batch_unit(root: Path) -> None:
    path = build_batches(root)
    overwrite(path, 2 * 46, bytes(46))
    assert broken(check(root)) == {"queue-entries-complete", "abort-file"}
    (root / "abort").touch()
    only(check(root), "queue-entries-complete", Severity.TAIL)


def test_s4_a_wrong_batch_unit(root: Path) -> None:
    path = build_batches(root)
    data = path.read_bytes()
    fields = list(BATCH_UNIT.unpack_from(data, 46))
    fields[5] = 3
    overwrite(path, 46, BATCH_UNIT.pack(*fields))
    only(check(root), "queue-entries-match-log")
    fields = list(BATCH_UNIT.unpack_from(data, 46))
    fields[2] = 7
    overwrite(path, 46, BATCH_UNIT.pack(*fields))
    only(check(root), "queue-tag-codes")


def test_s3_and_s4_extra_batch_units(root: Path) -> None:
    path = build_batches(root)
    overwrite(path, 3 * 46, BATCH_UNIT.pack(1 << 20, 200, 0, STORE_MS, 10, 2, -1, 0))
    only(check(root), "nothing-beyond-log")
    overwrite(path, 3 * 46, BATCH_UNIT.pack(17, 200, 0, STORE_MS, 10, 2, -1, 0))
    only(check(root), "queue-entries-match-log")


def test_s6_a_gap_between_batches(root: Path) -> None:
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(TOPICS)
    build(root, [inner(3, 0), inner(2, 4)])
    assert "is due" in only(check(root), "queue-entry-places")


def test_batch_topics_single_messages_have_no_unit(root: Path) -> None:
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(TOPICS)
    build(root, [inner(3, 0), Spec("B", queue_offset=3)])
    assert check(root).findings == ()


# Extended units


def test_tags_in_an_extension_file(root: Path) -> None:
    build(root, some(4))
    extension = root / "consumequeue_ext" / "T" / "0"
    extension.mkdir(parents=True)
    code = java_hash("tag2")
    unit = struct.pack(">hqqh", 20, code, STORE_MS, 0)
    (extension / f"{0:020d}").write_bytes((bytes(40) + unit).ljust(1000, b"\0"))
    offset, size, _ = UNIT.unpack_from(queue_file(root).read_bytes(), 40)
    overwrite(queue_file(root), 40, UNIT.pack(offset, size, 40 - (1 << 63)))
    assert check(root).findings == ()
    overwrite(extension / f"{0:020d}", 42, bytes(8))
    only(check(root), "queue-tag-codes")


# Multi-dispatch


def test_multi_dispatch_queues(root: Path) -> None:
    def multi(offset: int) -> Spec:
        return Spec(
            properties=(
                ("INNER_MULTI_DISPATCH", "%LMQ%one,%LMQ%two"),
                ("INNER_MULTI_QUEUE_OFFSET", f"{offset},{offset}"),
            )
        )

    build(root, [multi(0), Spec(), multi(1)])
    assert check(root).verdict == "good"
    (root / "consumequeue" / "%LMQ%one" / "0").mkdir(parents=True)
    assert "queue-entries-complete" in broken(check(root))
    rebuilt = root.parent / "rebuilt"
    rebuild(open_directory(root, SETTINGS), str(rebuilt))
    queue_file = rebuilt / "consumequeue" / "%LMQ%one" / "0" / f"{0:020d}"
    own = rebuilt / "consumequeue" / "T" / "0" / f"{0:020d}"
    assert queue_file.read_bytes()[:40] == own.read_bytes()[:20] + own.read_bytes()[40:60]


# Delayed messages


def test_a_delayed_message_carries_its_time_of_delivery(root: Path) -> None:
    properties = (("DELAY", "3"), ("TAGS", "a"))
    build(root, [Spec("SCHEDULE_TOPIC_XXXX", queue_id=2, properties=properties)])
    assert check(root).verdict == "good"
    path = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / f"{0:020d}"
    assert UNIT.unpack_from(path.read_bytes())[2] == STORE_MS + 10_000
    overwrite(path, 12, struct.pack(">q", java_hash("a")))
    only(check(root), "queue-tag-codes")


# Index of a 5.5 broker


def test_a_5_5_broker_indexes_the_tag_too(root: Path) -> None:
    offsets = build(root, some(3))
    index_file(root).unlink()
    writer = IndexWriter(str(root / "index"), IndexLayout(10, 20))
    for number, (offset, spec) in enumerate(zip(offsets, some(3), strict=True)):
        properties = dict(spec.properties)
        for key in (
            properties["UNIQ_KEY"],
            *properties["KEYS"].split(" "),
            "T#" + properties["TAGS"],
        ):
            writer.put(index_key_hash("T", key), offset, STORE_MS + 1000 * number)
    writer.close()
    assert check(root).findings == ()


# Layouts


@pytest.mark.parametrize("layout", [IndexLayout(10, 20), IndexLayout(7, 30), IndexLayout(100, 9)])
@pytest.mark.parametrize("count", [1, 2, 6, 8, 25])
def test_an_index_layout_is_read_off_its_files(
    tmp_path: Path, layout: IndexLayout, count: int
) -> None:
    writer = IndexWriter(str(tmp_path), layout)
    for number in range(count):
        writer.put(number * 7919 + 13, 500 + 100 * number, STORE_MS + number)
    writer.close()
    files = [
        SegmentFile(int(path.name), str(path), path.stat().st_size)
        for path in sorted(tmp_path.iterdir())
    ]
    pool = FilePool()
    # With one or two entries several layouts fit; then one that fits is right enough to read.
    derived = derive_layout(pool, files)
    assert derived == layout or (count <= 2 and derived is not None)
    assert derive_layout(pool, files, slots=layout.slots) == layout
    assert derive_layout(pool, files, entries=layout.entries) == layout
    pool.close()


def test_unknown_layout_is_looked_up(root: Path) -> None:
    build(root, some(3))
    index_file(root).write_bytes(bytes(5000))
    opened = open_directory(root)
    assert opened.index_layout is None
    report = check(root, settings=None)
    assert ["maxHashSlotNum" in finding.advice for finding in report.findings] == [True]
    with pytest.raises(Exception, match="maxHashSlotNum=N"):
        rebuild(opened, str(root.parent / "out"))


# Writers


def test_slots_that_cannot_be(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path / "queue"), QUEUE_SEGMENT)
    writer.put(3, 0, 100, 0)
    for slot in (3, 0, -1, GAP_UNITS_MAX + 5, 1 << 61):
        with pytest.raises(SlotRefused):
            writer.put(slot, 100, 100, 0)
    writer.put(4, 100, 100, 0)
    writer.close()
    data = (tmp_path / "queue" / f"{0:020d}").read_bytes()
    assert [size for _, size, _ in UNIT.iter_unpack(data)] == [0x7FFFFFFF] * 3 + [100] * 2 + [0] * 5


def test_record_with_an_absurd_queue_offset_is_refused(root: Path) -> None:
    specs = some(4)
    specs[2] = Spec(queue_offset=1 << 50)
    specs[3] = Spec(queue_offset=2)
    build(root, specs)
    report = rebuild(open_directory(root, SETTINGS), str(root.parent / "out"))
    assert ["far beyond" in refused for refused in report.refused] == [True]
    assert report.units == 3
