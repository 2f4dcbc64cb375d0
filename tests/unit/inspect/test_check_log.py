"""The check of the log: each kind of damage is found, its innocent neighbour left alone."""

import struct
from pathlib import Path

import pytest

from rocketbed.inspect import Severity, open_directory, rebuild
from rocketbed.inspect.record import MAGIC_PREFIX
from tests.support.stores import (
    SEGMENT,
    SETTINGS,
    Spec,
    broken,
    build,
    check,
    encode,
    flip,
    only,
    overwrite,
    segment_of,
    some,
    write_log,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_good_store_is_good(root: Path) -> None:
    build(root, some(40))
    report = check(root)
    assert report.findings == ()
    assert (report.verdict, report.records, report.queues) == ("good", 40, 1)
    assert report.index_files == 7


def test_s1_a_missing_segment(root: Path) -> None:
    build(root, some(60))
    (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    report = check(root)
    assert "log-files-tile" in broken(report)
    assert report.worst == Severity.DAMAGE
    assert report.records < 60


@pytest.mark.parametrize("has_files", [True, False])
def test_s1_queues_without_a_log_are_damage_with_files(root: Path, has_files: bool) -> None:
    """If nothing was synced, a power loss leaves their folders."""
    build(root, some(5))
    for folder in ("commitlog", "index", "" if has_files else "consumequeue"):
        for file in (root / folder).rglob("*") if folder else ():
            if file.is_file():
                file.unlink()
    no_segment = [
        one for one in check(root).findings if one.text == "there is no commit log segment"
    ]
    assert [one.severity for one in no_segment] == [Severity.DAMAGE if has_files else Severity.NOTE]


def test_s1_a_log_that_begins_later_is_good(root: Path) -> None:
    build(root, some(40, queue_offset=None), first=SEGMENT * 7)
    assert check(root).verdict == "good"


def test_sizes_a_short_segment(root: Path) -> None:
    build(root, some(60))
    with open(segment_of(root, SEGMENT)[0], "r+b") as file:
        file.truncate(1000)
    report = check(root)
    assert {"sizes", "no-silent-damage"} <= broken(report)


def test_sizes_empty_last_segment_is_removed_by_a_start(root: Path) -> None:
    build(root, some(40))
    (root / "commitlog" / f"{SEGMENT * 2:020d}").touch()
    only(check(root), "sizes", Severity.TAIL)


def test_sizes_a_preallocated_segment_is_fine(root: Path) -> None:
    build(root, some(40))
    (root / "commitlog" / f"{SEGMENT * 2:020d}").write_bytes(bytes(SEGMENT))
    assert check(root).findings == ()


def test_sizes_a_stray_file(root: Path) -> None:
    build(root, some(5))
    (root / "commitlog" / "x.tmp").write_text("stray")
    (root / "index" / "x.tmp").write_text("stray")
    text = only(check(root), "sizes")
    assert "no offset" in text


def test_s2_a_flipped_bit_in_a_body(root: Path) -> None:
    offsets = build(root, some(40))
    path, position = segment_of(root, offsets[10])
    flip(path, position + 90)
    report = check(root)
    assert "record-checksums" in broken(report)
    body_finding = next(
        finding for finding in report.findings if finding.rule == "record-checksums"
    )
    assert body_finding.offset == offsets[10]
    assert "record-crc" in body_finding.text


def test_s9_erased_bytes_with_good_records_behind(root: Path) -> None:
    offsets = build(root, some(40))
    path, position = segment_of(root, offsets[5])
    overwrite(path, position, bytes(300))
    report = check(root)
    assert "no-silent-damage" in broken(report)
    assert report.worst == Severity.DAMAGE
    assert report.log_end > offsets[39]


def test_s13_erased_end_is_a_torn_tail(root: Path) -> None:
    offsets = build(root, some(10), clean=False)
    path, position = segment_of(root, offsets[9])
    overwrite(path, position + 40, bytes(SEGMENT - position - 40))
    overwrite(root / "checkpoint", 0, bytes(16))
    report = check(root)
    assert report.log_end == offsets[9]
    assert report.verdict == "torn tail"
    assert broken(report) == {"log-end", "nothing-beyond-log"}


def test_s13_torn_last_record_of_a_log_alone(root: Path) -> None:
    """A cut within the last record, nothing dispatched from it: a tail and nothing else."""
    specs = some(10)
    offsets = write_log(root, specs)
    path, position = segment_of(root, offsets[9])
    torn = path.read_bytes()
    overwrite(path, position, bytes(SEGMENT - position))
    opened = open_directory(root, SETTINGS)
    rebuild(opened, str(root))
    opened.close()
    (root / "abort").touch()
    assert check(root).verdict == "good"
    overwrite(path, position, torn[position : position + 60])
    only(check(root), "log-end", Severity.TAIL)


def test_s9_a_segment_that_ends_before_its_successor(root: Path) -> None:
    offsets = build(root, some(40))
    last = max(offset for offset in offsets if offset < SEGMENT)
    path, position = segment_of(root, last)
    overwrite(path, position, bytes(SEGMENT - position))
    assert "no-silent-damage" in broken(check(root))


def test_s9_filler_short_of_the_end(root: Path) -> None:
    build(root, some(40))
    path = segment_of(root, 0)[0]
    at = path.read_bytes().rindex(b"\xcb\xd4\x31\x94")
    overwrite(path, at - 4, struct.pack(">i", 9))
    assert "no-silent-damage" in broken(check(root))


def test_s9_closed_hole_is_only_reported(root: Path) -> None:
    specs = some(6)
    specs[3] = Spec(topic="!", body=b"damaged bytes", sys_flag=0xC)
    build(root, specs)
    report = check(root)
    assert report.verdict == "good"
    assert [finding.rule for finding in report.findings] == ["no-silent-damage"]


def test_record_in_a_body_is_no_record_of_the_log(root: Path) -> None:
    """A body that holds a record's bytes does not turn a tail into damage."""
    specs = some(8)
    offsets = write_log(root, specs)
    path, position = segment_of(root, offsets[7])
    inner = encode(Spec(), offset=17, queue_offset=0, store_ms=1)
    assert MAGIC_PREFIX in inner
    overwrite(path, position, b"\0\0\1\0" + inner)
    (root / "abort").touch()
    report = check(root)
    assert "log-end" in broken(report)
    assert not {"no-silent-damage", "record-checksums"} & broken(report)
