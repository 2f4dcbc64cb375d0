"""The independent reader on directories that rocketbed's own store writes.

The two share no code, so what one writes and the other finds good is right twice over.
"""

import json
import shutil
import struct
from pathlib import Path

import pytest
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
from rocketbed.node.store.store import MessageStore
from rocketbed.world.real import real_world
from tests.support.own_store import COUNT, Topics, add, config, fill, write
from tests.support.stores import broken, files_below, only, overwrite, segment_of


def examine(root: Path) -> Report:
    opened = open_directory(root)
    try:
        return check_store(opened)
    finally:
        opened.close()


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
    messages_read = list(messages(opened, Filter(topic="Inner", scan=True)))
    assert [message.queue_offset for message in messages_read] == list(range(80))
    assert len(list(messages(opened, Filter(topic="Topic1", key="key4")))) == 1


async def test_disabled_index_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await write(root)
    await write(root, indexed=False)
    report = examine(root)
    rules = [(finding.rule, finding.severity) for finding in report.findings]
    assert rules == [("index-complete", Severity.TAIL)], report.findings
    assert "messageIndexEnable was false" in only(report, "index-complete", Severity.TAIL)
    await write(root)
    assert examine(root).findings == ()


async def test_index_truncated_by_a_kill_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "killed"
    await write(tmp_path / "store", copy_to=root)
    await write(root, indexed=False)
    assert {finding.rule for finding in examine(root).findings} <= {
        "index-matches-log",
        "index-complete",
    }
    assert examine(root).worst == Severity.TAIL, examine(root).findings


async def test_killed_store_is_good_but_for_the_kill(tmp_path: Path) -> None:
    await write(tmp_path / "store", copy_to=tmp_path / "killed")
    report = examine(tmp_path / "killed")
    assert report.worst <= Severity.TAIL, report.findings
    assert "abort-file" in {finding.rule for finding in report.findings}
    assert broken(report) <= {"queue-entries-complete", "index-complete"}
    assert report.records == COUNT + COUNT // 10 * 4


async def test_lost_beginning_is_damage_by_the_mark(tmp_path: Path) -> None:
    await write(tmp_path / "store")
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())
    segments[0].unlink()
    findings = [f for f in examine(tmp_path / "store").findings if f.rule == "log-files-tile"]
    assert [(f.severity, f.offset) for f in findings] == [(Severity.DAMAGE, 0)]


@pytest.mark.parametrize(
    ("name", "severity"),
    [("rocketbed.ckpt", Severity.DAMAGE), ("rocketbed.flushed", Severity.NOTE)],
)
@pytest.mark.parametrize("data", [b"", b"\xff" * 12])
async def test_incomplete_own_marks_are_reported(
    tmp_path: Path, name: str, severity: Severity, data: bytes
) -> None:
    """After a clean stop W says what `rocketbed.flushed` did."""
    await write(tmp_path / "store")
    (tmp_path / "store" / name).write_bytes(data)
    findings = [f for f in examine(tmp_path / "store").findings if f.rule == "checkpoint-not-ahead"]
    assert [(f.severity, f.file) for f in findings] == [(severity, name)]


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
        assert await store.removal.delete_topic("Topic1") == 4
        run = store.begin()
        add(run, 1)
        store.commit(run)
        await store.close()
    report = examine(root)
    assert broken(report) == set(), report.findings


@pytest.mark.parametrize("kept_queues", [1, 3, 4])
async def test_queues_left_by_an_interrupted_deletion_are_no_damage(
    tmp_path: Path, kept_queues: int
) -> None:
    """Seed 851093: killed between the mark of the deletion and the end of its files."""
    root = tmp_path / "store"
    await write(root)
    shutil.copytree(root / "consumequeue", tmp_path / "before")
    store = await MessageStore.open(real_world("test"), config(root), Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        assert await store.removal.delete_topic("Topic1") == 4
        await store.close()
    for queue in sorted((tmp_path / "before" / "Topic1").iterdir())[-kept_queues:]:
        shutil.copytree(queue, root / "consumequeue" / "Topic1" / queue.name)
    report = examine(root)
    assert broken(report) == set(), report.findings


async def test_topic_missing_only_from_the_table_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await write(root)
    topics = {path.name for path in (root / "consumequeue").iterdir()}
    topics |= {path.name for path in (root / "batchconsumequeue").iterdir()}
    (root / "config").mkdir()
    rows: dict[str, dict[str, object]] = {name: {} for name in topics}
    rows["Inner"]["attributes"] = {"queue.type": "BatchCQ"}
    for lost, severity in (("", Severity.NOTE), ("Topic1", Severity.DAMAGE)):
        rows.pop(lost, None)
        text = json.dumps({"topicConfigTable": rows})
        (root / "config" / "topics.json").write_text(text)
        report = examine(root)
        assert report.worst == severity, report.findings
    assert "though nobody deleted it" in only(report, "topics")
    (root / "abort").touch()  # a new topic's row may not be there yet after a kill
    assert "topics" not in broken(examine(root))


def write_flushed(root: Path, offset: int) -> None:
    """Say that the log was on disk up to an offset."""
    data = struct.pack(">q", offset)
    (root / "rocketbed.flushed").write_bytes(data + struct.pack(">Q", crc32c(data)))


async def test_torn_end_above_the_flushed_offset_is_a_tail(tmp_path: Path) -> None:
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
    assert "no-silent-damage" in broken(report)
    write_flushed(root, bad)
    report = examine(root)
    assert "log-end" in broken(report)
    assert report.log_end == bad
    graver = [finding for finding in report.findings if finding.severity == Severity.DAMAGE]
    assert {finding.rule for finding in graver} <= {"checkpoint-not-ahead"}, graver
