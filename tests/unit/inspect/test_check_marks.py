"""The check of checkpoint, abort file, lock and configuration."""

import fcntl
import json
import os
import signal
import struct
from contextlib import closing
from pathlib import Path

import pytest

from rocketbed.inspect import Settings, Severity, check_store, open_directory
from tests.support.stores import (
    SEGMENT,
    SETTINGS,
    Spec,
    broken,
    build,
    check,
    only,
    overwrite,
    queue_file,
    segment_of,
    some,
    write_log,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_s11_a_checkpoint_ahead_of_the_log(root: Path) -> None:
    build(root, some(5))
    overwrite(root / "checkpoint", 8, struct.pack(">q", 1_700_000_005_000))
    assert "queue time" in only(check(root), "checkpoint-not-ahead")


def test_s11_a_confirm_offset_ahead_of_the_log(root: Path) -> None:
    build(root, some(5))
    overwrite(root / "checkpoint", 32, struct.pack(">q", SEGMENT * 4))
    assert "confirm offset" in only(check(root), "checkpoint-not-ahead")


def test_s11_a_short_checkpoint(root: Path) -> None:
    build(root, some(5))
    os.truncate(root / "checkpoint", 48)
    only(check(root), "checkpoint-not-ahead")


def test_s11_no_checkpoint_is_only_slow(root: Path) -> None:
    build(root, some(5))
    (root / "checkpoint").unlink()
    assert check(root).verdict == "good"


def test_s12_no_abort_file_over_a_torn_tail(root: Path) -> None:
    specs = some(5)
    offsets = build(root, specs)
    path, _ = segment_of(root, 0)
    overwrite(path, offsets[4] + 400, b"remains of a record")
    report = check(root)
    assert broken(report) == {"abort-file", "log-end"}
    assert report.worst == Severity.DAMAGE


def test_s12_is_a_tail_with_an_abort_file(root: Path) -> None:
    offsets = build(root, some(5), clean=False)
    path, _ = segment_of(root, 0)
    overwrite(path, offsets[4] + 400, b"remains of a record")
    only(check(root), "log-end", Severity.TAIL)


def test_s15_a_torn_configuration_file(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    good = json.dumps({"topicConfigTable": {"T": {"topicName": "T"}}})
    (config / "topics.json").write_text(good[:20])
    (config / "topics.json.bak").write_text(good)
    report = check(root)
    assert "cannot be read" in only(report, "tables-readable")
    assert "copy topics.json.bak" in report.findings[0].advice
    (config / "topics.json").write_text(good)
    (config / "topics.json.bak").write_text(good[:20])
    only(check(root), "tables-readable", Severity.TAIL)


def test_s15_unquoted_keys_are_fastjsons_way(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5,1:2},"a{1:x":{}}}')
    assert check(root).findings == ()


def test_s16_a_committed_offset_beyond_the_queue(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:6}}}')
    report = check(root)
    assert report.verdict == "good"
    assert [finding.rule for finding in report.findings] == ["queue-bounds"]


def test_s16_pre_blanks_at_the_start_of_a_log_from_0(root: Path) -> None:
    build(root, [Spec(queue_offset=7), Spec()])
    report = check(root)
    assert [finding.rule for finding in report.findings] == ["queue-bounds"]
    assert report.verdict == "good"


def test_topics_of_the_wrong_kind(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    row = {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"T": row}}))
    assert "topics" in broken(check(root))


def test_unknown_topics_are_reported(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    (config / "topics.json").write_text('{"topicConfigTable":{}}')
    report = check(root)
    assert [finding.rule for finding in report.findings] == ["topics"]
    assert report.verdict == "good"


def test_backward_store_times_are_reported(root: Path) -> None:
    build(root, [Spec(store_ms=2000), Spec(store_ms=1000), Spec(store_ms=3000)])
    report = check(root)
    assert report.verdict == "good"
    assert ["step back 1 times" in finding.text for finding in report.findings] == [True]


def test_s18_a_live_store(root: Path) -> None:
    """Another process holds the lock: unfinished ends are then no damage."""
    build(root, some(5))
    (root / "lock").write_text("lock")
    overwrite(queue_file(root), 3 * 20, bytes(40))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(root / "lock", os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        os.write(writer, b"held")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(reader, 4) == b"held"
        opened = open_directory(root, SETTINGS)
        assert opened.lock_holder() == child
        report = check_store(opened)
        assert report.live
        assert report.worst == Severity.TAIL
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not check(root).live


def test_progress_is_reported_in_bytes_of_the_log(root: Path) -> None:
    body = bytes(1 << 20)
    big = Settings.from_properties({"mappedFileSizeCommitLog": str(1 << 26)})
    write_log(root, [Spec(body=body)] * 40, segment=1 << 26)
    progress: list[tuple[int, int]] = []
    with closing(open_directory(root, big)) as opened:
        check_store(opened, lambda done, total: progress.append((done, total)))
    assert [total for _, total in progress] == [1 << 26] * len(progress)
    assert len(progress) == 2


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nowhere"])
@pytest.mark.parametrize(
    "name",
    ["abort", "checkpoint", "lock", "rocketbed.ckpt", "rocketbed.flushed", "config/topics.json"],
)
def test_non_file_is_reported_and_never_read(root: Path, name: str, kind: str) -> None:
    """A pipe answers never, and `/dev/zero` always."""
    build(root, some(5))
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/nowhere")
    if (name, kind) == ("config/topics.json", "nowhere"):
        return  # as good as not there
    findings = [finding for finding in check(root).findings if finding.file == name]
    assert any("no regular file" in finding.text for finding in findings), findings
    assert findings[0].severity == Severity.DAMAGE


def test_a_pipe_among_the_segments_is_called_one(root: Path) -> None:
    build(root, some(5))
    os.mkfifo(root / "commitlog" / f"{SEGMENT * 7:020d}")
    assert "no regular file" in only(check(root), "sizes")


@pytest.mark.parametrize(
    ("name", "text", "expected_text"),
    [
        ("topics.json", "[" * 100_000, "nested too deeply"),
        ("consumerOffset.json", '{"offsetTable":{"T@g":{0:1e400}}}', "1e400 is no number"),
        ("consumerOffset.json", '{"offsetTable":{"T@g":{0:NaN}}}', "NaN is no number"),
    ],
)
def test_s15_json_that_a_broker_does_not_read(
    root: Path, name: str, text: str, expected_text: str
) -> None:
    build(root, some(5))
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(text)
    assert expected_text in only(check(root), "tables-readable")


@pytest.mark.parametrize(
    ("row", "expected_text"),
    [
        ({"readQueueNums": 0, "perm": 6}, "there is a queue 0, and readQueueNums=0"),
        ({"readQueueNums": 4, "perm": 2}, "perm=2 lets nobody read"),
        ({"readQueueNums": 2_000_000_000, "perm": 6}, "readQueueNums=2000000000"),
        ({"readQueueNums": 4, "perm": 6}, ""),
    ],
)
def test_a_row_of_the_table_that_hides_messages(
    root: Path, row: dict[str, int], expected_text: str
) -> None:
    build(root, some(5))
    (root / "config").mkdir(exist_ok=True)
    text = json.dumps({"topicConfigTable": {"T": row}})
    (root / "config" / "topics.json").write_text(text)
    texts = [finding.text for finding in check(root).findings if finding.rule == "topics"]
    assert [one for one in texts if expected_text and expected_text in one] == texts
    assert bool(texts) == bool(expected_text)
