"""The check of consume queues: each wrong unit is found, its innocent neighbour left alone."""

from pathlib import Path

import pytest

from rocketbed.inspect import Severity, open_directory
from rocketbed.inspect.check.queues import QueueCursor
from rocketbed.inspect.consumequeue import PRE_BLANK, UNIT, ConsumeQueue
from rocketbed.inspect.findings import EVERYTHING, Findings
from tests.support.stores import (
    QUEUE_SEGMENT,
    SEGMENT,
    Spec,
    broken,
    build,
    check,
    flip,
    only,
    overwrite,
    queue_file,
    some,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_s3_a_unit_beyond_the_log(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 5 * 20, UNIT.pack(SEGMENT * 9, 120, 0))
    only(check(root), "nothing-beyond-log")


def test_s3_is_a_tail_after_an_unclean_stop(root: Path) -> None:
    build(root, some(5), clean=False)
    overwrite(queue_file(root), 5 * 20, UNIT.pack(SEGMENT * 9, 120, 0))
    only(check(root), "nothing-beyond-log", Severity.TAIL)


def test_s4_a_unit_with_a_wrong_size(root: Path) -> None:
    build(root, some(5))
    flip(queue_file(root), 2 * 20 + 11)
    assert "bytes" in only(check(root), "queue-entries-match-log")


def test_s4_unit_after_the_last_record(root: Path) -> None:
    offsets = build(root, some(5))
    overwrite(queue_file(root), 5 * 20, UNIT.pack(offsets[1], 120, 0))
    assert "no record of this queue" in only(check(root), "queue-entries-match-log")


def test_s4_a_queue_of_a_topic_without_records(root: Path) -> None:
    offsets = build(root, some(5))
    folder = root / "consumequeue" / "Other" / "0"
    folder.mkdir(parents=True)
    unit = UNIT.pack(offsets[1], 120, 0)
    (folder / f"{0:020d}").write_bytes(unit.ljust(QUEUE_SEGMENT, b"\0"))
    assert "no record of this queue" in only(check(root), "queue-entries-match-log")


def test_s4_units_below_the_log_are_fine(root: Path) -> None:
    first = SEGMENT * 3
    specs = some(8)
    build(root, [Spec(queue_offset=4, properties=specs[0].properties), *specs[1:3]], first=first)
    for slot in range(4):
        overwrite(queue_file(root), slot * 20, UNIT.pack(first - 800 + slot * 200, 120, 0))
    assert check(root).verdict == "good"
    overwrite(queue_file(root), 3 * 20, UNIT.pack(first, 120, 0))
    only(check(root), "queue-entries-match-log")


def test_s5_a_missing_unit(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 2 * 20, bytes(20))
    assert "queue offsets 2 to 2" in only(check(root), "queue-entries-complete")


def test_s5_pre_blank_in_place_of_a_record(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 2 * 20, PRE_BLANK)
    only(check(root), "queue-entries-complete")


def test_s5_s12_missing_last_units_of_a_clean_store(root: Path) -> None:
    build(root, some(5))
    overwrite(queue_file(root), 3 * 20, bytes(40))
    assert broken(check(root)) == {"queue-entries-complete", "abort-file"}


def test_s5_units_not_dispatched_yet_are_a_tail(root: Path) -> None:
    build(root, some(5), clean=False)
    overwrite(queue_file(root), 3 * 20, bytes(40))
    assert "not dispatched yet" in only(check(root), "queue-entries-complete", Severity.TAIL)


def test_s5_missing_unit_from_before_the_kill(root: Path) -> None:
    """Dispatch goes in the order of the log, so a unit below what another queue has was there."""
    build(root, [*some(5), *some(2, topic="Other")], clean=False)
    overwrite(queue_file(root), 3 * 20, bytes(40))
    only(check(root), "queue-entries-complete")


def test_s5_missing_queues_after_a_kill(root: Path) -> None:
    """RocketMQ's recovery need not begin early enough to write all of them again."""
    build(root, some(5), clean=False)
    overwrite(queue_file(root), 0, bytes(100))
    only(check(root), "queue-entries-complete")
    (root / "checkpoint").unlink()
    only(check(root), "queue-entries-complete", Severity.TAIL)


def test_s5_missing_queues(root: Path) -> None:
    build(root, some(25))
    for path in queue_file(root).parent.iterdir():
        path.unlink()
    report = check(root)
    assert "queue-entries-complete" in broken(report)
    assert report.worst == Severity.DAMAGE
    missing = sum(
        finding.count for finding in report.findings if finding.rule == "queue-entries-complete"
    )
    assert missing == 25


def test_s6_a_unit_of_another_record(root: Path) -> None:
    offsets = build(root, some(6))
    path = queue_file(root)
    data = path.read_bytes()
    overwrite(path, 2 * 20, data[60:80] + data[40:60])
    text = only(check(root), "queue-entry-places")
    assert str(offsets[3]) in text


def test_s6_a_queue_offset_given_out_twice(root: Path) -> None:
    specs = some(6)
    specs[4] = Spec(queue_offset=2)
    specs[5] = Spec(queue_offset=4)
    build(root, specs)
    assert "given out before" in only(check(root), "queue-entry-places")


def test_s6_a_gap_in_the_log(root: Path) -> None:
    specs = some(6)
    specs[4] = Spec(queue_offset=7)
    build(root, specs[:5])
    assert "missing in the log" in only(check(root), "queue-entry-places")


def test_s6_queue_not_starting_at_message_0(root: Path) -> None:
    """Retention, or an empty slave: the numbers go on, the slots before are blank."""
    build(root, [Spec(queue_offset=7), Spec(), Spec()], first=SEGMENT)
    assert check(root).findings == ()


def test_s6_an_empty_later_queue_segment(root: Path) -> None:
    build(root, some(10))
    queue_file(root, 1).write_bytes(bytes(QUEUE_SEGMENT))
    only(check(root), "queue-entry-places")


def test_s6_a_single_empty_queue_segment_is_fine(root: Path) -> None:
    build(root, some(5))
    folder = root / "consumequeue" / "New" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(QUEUE_SEGMENT))
    assert check(root).findings == ()


def test_s7_a_wrong_tag_code(root: Path) -> None:
    build(root, some(5))
    flip(queue_file(root), 3 * 20 + 19)
    assert "tag code" in only(check(root), "queue-tag-codes")


def test_uncommitted_transactions_have_no_unit(root: Path) -> None:
    specs = [Spec(), Spec(sys_flag=0x4), Spec(sys_flag=0xC), Spec(sys_flag=0x8)]
    build(root, specs)
    assert check(root).verdict == "good"
    assert queue_file(root).read_bytes()[40:] == bytes(QUEUE_SEGMENT - 40)


def test_s5_unit_written_during_the_check_is_no_damage(
    root: Path,
) -> None:
    """The next one is looked at later, and is there (seen on a loaded machine)."""
    build(root, some(5))

    class Growing(ConsumeQueue):
        looks = 0

        def window(self, slot: int, count: int) -> bytes:
            self.looks += 1
            return b"" if self.looks == 1 else super().window(slot, count)

    for moving, severity in ((0, Severity.TAIL), (EVERYTHING, Severity.DAMAGE)):
        opened = open_directory(root)
        queue = opened.queues["T", 0]
        findings = Findings()
        growing = Growing(queue.pool, queue.topic, queue.queue_id, queue.segments)
        cursor = QueueCursor("q", growing, None, findings, moving)
        cursor.next = 0
        for unit in queue.units(0, 3):
            cursor.expect(unit.slot, unit.offset, unit.size, unit.tag_code)
        assert [(one.rule, one.severity) for one in findings.all()] == [
            ("queue-entries-complete", severity)
        ]
        opened.close()
