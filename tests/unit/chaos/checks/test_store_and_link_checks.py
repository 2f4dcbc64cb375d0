"""Checks of stores, images, recoveries and links: each with a violation and an innocent case."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.evidence.history import Outcome
from rocketbed.chaos.evidence.record import Promise
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.inspect.marks import crc32c
from tests.support.run_maker import (
    COUNT,
    MS,
    SECOND,
    TOPIC,
    ImageMaker,
    RunMaker,
    Sent,
    results,
    spec_of,
    violated,
)
from tests.support.stores import Spec, build, flip, overwrite, segment_of

Change = Callable[[RunMaker], None]


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")


def harm(run: RunMaker, change: Callable[[Path], object], node: str = "b2") -> None:
    def spoil(path: Path) -> None:
        change(path / "stores" / node)

    run.after.append(spoil)


def queue_of(root: Path, queue: int = 0) -> Path:
    return root / "consumequeue" / "Trial" / str(queue) / f"{0:020d}"


def log_end(root: Path) -> tuple[Path, int]:
    log = sorted((root / "commitlog").iterdir())[-1]
    return log, len(log.read_bytes().rstrip(b"\0"))


# --- final directories


def short_segment(run: RunMaker) -> None:
    harm(run, lambda root: os.truncate(segment_of(root, 0)[0], 4000))


def broken_body(run: RunMaker) -> None:
    harm(run, lambda root: flip(segment_of(root, 0)[0], 100))


def hole_in_log(run: RunMaker) -> None:
    harm(run, lambda root: overwrite(segment_of(root, 0)[0], 300, bytes(60)))


def entry_beyond(run: RunMaker) -> None:
    def change(root: Path) -> None:
        unit = (1 << 20).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
        segment = sorted(queue_of(root).parent.iterdir())[-1]
        data = segment.read_bytes().rstrip(b"\0")
        overwrite(segment, -(-len(data) // 20) * 20, unit)

    harm(run, change)


def entry_size(run: RunMaker) -> None:
    harm(run, lambda root: flip(queue_of(root), 11))


def entry_missing(run: RunMaker) -> None:
    def change(root: Path) -> None:
        segment = sorted(queue_of(root).parent.iterdir())[-1]
        overwrite(segment, 0, bytes(segment.stat().st_size))

    harm(run, change)


def entry_elsewhere(run: RunMaker) -> None:
    harm(run, lambda root: flip(queue_of(root), 47))


def tag_code(run: RunMaker) -> None:
    harm(run, lambda root: flip(queue_of(root), 19))


def index_slot(run: RunMaker) -> None:
    harm(run, lambda root: flip(next((root / "index").iterdir()), 43))


def checkpoint_ahead(run: RunMaker) -> None:
    harm(run, lambda root: overwrite(root / "checkpoint", 0, b"\x7f"))


def abort_missing(run: RunMaker) -> None:
    def change(root: Path) -> None:
        log, end = log_end(root)
        overwrite(log, end + 50, b"remains")

    harm(run, change)


def torn_config(run: RunMaker) -> None:
    def change(root: Path) -> None:
        (root / "config" / "subscriptionGroup.json").write_text('{"subscriptionGroupTable": {')

    harm(run, change)


def abort_after_clean_stop(run: RunMaker) -> None:
    harm(run, lambda root: (root / "abort").touch())


def abort_after_kill(run: RunMaker) -> None:
    """Killed at the end: the abort file must be present."""
    abort_after_clean_stop(run)
    run.record.stopped_cleanly = ["b1", "b3"]


def two_starts(run: RunMaker) -> None:
    run.event(5 * SECOND, "b2", "start", role="slave", id=1)


def start_after_exit(run: RunMaker) -> None:
    run.event(4 * SECOND, "b2", "exit", cause="stop", code=0)
    two_starts(run)


CASES: list[tuple[Change, set[str]]] = [
    (short_segment, {"log-files-tile", "no-silent-damage", "equal-logs"}),
    (broken_body, {"record-checksums", "queue-entries-match-log", "equal-logs"}),
    (
        hole_in_log,
        {"no-silent-damage", "queue-entries-match-log", "index-matches-log", "equal-logs"},
    ),
    (entry_beyond, {"nothing-beyond-log"}),
    (entry_size, {"queue-entries-match-log"}),
    (entry_missing, {"queue-entries-complete", "queue-entry-places", "abort-file"}),
    (entry_elsewhere, {"queue-entry-places"}),
    (tag_code, {"queue-tag-codes"}),
    (index_slot, {"index-matches-log"}),
    (checkpoint_ahead, {"checkpoint-not-ahead"}),
    (abort_missing, {"log-files-tile", "abort-file"}),
    (torn_config, {"tables-readable"}),
    (abort_after_clean_stop, {"abort-file-law"}),
    (abort_after_kill, set()),
    (two_starts, {"one-store-owner"}),
    (start_after_exit, set()),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_is_found_by_its_rule(run: RunMaker, change: Change, expected: set[str]) -> None:
    change(run)
    assert violated(run.judge()) == expected


def test_reported_damage_is_shown_and_allowed(run: RunMaker) -> None:
    broken_body(run)
    run.event(SECOND, "b2", "damaged", hit="commitlog", kind="flip")
    run.event(2 * SECOND, "b2", "reported", event="store.damage", text="a checksum")
    judgement = run.judge()
    assert violated(judgement) == set()
    (line,) = results(judgement)["record-checksums"].excused
    assert line.excuse.cause == "the disk of b2 was damaged (flip), which it reported"
    assert (line.excuse.begin_ns, line.count) == (SECOND, 1)


def test_unreported_damage_is_found(run: RunMaker) -> None:
    broken_body(run)
    run.event(SECOND, "b2", "damaged", hit="commitlog", kind="flip")
    assert "record-checksums" in violated(run.judge())


# --- images


def image(run: RunMaker, cause: str, *, count: int = COUNT, **fields: object) -> None:
    """Take an image of b2's store at 1 s; the node had recovered, and recovers again."""
    run.event(1, "b2", "recovered", end=0)
    run.event(SECOND, "b2", "exit", cause=cause)
    run.images.append(
        ImageMaker("b2", cause, SECOND, run.specs[:count], **fields)  # type: ignore[arg-type]
    )
    run.event(2 * SECOND, "b2", "start", role="slave", id=1)


def ends(tmp_path: Path) -> list[int]:
    offsets = build(tmp_path / "measured", [spec_of(value) for value in range(COUNT)])
    segment, position = log_end(tmp_path / "measured")
    return [*offsets[1:], int(segment.name) + position]


@pytest.mark.parametrize("cause", ["kill", "powercut"])
def test_an_image_may_be_torn(run: RunMaker, cause: str) -> None:
    def tear(root: Path) -> None:
        log, end = log_end(root)
        overwrite(log, end - 110, bytes(110))
        overwrite(root / "checkpoint", 0, bytes(48))

    image(run, cause, harm=tear)
    assert violated(run.judge()) == set()


@pytest.mark.parametrize(
    ("damaged_ns", "expected"), [(SECOND - 1, set()), (SECOND + 1, {"store-images"})]
)
def test_image_before_the_damage_is_not_excused(
    run: RunMaker, damaged_ns: int, expected: set[str]
) -> None:
    image(run, "kill", harm=lambda root: flip(segment_of(root, 0)[0], 100))
    run.event(damaged_ns, "b2", "damaged", hit="commitlog", kind="flip")
    run.event(2 * SECOND, "b2", "reported", event="store.damage", text="a checksum")
    assert violated(run.judge(only=["store-images"])) == expected


@pytest.mark.parametrize(
    ("recovered_ns", "hit", "expected"),
    [
        (1, f"consumequeue/{TOPIC}/0/{0:020d} bytes 48 to 52", set()),
        (SECOND // 2, f"consumequeue/{TOPIC}/0/{0:020d} bytes 48 to 52", {"store-images"}),
        (1, f"consumequeue/{TOPIC}/1/{0:020d} bytes 48 to 52", {"store-images"}),
        (1, "commitlog", {"store-images"}),
    ],
)
def test_node_that_ends_before_recovery_reports_no_damage(
    run: RunMaker, recovered_ns: int, hit: str, expected: set[str]
) -> None:
    """Only damage of the file that was hit is excused."""

    def harm(root: Path) -> None:
        overwrite(root / "consumequeue" / TOPIC / "0" / f"{0:020d}", 48, bytes(4))

    image(run, "crash", harm=harm)
    run.event(SECOND // 3, "b2", "damaged", hit=hit, kind="old", untold=False)
    run.event(recovered_ns, "b2", "recovered", end=0)
    assert violated(run.judge(only=["store-images"])) == expected


@pytest.mark.parametrize(("cut", "expected"), [(True, set()), (False, {"store-images"})])
def test_kill_during_recovery_finds_the_power_cuts_leftovers(
    run: RunMaker, cut: bool, expected: set[str]
) -> None:
    """The whole log was lost, and remaining queue units point into it."""

    def take(root: Path) -> None:
        segment_of(root, 0)[0].unlink()
        overwrite(root / "checkpoint", 0, bytes(48))

    image(run, "kill", count=1, written=0, durable=0, harm=take)
    if cut:
        run.event(SECOND // 2, "b2", "exit", cause="powercut")
    judgement = run.judge(only=["store-images"])
    assert violated(judgement) == expected, [result.findings for result in judgement.findings]


@pytest.mark.parametrize(
    ("in_place", "expected"), [(False, set()), (True, {"tables-replaced-whole"})]
)
def test_a_table_that_was_written_in_place(
    run: RunMaker, in_place: bool, expected: set[str]
) -> None:
    run.record.digest = "of a simulation"
    if in_place:
        run.event(SECOND, "b2", "table_in_place", path="/store/config/topics.json")
    assert violated(run.judge(only=["tables-replaced-whole"])) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("", {"no-false-alarm"}),
        ("damage", set()),
        ("eio-read", set()),
        ("no-descriptors", {"no-false-alarm"}),
        ("kill", {"no-false-alarm"}),
    ],
)
def test_damage_that_nothing_did(run: RunMaker, fault: str, expected: set[str]) -> None:
    if fault:
        kind = "disk" if "-" in fault else fault
        run.strike(SECOND, "b1", kind, step=f"{kind} b1 {fault}")
    run.event(2 * SECOND, "b2", "reported", event="store.index_damage", text="a slot is wrong")
    assert violated(run.judge(only=["no-false-alarm"])) == expected


def test_marks_that_were_ahead_of_the_disk(run: RunMaker) -> None:
    run.event(SECOND, "b2", "mark_ahead", offset=200, durable=100)
    assert violated(run.judge(only=["marks-not-ahead"])) == {"marks-not-ahead"}


def own_marks(root: Path, flushed: bytes | int, **changes: object) -> None:
    """Write the marks as a killed node leaves them; `flushed` is F, or the bytes of its file."""
    mark: dict[str, object] = {
        "id": "one",
        "clean": None,
        "w": 0,
        "cut": None,
        "sizes": [],
        "deleted": {},
        **changes,
    }
    text = json.dumps(mark).encode()
    (root / "rocketbed.ckpt").write_bytes(b"rocketbed-ckpt 1\n%s\n%08x\n" % (text, crc32c(text)))
    (root / "abort").write_text("uuid=one")
    if isinstance(flushed, int):
        packed = struct.pack(">q", flushed)
        flushed = packed + struct.pack(">Q", crc32c(packed))
    (root / "rocketbed.flushed").write_bytes(flushed)


UNIT = 6
"""Unit of message 12 in queue 0 of the images below, which ends below or above their marks."""
Harm = Callable[[Path], object]


def unit_gone(root: Path) -> None:
    """Later units are present."""
    overwrite(queue_of(root), UNIT * 20, bytes(20))


def end_gone(root: Path) -> None:
    """The queue ends before its unit."""
    overwrite(queue_of(root), UNIT * 20, bytes(200 - UNIT * 20))
    for segment in sorted(queue_of(root).parent.iterdir())[1:]:
        segment.unlink()


def folder_gone(name: str) -> Harm:
    return lambda root: shutil.rmtree(root / name)


def file_gone(name: str) -> Harm:
    return lambda root: (root / name).unlink()


def foreign_abort(root: Path) -> None:
    unit_gone(root)
    (root / "abort").write_text("uuid=another")


def index_newer(root: Path) -> None:
    """The file that the mark names is missing, and another one is present."""
    next((root / "index").iterdir()).rename(root / "index" / "20311114221322221")


PROMISED: list[tuple[Harm, int, dict[str, object], set[str]]] = [
    (unit_gone, 14, {}, {"store-images"}),
    (end_gone, 14, {}, {"store-images"}),
    (folder_gone("consumequeue"), 14, {}, {"store-images"}),
    (folder_gone("index"), 14, {}, {"store-images"}),
    (index_newer, 14, {}, {"store-images"}),
    (file_gone("rocketbed.ckpt"), 14, {}, {"store-images"}),
    (file_gone("checkpoint"), 14, {}, {"store-images"}),
    (unit_gone, 12, {}, set()),  # the mark ends before its record
    (end_gone, 12, {}, set()),
    (folder_gone("consumequeue"), 0, {}, set()),
    (folder_gone("index"), 0, {"index": None}, set()),
    (unit_gone, 14, {"deleted": {TOPIC: 1}}, set()),
    (folder_gone("consumequeue"), 14, {"remaking": [TOPIC]}, set()),
    (foreign_abort, 14, {}, set()),
]


@pytest.mark.parametrize("cause", ["kill", "powercut"])
@pytest.mark.parametrize(("spoil", "marked", "changes", "expected"), PROMISED)
def test_image_holds_everything_its_mark_promises(
    run: RunMaker,
    tmp_path: Path,
    cause: str,
    spoil: Harm,
    marked: int,
    changes: dict[str, object],
    expected: set[str],
) -> None:
    """`marked` is the number of messages below the mark W."""
    end = ends(tmp_path)[marked - 1] if marked else 0

    def harm(root: Path) -> None:
        name = next((root / "index").iterdir()).name
        own_marks(root, end, **{"w": end, "index": [name, ""], **changes})
        spoil(root)

    keep_marks(run)
    image(run, cause, harm=harm)
    assert violated(run.judge(only=["store-images"])) == expected


def keep_marks(run: RunMaker) -> None:
    """A node has a mark at the end."""
    harm(run, partial(own_marks, flushed=0), node="b3")


@pytest.mark.parametrize(("is_reported", "expected"), [(True, set()), (False, {"store-images"})])
@pytest.mark.parametrize("spoil", [file_gone("rocketbed.ckpt"), folder_gone("index"), unit_gone])
def test_durable_record_may_be_lost_to_reported_damage(
    run: RunMaker, tmp_path: Path, spoil: Harm, is_reported: bool, expected: set[str]
) -> None:
    end = ends(tmp_path)[13]

    def take(root: Path) -> None:
        own_marks(root, end, w=end, index=[next((root / "index").iterdir()).name, ""])
        spoil(root)

    keep_marks(run)
    image(run, "kill", harm=take)
    run.event(SECOND // 2, "b2", "damaged", hit="notes.txt", kind="delete")
    if is_reported:
        run.event(2 * SECOND, "b2", "reported", event="store.damage", text="something is gone")
    assert violated(run.judge(only=["store-images"])) == expected


@pytest.mark.parametrize(("event", "expected"), [("wipe", set()), ("start", {"store-images"})])
def test_disk_before_any_recovery_needs_no_mark(
    run: RunMaker, event: str, expected: set[str]
) -> None:
    keep_marks(run)
    image(run, "kill")
    run.event(SECOND // 2, "b2", event)
    assert violated(run.judge(only=["store-images"])) == expected


@pytest.mark.parametrize(
    ("node", "cause", "lag", "expected"),
    [
        ("b1", "kill", 1, set()),
        ("b1", "kill", 2, {"flush-mark-kept"}),
        ("b1", "powercut", 2, set()),  # F is not fsynced each time
        ("b2", "kill", 2, set()),  # a slave acknowledges nothing to clients
    ],
)
def test_kill_keeps_the_acknowledged_flushed_offset(
    run: RunMaker, tmp_path: Path, node: str, cause: str, lag: int, expected: set[str]
) -> None:
    run.record.promise = Promise(flush="sync", replication="sync", copies=2)
    harm = partial(own_marks, flushed=ends(tmp_path)[-lag] + 8)
    run.images.append(ImageMaker(node, cause, 60 * SECOND, run.specs, harm=harm))
    assert violated(run.judge(only=["flush-mark-kept"])) == expected


@pytest.mark.parametrize(("cut_s", "expected"), [(50, set()), (61, {"flush-mark-kept"})])
def test_power_cut_leaves_an_older_flushed_offset_to_a_kill(
    run: RunMaker, tmp_path: Path, cut_s: int, expected: set[str]
) -> None:
    """An elected leader leads until another one is elected."""
    run.record.promise = Promise(flush="sync", replication="sync", copies=2)
    run.event(cut_s * SECOND, "b1", "exit", cause="powercut", written=0, durable=0)
    harm = partial(own_marks, flushed=ends(tmp_path)[-2] + 8)
    run.images.append(ImageMaker("b1", "kill", 60 * SECOND, run.specs, harm=harm))
    assert violated(run.judge(only=["flush-mark-kept"])) == expected


@pytest.mark.parametrize(("end_s", "expected"), [(61, set()), (0, {"flush-mark-kept"})])
def test_F_is_missing_where_no_file_opens(
    run: RunMaker, tmp_path: Path, end_s: int, expected: set[str]
) -> None:
    """It reports that; what it acknowledged before is there."""
    run.record.promise = Promise(flush="sync", replication="sync", copies=2)
    run.strike(0, "", "disk", targets=["b1"], step="disk b1 no-descriptors", label="e9")
    run.strike(end_s * SECOND, "", "heal", targets=["b1"], label="e9")
    harm = partial(own_marks, flushed=ends(tmp_path)[-2] + 8)
    run.images.append(ImageMaker("b1", "kill", 60 * SECOND, run.specs, harm=harm))
    assert violated(run.judge(only=["flush-mark-kept"])) == expected


@pytest.mark.parametrize("cause", ["kill", "powercut"])
@pytest.mark.parametrize("flushed", [b"", bytes(16), b"\xff" * 16])
def test_incomplete_F(run: RunMaker, cause: str, flushed: bytes) -> None:
    image(run, cause, harm=partial(own_marks, flushed=flushed))
    assert violated(run.judge(only=["flush-mark-kept"])) == {"flush-mark-kept"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"changes": 0, "reason": "StoreLocked: /store is held"}, set()),
        ({"changes": 3, "reason": "StoreLocked: /store is held"}, {"one-store-owner"}),
        ({"changes": 0, "reason": ""}, {"one-store-owner"}),
    ],
)
def test_a_second_process_gives_up_at_once(
    run: RunMaker, fields: dict[str, object], expected: set[str]
) -> None:
    run.event(SECOND, "b2", "twin", **fields)
    assert violated(run.judge(only=["one-store-owner"])) == expected


@pytest.mark.parametrize("cause", ["kill", "powercut"])
def test_image_of_a_living_process_has_an_abort_file(run: RunMaker, cause: str) -> None:
    image(run, cause, clean=True)
    assert violated(run.judge()) == {"abort-file-law"}


def test_a_checkpoint_ahead_of_a_cut(run: RunMaker) -> None:
    image(run, "powercut", harm=lambda root: overwrite(root / "checkpoint", 0, b"\x7f"))
    assert violated(run.judge()) == {"store-images"}


@pytest.mark.parametrize(
    ("durable", "expected"),
    [(9999, {"store-images", "recovery-idempotent"}), (200, {"recovery-idempotent"})],
)
def test_damage_below_what_was_on_disk(run: RunMaker, durable: int, expected: set[str]) -> None:
    image(
        run,
        "powercut",
        durable=durable,
        harm=lambda root: overwrite(segment_of(root, 0)[0], 300, bytes(60)),
    )
    names = violated(run.judge(only=["store-images"]))
    assert names == expected - {"recovery-idempotent"}


@pytest.mark.parametrize(("cause", "expected"), [("kill", {"store-images"}), ("powercut", set())])
def test_place_of_a_queue_file_does_not_depend_on_the_log(
    run: RunMaker, cause: str, expected: set[str]
) -> None:
    """A power cut may leave a queue's later file and not the previous one."""

    def later(root: Path) -> None:
        file = queue_of(root)
        beyond = 3 * file.stat().st_size
        file.with_name(f"{beyond:020d}").write_bytes(file.read_bytes())
        assert beyond < 9999

    image(run, cause, durable=9999, harm=later)
    assert violated(run.judge(only=["store-images"])) == expected


# --- recoveries


@pytest.mark.parametrize(
    ("cause", "recovered", "expected"),
    [
        ("kill", COUNT, set()),
        ("kill", COUNT - 1, {"recovered-end"}),
        ("powercut", COUNT, set()),
        ("powercut", 20, set()),
        ("powercut", 19, {"recovered-end"}),
    ],
)
def test_end_of_a_recovery(
    run: RunMaker, tmp_path: Path, cause: str, recovered: int, expected: set[str]
) -> None:
    """On disk were 20 messages and a part of the next."""
    lag = ends(tmp_path)
    image(run, cause, written=lag[-1], durable=lag[19] + 10)
    run.event(3 * SECOND, "b2", "recovered", end=lag[recovered - 1])
    assert violated(run.judge(only=["recovered-end"])) == expected


def test_a_recovery_beyond_what_was_written(run: RunMaker, tmp_path: Path) -> None:
    lag = ends(tmp_path)
    image(run, "powercut", count=20, written=lag[19], durable=lag[10])
    run.event(3 * SECOND, "b2", "recovered", end=lag[21])
    assert violated(run.judge(only=["recovered-end"])) == {"recovered-end"}


def test_a_recovery_is_the_same_twice(run: RunMaker) -> None:
    image(run, "kill")
    result = results(run.judge(only=["recovery-idempotent"]))["recovery-idempotent"]
    assert result.passed, result
    assert result.examined == 1


def test_a_store_that_does_not_boot_is_found(run: RunMaker) -> None:
    image(run, "kill", harm=lambda root: os.truncate(segment_of(root, 0)[0], 100))
    assert violated(run.judge(only=["recovery-idempotent"])) == {"recovery-idempotent"}


@pytest.mark.parametrize(
    ("grows", "expected"), [(True, {"write-after-disk-failure"}), (False, set())]
)
def test_nothing_is_written_after_an_error(run: RunMaker, grows: bool, expected: set[str]) -> None:
    run.trace = Trace()
    for node in run.nodes:
        run.trace.node(node).add(1, 100_000, 100_000)
    run.event(10 * SECOND, "b2", "eio")
    run.event(12 * SECOND, "b2", "exit", cause="crash")
    if grows:
        run.trace.node("b2").add(11 * SECOND, 100_200, 100_000)
    assert violated(run.judge(only=["write-after-disk-failure"])) == expected


@pytest.mark.parametrize(
    ("end_s", "expected"),
    [(39, set()), (41, {"write-after-disk-failure"}), (None, {"write-after-disk-failure"})],
)
def test_a_node_ends_soon_after_its_disk_failed(
    run: RunMaker, end_s: int | None, expected: set[str]
) -> None:
    run.event(10 * SECOND, "b2", "eio")
    run.record.end_ns = 60 * SECOND
    if end_s is not None:
        run.event(end_s * SECOND, "b2", "exit", cause="crash")
    assert violated(run.judge(only=["write-after-disk-failure"])) == expected


def test_nothing_is_acknowledged_after_an_error(run: RunMaker) -> None:
    run.event(100 * MS, "b1", "disk-error")
    run.event(20 * SECOND, "b1", "exit", cause="crash")
    result = results(run.judge(only=["write-after-disk-failure"]))["write-after-disk-failure"]
    assert result.found == COUNT - 11
    assert "b1 after its disk had failed" in result.findings[0]


# --- links and samples


def cut(run: RunMaker) -> None:
    """Node b2 truncated message 99 and keeps a copy of it."""
    run.event(20 * SECOND, "b2", "cut", start=0)
    run.sends[-1].value = COUNT - 1

    def keep(path: Path) -> None:
        build(path / "cut", [spec_of(99)])
        data = segment_of(path / "cut", 0)[0].read_bytes().rstrip(b"\0")
        directory = path / "stores" / "b2" / "rocketbed.cut"
        directory.mkdir()
        (directory / f"{0:020d}").write_bytes(data)

    run.after.append(keep)


@pytest.mark.parametrize(
    ("ends_after", "later_event", "expected"),
    [
        (400, "followed", set()),
        (None, "followed", {"truncation-on-disk"}),
        (700, "followed", {"truncation-on-disk"}),
        (None, "exit", set()),  # its next start does it
    ],
)
def test_replica_removes_its_cut_end_before_following(
    run: RunMaker, ends_after: int | None, later_event: str, expected: set[str]
) -> None:
    run.record.facts["elects"] = True
    run.trace = Trace()
    run.trace.node("b2").add(0, 1000, 1000)
    if ends_after is not None:
        run.trace.node("b2").add(20 * SECOND + MS, ends_after, ends_after)
    run.event(20 * SECOND, "b2", "cut", start=400, end=1000)
    run.event(20 * SECOND + 2 * MS, "b2", later_event)
    run.event(21 * SECOND, "b2", "followed")
    judgement = run.judge(only=["truncation-on-disk"])
    assert judgement.result("truncation-on-disk").examined == (later_event == "followed")
    assert violated(judgement) == expected


def test_cut_records_stay_away(run: RunMaker) -> None:
    cut(run)
    result = results(run.judge(only=["truncated-bytes-return"]))["truncated-bytes-return"]
    assert result.passed
    assert result.examined == 1


def test_returning_cut_records_are_found(run: RunMaker) -> None:
    cut(run)
    run.logs["b2"] = [*run.specs, spec_of(99)]
    assert violated(run.judge(only=["truncated-bytes-return"])) == {"truncated-bytes-return"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data, set()),
        (lambda data: data[:-1], {"truncated-bytes-kept"}),
        (lambda data: bytes(len(data)), {"truncated-bytes-kept"}),
        (lambda data: None, {"truncated-bytes-kept"}),
    ],
)
@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("size", [50, 400])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_node_keeps_what_it_cuts_off(
    run: RunMaker,
    change: Callable[[bytes], bytes | None],
    expected: set[str],
    emptied: bool,
    size: int,
    resumed: bool,
) -> None:
    """Also if a slave's log ended inside a record, or if it died in the cut and completed it at its
    next start."""
    cut(run)
    if resumed:
        run.event(21 * SECOND - 2 * MS, "b2", "exit", cause="kill", written=size)
        run.event(21 * SECOND, "b2", "cut_resumed", offset=0)
    else:
        kept_path = f"/store/rocketbed.cut/{0:020d}"
        run.event(21 * SECOND, "b2", "cut", start=0, end=size, kept=kept_path)
    if emptied:
        run.strike(22 * SECOND, "b2", "wipe", targets=["b2"])

    def alter(path: Path) -> None:
        copy = path / "stores" / "b2" / "rocketbed.cut" / f"{0:020d}"
        data = change(copy.read_bytes()[:size].ljust(size, b"\0"))
        copy.unlink()
        if data is not None:
            copy.write_bytes(data)

    run.after.append(alter)
    assert violated(run.judge(only=["truncated-bytes-kept"])) == (set() if emptied else expected)


@pytest.mark.parametrize(
    ("place", "damaged_s", "expected"),
    [
        ("byte 10", 20, set()),
        ("byte 399", 20, set()),
        ("byte 400", 20, {"truncated-bytes-kept"}),
        ("byte 10", 22, {"truncated-bytes-kept"}),
        ("", 20, {"truncated-bytes-kept"}),
        ("bytes 0 to 100", 20, set()),
        ("bytes 400 to 500", 20, {"truncated-bytes-kept"}),
        ("bytes 0 to 100", 22, {"truncated-bytes-kept"}),
    ],
)
def test_damage_cut_off_unseen_is_kept_unchanged(
    run: RunMaker, place: str, damaged_s: int, expected: set[str]
) -> None:
    cut(run)
    if place:
        hit = f"commitlog/{0:020d} {place}"
        run.event(damaged_s * SECOND, "b2", "damaged", hit=hit, kind="flip", untold=False)
    kept_path = f"/store/rocketbed.cut/{0:020d}"
    run.event(21 * SECOND, "b2", "cut", start=0, end=400, kept=kept_path)

    def alter(path: Path) -> None:
        copy = path / "stores" / "b2" / "rocketbed.cut" / f"{0:020d}"
        copy.write_bytes(bytes(400))

    run.after.append(alter)
    assert violated(run.judge(only=["truncated-bytes-kept"])) == expected


@pytest.mark.parametrize(
    ("flush", "reported", "expected"),
    [
        ("async", 900, set()),
        ("async", 1001, {"dishonest-ack"}),
        ("sync", 500, set()),
        ("sync", 501, {"dishonest-ack"}),
    ],
)
def test_reports_against_the_disk(
    run: RunMaker, flush: str, reported: int, expected: set[str]
) -> None:
    run.record.promise = Promise(flush=flush, replication="sync", copies=2)  # type: ignore[arg-type]
    run.trace, run.acks = Trace(), Trace()
    run.trace.node("b2").add(SECOND, 1000, 500)
    run.acks.node("b2").add(2 * SECOND, reported, reported)
    assert violated(run.judge(only=["dishonest-ack"])) == expected


@pytest.mark.parametrize(
    ("written", "durable", "reported", "expected"),
    [
        (1000, 0, 1, set()),  # a question
        (0, 0, 4096, set()),  # a request for the start of the log
        (4000, 4000, 1 << 20, {"dishonest-ack"}),
        ((1 << 20) - 100, (1 << 20) - 100, 1 << 20, set()),  # after a blank record
        ((1 << 20) - 100, (1 << 20) - 200, 1 << 20, {"dishonest-ack"}),
    ],
)
def test_reports_that_acknowledge_nothing_written(
    run: RunMaker, written: int, durable: int, reported: int, expected: set[str]
) -> None:
    run.record.promise = Promise(flush="sync", replication="sync", copies=2)
    run.trace, run.acks = Trace(), Trace()
    run.trace.node("b2").add(SECOND, written, durable)
    run.acks.node("b2").add(2 * SECOND, reported, 0)
    assert violated(run.judge(only=["dishonest-ack"])) == expected


@pytest.mark.parametrize(
    ("second", "expected"), [((1 << 20) - 50, {"dishonest-ack"}), ((1 << 20) + 400, set())]
)
def test_file_with_its_last_record_synced_is_complete(
    run: RunMaker, second: int, expected: set[str]
) -> None:
    """The next file is written while the last record of the previous one is durable."""
    run.record.promise = Promise(flush="sync", replication="sync", copies=2)
    run.trace, run.acks = Trace(), Trace()
    for time_ns, written in ((1, 900), (2, (1 << 20) - 100), (3, second), (4, (1 << 20) + 900)):
        run.trace.node("b2").add(time_ns * SECOND, written, min(written, (1 << 20) - 100))
    run.acks.node("b2").add(4 * SECOND, 1 << 20, 0)
    assert violated(run.judge(only=["dishonest-ack"])) == expected


def samples(run: RunMaker, node: str, ends: list[int], **fields: object) -> None:
    for number, end in enumerate(ends):
        run.event((80 + number) * SECOND, node, "sample", written=end, **fields)


@pytest.mark.parametrize(
    ("follower", "expected"),
    [([5] * 10, {"catch-up-stall"}), (list(range(10)), set()), ([50] * 10, set())],
)
def test_a_follower_gets_on(run: RunMaker, follower: list[int], expected: set[str]) -> None:
    samples(run, "b1", [50] * 10, master=True)
    samples(run, "b2", follower, master=False)
    judgement = run.judge(only=["catch-up-stall"])
    assert violated(judgement) == expected
    assert str(judgement.verdict) == ("stalled" if expected else "pass")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([81], {"catch-up-stall"}), ([83], set()), ([80, 83], {"catch-up-stall"})],
    ids=str,
)
def test_a_follower_that_cuts_gets_on(
    run: RunMaker, seconds: list[int], expected: set[str]
) -> None:
    """It cuts only once at one place."""
    samples(run, "b1", [50] * 10, master=True)
    samples(run, "b2", [6, 6, 6, 6, 6, 5, 5, 5, 5, 5], master=False)
    for second in seconds:
        run.event(second * SECOND + MS, "b2", "cut", start=5, end=6)
    assert violated(run.judge(only=["catch-up-stall"])) == expected


@pytest.mark.parametrize(
    ("seconds", "disk_ms", "cut_s", "expected"),
    [
        (30, 0, 0, {"catch-up-stall"}),
        (31, 0, 0, set()),
        (21, 700, 0, {"catch-up-stall"}),
        (21, 700, 87, set()),
        (21, 600, 87, {"catch-up-stall"}),
    ],
)
def test_a_follower_with_a_slow_disk_gets_on(
    run: RunMaker, seconds: int, disk_ms: int, cut_s: int, expected: set[str]
) -> None:
    """It may stand still for as long as its recovery and the syncs of a cut take."""
    if cut_s:
        run.event(cut_s * SECOND, "b2", "cut", start=5, end=6)
    run.record.facts["disks_ns"] = {"b1": 300 * MS, "b2": disk_ms * MS}
    samples(run, "b1", [50] * 10, master=True)
    samples(run, "b2", [5] * 10, master=False)
    run.event(53 * SECOND, "b2", "recovered", end=5, seconds=seconds)
    assert violated(run.judge(only=["catch-up-stall"])) == expected


@pytest.mark.parametrize(
    ("cut_s", "expected"), [([79, 87], set()), ([79], {"catch-up-stall"})], ids=str
)
def test_follower_with_a_slow_disk_may_cut_repeatedly(
    run: RunMaker, cut_s: list[int], expected: set[str]
) -> None:
    for second in cut_s:
        run.event(second * SECOND, "b2", "cut", start=5, end=6)
    test_a_follower_with_a_slow_disk_gets_on(run, 21, 700, 0, expected)


def test_run_may_end_before_a_slow_cut(run: RunMaker) -> None:
    run.record.stop_ns = 87 * SECOND
    test_a_follower_with_a_slow_disk_gets_on(run, 21, 700, 0, set())


@pytest.mark.parametrize(("rate", "expected"), [("4KiB", set()), ("64KiB", {"catch-up-stall"})])
def test_held_bytes_continue_at_the_rate_of_a_slow_link(
    run: RunMaker, rate: str, expected: set[str]
) -> None:
    samples(run, "b1", [50] * 10, master=True)
    samples(run, "b2", [5] * 10, master=False)
    step = f"at 30s link b1 -> b2 rate {rate} for 1s"
    run.strike(30 * SECOND, "b1", "link", step=step)
    run.strike(31 * SECOND, "b1", "heal", step=step)
    assert violated(run.judge(only=["catch-up-stall"])) == expected


@pytest.mark.parametrize(("counted", "expected"), [(3, {"half-open-replica-counted"}), (2, set())])
def test_a_silent_slave_is_given_up(run: RunMaker, counted: int, expected: set[str]) -> None:
    run.event(10 * SECOND, "b3", "exit", cause="powercut", written=0, durable=0)
    run.event(20 * SECOND, "b1", "sample", master=True, in_sync=3)
    run.event(40 * SECOND, "b1", "sample", master=True, in_sync=counted)
    judgement: Judgement = run.judge(only=["half-open-replica-counted"])
    assert violated(judgement) == expected
    assert results(judgement)["half-open-replica-counted"].examined == 1


@pytest.mark.parametrize("time_ns", [SECOND, 60 * SECOND])
def test_images_agree_with_the_final_log(run: RunMaker, time_ns: int) -> None:
    run.images.append(ImageMaker("b3", "kill", time_ns, run.specs[:10]))
    judgement = run.judge(only=["equal-image-logs", "equal-logs"])
    assert violated(judgement) == set()
    assert all(results(judgement)[name].passed for name in ("equal-image-logs", "equal-logs"))


@pytest.mark.parametrize(("byte", "expected"), [(100, set()), (101, {"equal-image-logs"})])
def test_unchecked_byte_may_become_the_truth(run: RunMaker, byte: int, expected: set[str]) -> None:
    """It was flipped on b2, which is master later."""
    image(run, "kill", harm=lambda root: flip(segment_of(root, 0)[0], 100))
    hit = f"commitlog/{0:020d} byte {byte}"
    run.event(2 * SECOND, "b2", "damaged", hit=hit, kind="flip", untold=True)
    assert violated(run.judge(only=["equal-image-logs"])) == expected


@pytest.mark.parametrize(("stands_at", "expected"), [(5, set()), (6, {"equal-image-logs"})])
def test_second_masters_writes_are_no_part_of_the_truth(
    run: RunMaker, tmp_path: Path, stands_at: int, expected: set[str]
) -> None:
    """Not before it follows again; only what it had at its promotion counts."""
    end_offsets = ends(tmp_path)
    specs = [*run.specs[:5], spec_of(500, queue_id=1), *run.specs[6:]]
    run.trace = Trace()
    run.trace.node("b3").add(1, end_offsets[stands_at - 1], end_offsets[stands_at - 1])
    run.trace.node("b3").add(2 * SECOND, end_offsets[-1], end_offsets[-1])
    run.strike(SECOND, "b3", "double", for_s=1.0)
    run.event(SECOND, "b3", "start", role="SYNC_MASTER", id=0)
    run.images.append(ImageMaker("b3", "powercut", 3 * SECOND, specs, durable=end_offsets[-1]))
    assert violated(run.judge(only=["equal-image-logs"])) == expected


@pytest.mark.parametrize(("written_to", "expected"), [(5, {"equal-image-logs"}), (6, set())])
def test_second_master_without_writes_shares_the_truth(
    run: RunMaker, tmp_path: Path, written_to: int, expected: set[str]
) -> None:
    """Messages that it has after it follows again are judged."""
    end_offsets = ends(tmp_path)
    specs = [*run.specs[:5], spec_of(500, queue_id=1), *run.specs[6:]]
    run.trace = Trace()
    moments = (
        (1, end_offsets[4]),
        (SECOND + MS, end_offsets[written_to - 1]),
        (3 * SECOND, end_offsets[-1]),
    )
    for time_ns, end in moments:
        run.trace.node("b3").add(time_ns, end, end)
    run.strike(SECOND, "b3", "double", for_s=1.0)
    for time_ns, role, number in ((SECOND, "SYNC_MASTER", 0), (2 * SECOND, "SLAVE", 2)):
        run.event(time_ns, "b3", "start", role=role, id=number)
        run.event(time_ns + 1, "b3", "recovered", end=end_offsets[4])
    run.images.append(ImageMaker("b3", "powercut", 4 * SECOND, specs, durable=end_offsets[-1]))
    assert violated(run.judge(only=["equal-image-logs"])) == expected


@pytest.mark.parametrize(
    ("stands_at", "epochs_led", "acknowledged", "expected"),
    [
        (6, [3, 5], 6, set()),
        (6, [3, 5], 7, {"equal-image-logs"}),
        (6, [3, 4], 6, {"equal-image-logs"}),
        (7, [3, 5], 6, {"equal-image-logs"}),
    ],
)
def test_epoch_that_never_led_is_no_part_of_the_truth(
    run: RunMaker, stands_at: int, epochs_led: list[int], acknowledged: int, expected: set[str]
) -> None:
    """An epoch that never led is not in the surviving log."""
    for value in range(acknowledged, len(run.sends)):
        run.sends[value] = Sent(value, Outcome.INFO)
    marker = Spec("rmq_sys_rb_epoch", 0, b'{"epoch":4,"leader":3}')
    other_spec = spec_of(500, queue_id=1)
    specs = [*run.specs[:6], other_spec, *run.specs[7:]]
    specs.insert(stands_at, marker)
    for epoch in epochs_led:
        run.event(epoch, "b1", "promote", former="b2", epoch=epoch)
    run.images.append(ImageMaker("b3", "kill", SECOND, specs))
    assert violated(run.judge(only=["equal-image-logs"])) == expected


@pytest.mark.parametrize(
    ("others_end", "copies", "later_epoch", "acknowledged", "expected"),
    [
        (6, 2, 5, 6, set()),
        (7, 2, 5, 6, {"equal-image-logs"}),
        (6, 1, 5, 6, {"equal-image-logs"}),
        (6, 2, 3, 6, {"equal-image-logs"}),
        (6, 2, 0, 6, {"equal-image-logs"}),
        (6, 2, 5, 7, {"equal-image-logs"}),
    ],
)
def test_leaders_lonely_restart_is_no_part_of_the_truth(
    run: RunMaker,
    tmp_path: Path,
    others_end: int,
    copies: int,
    later_epoch: int,
    acknowledged: int,
    expected: set[str],
) -> None:
    """It was killed at the marker of its second epoch, and the next leader began one at the same
    place, which was over before any sample showed it."""
    end_offsets = ends(tmp_path)
    run.sends[acknowledged:] = [Sent(value, Outcome.INFO) for value in range(acknowledged, COUNT)]
    own_marker = Spec("rmq_sys_rb_epoch", 0, b'{"epoch":4,"leader":1}')
    later = Spec("rmq_sys_rb_epoch", 0, b'{"epoch":%d,"leader":2}' % later_epoch)
    image_specs = [*run.specs[:6], own_marker]
    if later_epoch:
        run.specs = [*run.specs[:6], later, *run.specs[6:]]
        run.read_values = run.delivered = list(range(COUNT))
    run.record.promise = Promise(flush="sync", replication="sync", copies=copies)
    run.trace = Trace()
    for node in run.nodes:
        end = end_offsets[5] if node == "b1" else end_offsets[others_end - 1]
        run.trace.node(node).add(1, end, end)
        run.trace.node(node).add(2 * SECOND, end_offsets[-1], end_offsets[-1])
    run.images.append(ImageMaker("b1", "kill", SECOND, image_specs))
    assert violated(run.judge(only=["equal-image-logs"])) == expected


def test_an_image_with_other_bytes(run: RunMaker) -> None:
    specs = [*run.specs[:5], spec_of(500, queue_id=1), *run.specs[6:]]
    run.images.append(ImageMaker("b3", "kill", SECOND, specs))
    assert violated(run.judge(only=["equal-image-logs"])) == {"equal-image-logs"}


@pytest.mark.parametrize(
    ("later_event", "expected"), [("", set()), ("followed", {"equal-image-logs"})]
)
def test_records_being_cut_are_no_part_of_the_truth(
    run: RunMaker, tmp_path: Path, later_event: str, expected: set[str]
) -> None:
    """A power cut leaves what a cut has not reached yet."""
    end_offsets = ends(tmp_path)
    specs = [*run.specs[:6], spec_of(500, queue_id=1), *run.specs[7:]]
    run.event(SECOND - 10 * MS, "b3", "cut", start=end_offsets[5], end=end_offsets[6])
    if later_event:
        run.event(SECOND - MS, "b3", later_event)
    run.images.append(ImageMaker("b3", "powercut", SECOND, specs, durable=end_offsets[-1]))
    assert violated(run.judge(only=["equal-image-logs"])) == expected
