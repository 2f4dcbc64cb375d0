"""The check finds each kind of damage, and leaves its closest innocent neighbour alone."""

import fcntl
import json
import os
import signal
import struct
from pathlib import Path

import pytest

from rocketbed.inspect import Report, Settings, Severity, check_store, open_directory, rebuild
from rocketbed.inspect.consumequeue import PRE_BLANK, UNIT
from rocketbed.inspect.index import IndexLayout
from rocketbed.inspect.properties import index_key_hash
from rocketbed.inspect.record import MAGIC_PREFIX
from rocketbed.inspect.writers import IndexWriter
from tests.unit.inspect_support import (
    QUEUE_SEGMENT,
    SEGMENT,
    SETTINGS,
    Spec,
    broken,
    build,
    check,
    encode,
    flip,
    overwrite,
    segment_of,
    some,
    write_log,
)

QUEUE = "consumequeue/T/0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def only(report: Report, rule: str, severity: Severity = Severity.DAMAGE) -> str:
    """The text of the one rule that is broken."""
    assert broken(report) == {rule}, report.findings
    assert report.worst == severity, report.findings
    return next(finding.what for finding in report.findings if finding.rule == rule)


def queue_file(root: Path, number: int = 0) -> Path:
    return root / QUEUE / f"{number * QUEUE_SEGMENT:020d}"


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def test_a_good_store_is_good(root: Path) -> None:
    build(root, some(40))
    report = check(root)
    assert report.findings == ()
    assert (report.verdict, report.records, report.queues) == ("good", 40, 1)
    assert report.index_files == 7


# -- the log ---------------------------------------------------------------------------------


def test_s1_a_missing_segment(root: Path) -> None:
    build(root, some(60))
    (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    report = check(root)
    assert "S1" in broken(report)
    assert report.worst == Severity.DAMAGE
    assert report.records < 60


def test_s1_a_log_that_begins_later_is_good(root: Path) -> None:
    build(root, some(40, queue_offset=None), first=SEGMENT * 7)
    assert check(root).verdict == "good"


def test_sizes_a_short_segment(root: Path) -> None:
    build(root, some(60))
    with open(segment_of(root, SEGMENT)[0], "r+b") as file:
        file.truncate(1000)
    report = check(root)
    assert {"sizes", "S9"} <= broken(report)


def test_sizes_an_empty_last_segment_is_deleted_by_the_next_start(root: Path) -> None:
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
    what = only(check(root), "sizes")
    assert "no offset" in what


def test_s2_a_flipped_bit_in_a_body(root: Path) -> None:
    offsets = build(root, some(40))
    path, position = segment_of(root, offsets[10])
    flip(path, position + 90)
    report = check(root)
    assert "S2" in broken(report)
    found = next(finding for finding in report.findings if finding.rule == "S2")
    assert found.offset == offsets[10]
    assert "record-crc" in found.what


def test_s9_erased_bytes_with_good_records_behind(root: Path) -> None:
    offsets = build(root, some(40))
    path, position = segment_of(root, offsets[5])
    overwrite(path, position, bytes(300))
    report = check(root)
    assert "S9" in broken(report)
    assert report.worst == Severity.DAMAGE
    assert report.log_end > offsets[39]


def test_s13_erased_bytes_at_the_end_are_a_torn_tail(root: Path) -> None:
    offsets = build(root, some(10), clean=False)
    path, position = segment_of(root, offsets[9])
    overwrite(path, position + 40, bytes(SEGMENT - position - 40))
    overwrite(root / "checkpoint", 0, bytes(16))
    report = check(root)
    assert report.log_end == offsets[9]
    assert report.verdict == "torn tail"
    assert broken(report) == {"S13", "S3"}


def test_s13_a_torn_last_record_of_a_log_alone(root: Path) -> None:
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
    only(check(root), "S13", Severity.TAIL)


def test_s9_a_segment_that_ends_before_its_successor(root: Path) -> None:
    offsets = build(root, some(40))
    last = max(offset for offset in offsets if offset < SEGMENT)
    path, position = segment_of(root, last)
    overwrite(path, position, bytes(SEGMENT - position))
    assert "S9" in broken(check(root))


def test_s9_a_filler_that_does_not_reach_the_end(root: Path) -> None:
    build(root, some(40))
    path = segment_of(root, 0)[0]
    at = path.read_bytes().rindex(b"\xcb\xd4\x31\x94")
    overwrite(path, at - 4, struct.pack(">i", 9))
    assert "S9" in broken(check(root))


def test_s9_a_closed_hole_is_only_told(root: Path) -> None:
    specs = some(6)
    specs[3] = Spec(topic="!", body=b"damaged bytes", sys_flag=0xC)
    build(root, specs)
    report = check(root)
    assert report.verdict == "good"
    assert [finding.rule for finding in report.findings] == ["S9"]


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
    assert "S13" in broken(report)
    assert not {"S9", "S2"} & broken(report)


# -- queues ----------------------------------------------------------------------------------


def test_s3_a_unit_beyond_the_log(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 5 * 20, UNIT.pack(SEGMENT * 9, 120, 0))
    only(check(root), "S3")


def test_s3_after_an_unclean_stop_it_is_a_tail(root: Path) -> None:
    build(root, some(5), clean=False)
    overwrite(queue_file(root), 5 * 20, UNIT.pack(SEGMENT * 9, 120, 0))
    only(check(root), "S3", Severity.TAIL)


def test_s4_a_unit_with_a_wrong_size(root: Path) -> None:
    build(root, some(5))
    flip(queue_file(root), 2 * 20 + 11)
    assert "bytes" in only(check(root), "S4")


def test_s4_a_unit_behind_the_last_record(root: Path) -> None:
    offsets = build(root, some(5))
    overwrite(queue_file(root), 5 * 20, UNIT.pack(offsets[1], 120, 0))
    assert "no record of this queue" in only(check(root), "S4")


def test_s4_a_queue_of_a_topic_without_records(root: Path) -> None:
    offsets = build(root, some(5))
    other = root / "consumequeue" / "Other" / "0"
    other.mkdir(parents=True)
    unit = UNIT.pack(offsets[1], 120, 0)
    (other / f"{0:020d}").write_bytes(unit.ljust(QUEUE_SEGMENT, b"\0"))
    assert "no record of this queue" in only(check(root), "S4")


def test_s4_units_of_records_below_the_log_are_fine(root: Path) -> None:
    first = SEGMENT * 3
    specs = some(8)
    build(root, [Spec(queue_offset=4, properties=specs[0].properties), *specs[1:3]], first=first)
    for slot in range(4):
        overwrite(queue_file(root), slot * 20, UNIT.pack(first - 800 + slot * 200, 120, 0))
    assert check(root).verdict == "good"
    overwrite(queue_file(root), 3 * 20, UNIT.pack(first, 120, 0))
    only(check(root), "S4")


def test_s5_a_missing_unit(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 2 * 20, bytes(20))
    assert "queue offsets 2 to 2" in only(check(root), "S5")


def test_s5_a_pre_blank_in_place_of_a_record(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 2 * 20, PRE_BLANK)
    only(check(root), "S5")


def test_s5_and_s12_units_missing_at_the_end_of_a_clean_store(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 3 * 20, bytes(40))
    assert broken(check(root)) == {"S5", "S12"}


def test_s5_units_not_dispatched_yet_are_a_tail(root: Path) -> None:
    build(root, some(5), clean=False)
    overwrite(queue_file(root), 3 * 20, bytes(40))
    assert "not dispatched yet" in only(check(root), "S5", Severity.TAIL)


def test_s5_queues_that_are_gone(root: Path) -> None:
    build(root, some(25))
    for path in (root / QUEUE).iterdir():
        path.unlink()
    report = check(root)
    assert "S5" in broken(report)
    missing = sum(finding.count for finding in report.findings if finding.rule == "S5")
    assert missing == 25


def test_s6_a_unit_of_another_record(root: Path) -> None:
    offsets = build(root, some(6))
    path = queue_file(root)
    data = path.read_bytes()
    overwrite(path, 2 * 20, data[60:80] + data[40:60])
    what = only(check(root), "S6")
    assert str(offsets[3]) in what


def test_s6_a_queue_offset_given_out_twice(root: Path) -> None:
    specs = some(6)
    specs[4] = Spec(queue_offset=2)
    specs[5] = Spec(queue_offset=4)
    build(root, specs)
    assert "given out before" in only(check(root), "S6")


def test_s6_a_gap_in_the_log(root: Path) -> None:
    specs = some(6)
    specs[4] = Spec(queue_offset=7)
    build(root, specs[:5])
    assert "missing in the log" in only(check(root), "S6")


def test_s6_a_queue_whose_first_message_is_not_number_0(root: Path) -> None:
    """Retention, or an empty slave: the numbers go on, the slots before are blank."""
    build(root, [Spec(queue_offset=7), Spec(), Spec()], first=SEGMENT)
    assert check(root).findings == ()


def test_s6_an_empty_later_queue_segment(root: Path) -> None:
    build(root, some(10))
    queue_file(root, 1).write_bytes(bytes(QUEUE_SEGMENT))
    only(check(root), "S6")


def test_s6_a_single_empty_queue_segment_is_fine(root: Path) -> None:
    build(root, some(5))
    other = root / "consumequeue" / "New" / "0"
    other.mkdir(parents=True)
    (other / f"{0:020d}").write_bytes(bytes(QUEUE_SEGMENT))
    assert check(root).findings == ()


def test_s7_a_wrong_tag_code(root: Path) -> None:
    build(root, some(5))
    flip(queue_file(root), 3 * 20 + 19)
    assert "tag code" in only(check(root), "S7")


def test_transactions_that_are_not_committed_have_no_unit(root: Path) -> None:
    specs = [Spec(), Spec(sys_flag=0x4), Spec(sys_flag=0xC), Spec(sys_flag=0x8)]
    build(root, specs)
    assert check(root).verdict == "good"
    assert queue_file(root).read_bytes()[40:] == bytes(QUEUE_SEGMENT - 40)


# -- index -----------------------------------------------------------------------------------


def entry_at(number: int) -> int:
    return 40 + 4 * 10 + 20 * number


def test_s8_an_entry_with_a_foreign_hash(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), entry_at(4) + 3, 0x20)
    assert {"S8", "S10"} <= broken(check(root)) <= {"S8", "S10", "S12"}


def test_s8_an_entry_that_points_between_records(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), entry_at(5) + 11)
    assert "S8" in broken(check(root))


def test_s8_a_broken_chain(root: Path) -> None:
    build(root, some(5))
    overwrite(index_file(root), entry_at(3) + 16, struct.pack(">i", 3))
    assert "does not end" in only(check(root), "S8")


def test_s8_a_wrong_slot(root: Path) -> None:
    build(root, some(5))
    path = index_file(root)
    slots = path.read_bytes()[40:80]
    used = next(slot for slot in range(10) if slots[4 * slot : 4 * slot + 4] != bytes(4))
    overwrite(path, 40 + 4 * used, bytes(4))
    only(check(root), "S8")


def test_s8_a_wrong_header(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), 39)
    assert "S8" in broken(check(root))


def test_s8_a_wrong_time(root: Path) -> None:
    build(root, some(5))
    flip(index_file(root), entry_at(3) + 15, 8)
    assert "after the begin" in only(check(root), "S8")


def test_s10_keys_that_are_not_indexed(root: Path) -> None:
    build(root, some(20))
    index_file(root, 1).unlink()
    only(check(root), "S10")


def test_s10_older_index_files_may_be_gone(root: Path) -> None:
    build(root, some(20))
    index_file(root, 0).unlink()
    report = check(root)
    assert report.verdict == "good"
    assert [finding.rule for finding in report.findings] == ["S10"]


def test_s10_no_index_at_all_is_a_setting(root: Path) -> None:
    build(root, some(20))
    for path in list((root / "index").iterdir()):
        path.unlink()
    assert check(root).verdict == "good"


def test_s10_the_last_record_may_be_indexed_twice(root: Path) -> None:
    """Recovery lets the record at the index's end through once more (store.md 4.2)."""
    offsets = build(root, some(3))
    index_file(root).unlink()
    writer = IndexWriter(str(root / "index"), IndexLayout(10, 20))
    specs = some(3)
    order = [*zip(offsets, specs, range(3), strict=True)]
    for offset, spec, number in [*order, order[-1]]:
        properties = dict(spec.properties)
        for key in (properties["UNIQ_KEY"], *properties["KEYS"].split(" ")):
            writer.put(index_key_hash("T", key), offset, 1_700_000_000_000 + 1000 * number)
    writer.close()
    report = check(root)
    assert report.verdict == "good"
    assert ["indexed 2 times" in finding.what for finding in report.findings] == [True]


# -- marks -----------------------------------------------------------------------------------


def test_s11_a_checkpoint_ahead_of_the_log(root: Path) -> None:
    build(root, some(5))
    overwrite(root / "checkpoint", 8, struct.pack(">q", 1_700_000_005_000))
    assert "queue time" in only(check(root), "S11")


def test_s11_a_confirm_offset_ahead_of_the_log(root: Path) -> None:
    build(root, some(5))
    overwrite(root / "checkpoint", 32, struct.pack(">q", SEGMENT * 4))
    assert "confirm offset" in only(check(root), "S11")


def test_s11_a_short_checkpoint(root: Path) -> None:
    build(root, some(5))
    os.truncate(root / "checkpoint", 48)
    only(check(root), "S11")


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
    assert broken(report) == {"S12", "S13"}
    assert report.worst == Severity.DAMAGE


def test_s12_with_an_abort_file_it_is_a_tail(root: Path) -> None:
    offsets = build(root, some(5), clean=False)
    path, _ = segment_of(root, 0)
    overwrite(path, offsets[4] + 400, b"remains of a record")
    only(check(root), "S13", Severity.TAIL)


def test_s15_a_torn_configuration_file(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    good = json.dumps({"topicConfigTable": {"T": {"topicName": "T"}}})
    (config / "topics.json").write_text(good[:20])
    (config / "topics.json.bak").write_text(good)
    report = check(root)
    assert "cannot be read" in only(report, "S15")
    assert "copy topics.json.bak" in report.findings[0].todo
    (config / "topics.json").write_text(good)
    (config / "topics.json.bak").write_text(good[:20])
    only(check(root), "S15", Severity.TAIL)


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
    assert [finding.rule for finding in report.findings] == ["S16"]


def test_s16_pre_blanks_at_the_start_of_a_log_from_0(root: Path) -> None:
    build(root, [Spec(queue_offset=7), Spec()])
    report = check(root)
    assert [finding.rule for finding in report.findings] == ["S16"]
    assert report.verdict == "good"


def test_topics_of_the_wrong_kind(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    row = {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"T": row}}))
    assert "topics" in broken(check(root))


def test_topics_unknown_to_the_table_are_told(root: Path) -> None:
    build(root, some(5))
    config = root / "config"
    config.mkdir()
    (config / "topics.json").write_text('{"topicConfigTable":{}}')
    report = check(root)
    assert [finding.rule for finding in report.findings] == ["topics"]
    assert report.verdict == "good"


def test_store_times_that_step_back_are_told(root: Path) -> None:
    build(root, [Spec(store_ms=2000), Spec(store_ms=1000), Spec(store_ms=3000)])
    report = check(root)
    assert report.verdict == "good"
    assert ["step back 1 times" in finding.what for finding in report.findings] == [True]


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


def test_progress_is_told_in_bytes_of_the_log(root: Path) -> None:
    body = bytes(1 << 20)
    big = Settings.from_properties({"mappedFileSizeCommitLog": str(1 << 26)})
    write_log(root, [Spec(body=body)] * 40, segment=1 << 26)
    told: list[tuple[int, int]] = []
    check_store(open_directory(root, big), lambda done, total: told.append((done, total)))
    assert [total for _, total in told] == [1 << 26] * len(told)
    assert len(told) == 2
