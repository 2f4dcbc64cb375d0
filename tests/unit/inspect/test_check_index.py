"""The check of the index: each lie is found, its innocent neighbour left alone."""

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.inspect import Severity, open_directory, rebuild
from rocketbed.inspect.index import IndexLayout
from rocketbed.inspect.properties import index_key_hash
from rocketbed.inspect.writers import IndexWriter
from rocketbed.node.store.marks import Mark, encode_mark
from tests.support.stores import (
    SETTINGS,
    broken,
    build,
    check,
    flip,
    index_file,
    only,
    overwrite,
    some,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def entry_at(number: int) -> int:
    return 40 + 4 * 10 + 20 * number


def test_s8_an_entry_with_a_foreign_hash(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), entry_at(4) + 3, 0x20)
    assert (
        {"index-matches-log", "index-complete"}
        <= broken(check(root))
        <= {"index-matches-log", "index-complete", "abort-file"}
    )


def test_s8_an_entry_that_points_between_records(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), entry_at(5) + 11)
    assert "index-matches-log" in broken(check(root))


def test_s8_a_broken_chain(root: Path) -> None:
    build(root, some(5))
    overwrite(index_file(root), entry_at(3) + 16, struct.pack(">i", 3))
    assert "does not end" in only(check(root), "index-matches-log")


def test_s8_a_wrong_slot(root: Path) -> None:
    build(root, some(5))
    path = index_file(root)
    slots = path.read_bytes()[40:80]
    used = next(slot for slot in range(10) if slots[4 * slot : 4 * slot + 4] != bytes(4))
    overwrite(path, 40 + 4 * used, bytes(4))
    only(check(root), "index-matches-log")


def test_s8_a_wrong_header(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), 39)
    assert "index-matches-log" in broken(check(root))


def test_s8_a_wrong_time(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), entry_at(3) + 15, 8)
    assert "after the begin" in only(check(root), "index-matches-log")


def test_s10_unindexed_keys(root: Path) -> None:
    build(root, some(20))
    index_file(root, 1).unlink()
    only(check(root), "index-complete")


def test_s10_older_index_files_may_be_gone(root: Path) -> None:
    build(root, some(20))
    index_file(root, 0).unlink()
    report = check(root)
    assert report.verdict == "good"
    assert [finding.rule for finding in report.findings] == ["index-complete"]


def test_s10_no_index_at_all_is_a_setting(root: Path) -> None:
    build(root, some(20))
    for path in list((root / "index").iterdir()):
        path.unlink()
    assert check(root).verdict == "good"


@pytest.mark.parametrize("tagged", [False, True])
def test_s10_the_last_record_may_be_indexed_twice(root: Path, tagged: bool) -> None:
    """Recovery lets the record at the index's end through once more (store.md 4.2)."""
    offsets = build(root, some(3))
    index_file(root).unlink()
    writer = IndexWriter(str(root / "index"), IndexLayout(10, 20))
    specs = some(3)
    order = [*zip(offsets, specs, range(3), strict=True)]
    for offset, spec, number in [*order, order[-1]]:
        properties = dict(spec.properties)
        keys = [properties["UNIQ_KEY"], *properties["KEYS"].split(" ")]
        for key in [*keys, f"T#{properties['TAGS']}"] if tagged else keys:
            writer.put(index_key_hash("T", key), offset, 1_700_000_000_000 + 1000 * number)
    writer.close()
    report = check(root)
    assert report.verdict == "good"
    assert ["indexed 2 times" in finding.text for finding in report.findings] == [True]


def index_again(root: Path, offsets: list[int], first: int) -> None:
    """Rebuild the index as RocketMQ does after an unclean stop: the unfinished file goes, full ones
    stay, and new files hold what is dispatched again.
    """
    index_file(root, -1).unlink()
    writer = IndexWriter(str(root / "again"), IndexLayout(10, 20))
    for number, spec in enumerate(some(len(offsets))):
        properties = dict(spec.properties)
        for key in (properties["UNIQ_KEY"], *properties["KEYS"].split(" ")):
            if number >= first:
                hashed = index_key_hash("T", key)
                writer.put(hashed, offsets[number], 1_700_000_000_000 + 1000 * number)
    writer.close()
    for path in sorted((root / "again").iterdir()):
        path.rename(root / "index" / f"9{path.name[1:]}")
    (root / "again").rmdir()


@pytest.mark.parametrize("first", [0, 2, 7, 19])
def test_s10_rocketmq_recovery_indexes_full_files_again(root: Path, first: int) -> None:
    index_again(root, build(root, some(22)), first)
    report = check(root)
    assert report.verdict == "good"
    files = [finding.file for finding in report.findings if "older files hold" in finding.text]
    assert len(files) == {0: 3, 2: 3, 7: 2, 19: 0}[first]


def test_s10_rocketmq_recovery_from_too_late_lost_keys(root: Path) -> None:
    index_again(root, build(root, some(22)), 21)
    assert only(check(root), "index-complete").startswith("6 keys from log ")


def test_s8_step_back_inside_a_file_is_no_recovery(root: Path) -> None:
    offsets = build(root, some(22))
    index_again(root, offsets, 0)
    path = index_file(root, -1)
    overwrite(path, entry_at(2) + 4, struct.pack(">q", offsets[3]))
    assert "index-matches-log" in broken(check(root))


@pytest.mark.parametrize(
    ("clean", "missing", "severity"),
    [(False, 1, Severity.TAIL), (False, 2, Severity.DAMAGE), (True, 1, Severity.DAMAGE)],
)
def test_s10_kill_between_a_queue_and_the_index(
    root: Path, clean: bool, missing: int, severity: Severity
) -> None:
    """Queues first, the index last (store.md 7): it may lack one record that a queue knows."""
    offsets = build(root, some(5), clean=clean)
    index_file(root).unlink()
    writer = IndexWriter(str(root / "index"), IndexLayout(10, 20))
    for number, spec in enumerate(some(5 - missing)):
        properties = dict(spec.properties)
        for key in (properties["UNIQ_KEY"], *properties["KEYS"].split(" ")):
            hashed = index_key_hash("T", key)
            writer.put(hashed, offsets[number], 1_700_000_000_000 + 1000 * number)
    writer.close()
    severities = {
        finding.severity for finding in check(root).findings if finding.rule == "index-complete"
    }
    assert severities == {severity}


def with_tags(root: Path, count: int = 40) -> None:
    """A store whose index holds tags too, as RocketMQ 5.5.0 makes it."""
    build(root, some(count))
    opened = open_directory(root, SETTINGS)
    shutil.rmtree(root / "index")
    shutil.rmtree(root / "consumequeue")
    rebuild(opened, str(root), with_tags=True)
    opened.close()


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def test_index_with_tags_is_sound_and_rebuilt_with_tags(root: Path, tmp_path: Path) -> None:
    with_tags(root)
    assert broken(check(root)) == set()
    opened = open_directory(root, SETTINGS)
    rebuild(opened, str(tmp_path / "again"))
    opened.close()
    assert contents(tmp_path / "again") == contents(root)
    assert len(contents(root)) > 6


def test_our_mark_records_tags_of_a_missing_index(root: Path, tmp_path: Path) -> None:
    with_tags(root)
    shutil.move(root / "index", tmp_path / "index")
    mark = Mark(store_id="5f", offset=0, index_tags=True, clean=bytes(40).hex())
    (root / "checkpoint").write_bytes(bytes(4096))
    (root / "rocketbed.ckpt").write_bytes(encode_mark(mark))
    opened = open_directory(root, SETTINGS)
    rebuild(opened, str(tmp_path / "again"))
    opened.close()
    assert contents(tmp_path / "again") == contents(tmp_path)


def test_a_tagged_record_without_keys_is_no_stranger(root: Path) -> None:
    specs = [replace(spec, properties=(("TAGS", "a"),)) for spec in some(5)]
    build(root, specs)
    opened = open_directory(root, SETTINGS)
    shutil.rmtree(root / "consumequeue")
    rebuild(opened, str(root), with_tags=True)
    opened.close()
    assert broken(check(root)) == set()
