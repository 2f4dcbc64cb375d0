"""Statistics of segments: what a read leaves out, and that no row is ever missing for it."""

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import parquet

from rocketbed.inspect.files import list_segments
from rocketbed.pipeline.errors import Condition, PipelineError, Unwritable
from rocketbed.pipeline.files import splits, statistics, storage
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.pruning import LeftOut
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.jobs import stats as job_module
from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.option_table import OptionError, Use
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from tests.support.logs import INNER, SEGMENT, STORE_MS, THREE, Log, Message, messages, rows
from tests.support.s3 import BUCKET, S3Server, s3_server
from tests.support.segment_stats import make_stats

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
DELAYED = "SCHEDULE_TOPIC_XXXX"


def of_phases(topics: int = 5, each: int = 40, **fields: Any) -> list[Message]:
    """Some segments full of one topic, then of the next, a minute between messages."""
    return [
        Message(
            **{
                "topic": f"phase-{number // each}",
                "body": bytes(200),
                "store_ms": STORE_MS + number * MINUTE_MS,
                **fields,
            }
        )
        for number in range(topics * each)
    ]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store").append(of_phases())


@pytest.fixture
def out(tmp_path: Path, log: Log) -> Path:
    place = tmp_path / "stats"
    make_stats(place, log.root)
    return place


def planned(root: object, **options: object) -> tuple[list[int], list[int]]:
    """Segments that are read, and those that are left out."""
    texts = {name: str(value) for name, value in options.items()}
    parts = Plan.of(Options.parse({"path": str(root), **texts})).splits()
    out = [split.base for part in parts if isinstance(part, LeftOut) for split, _ in part.segments]
    return [part.base for part in parts if not isinstance(part, LeftOut)], out


def same(log: Log, out: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of a read, which are the same with statistics."""
    expected = rows(log.root, **options)
    assert in_order(rows(log.root, stats=out, **options)) == expected
    return expected


def in_order(unordered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order the rows; those about which the statistics were wrong are read last."""
    return sorted(unordered, key=lambda row: (row["broker"], row["physical_offset"]))


SELECTIONS: list[dict[str, Any]] = [
    {"topics": "phase-2"},
    {"topics": "phase-0,phase-4"},
    {"topicsPattern": "phase-[13]"},
    {"startTimestamp": STORE_MS + 100 * MINUTE_MS},
    {"endTimestamp": STORE_MS + 100 * MINUTE_MS},
    {"startTimestamp": STORE_MS + 70 * MINUTE_MS, "endTimestamp": STORE_MS + 71 * MINUTE_MS},
    {"topics": "phase-2", "startTimestamp": STORE_MS + 100 * MINUTE_MS},
    {"topics": "phase-2", "startOffset": SEGMENT + 100, "endOffset": 9 * SEGMENT - 100},
    {"topics": "phase-1", "splitBytes": 999},
]


@pytest.mark.parametrize("options", SELECTIONS, ids=str)
def test_reads_leave_segments_out_and_give_the_same(
    log: Log, out: Path, options: dict[str, Any]
) -> None:
    assert same(log, out, **options)
    read, left_out = planned(log.root, stats=out, **options)
    assert left_out
    assert not set(read) & set(left_out)
    assert len(set(read)) < 15


def test_nothing_is_left_out_without_a_reason(log: Log, out: Path) -> None:
    assert len(same(log, out)) == 200
    assert planned(log.root, stats=out) == planned(log.root)
    assert planned(log.root, stats=out, startOffset=SEGMENT)[1] == []


def test_planning_reads_no_times_of_known_segments(
    log: Log, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def first_store_ms(_: object, file: Any) -> None:
        looked.append(file.start)

    monkeypatch.setattr(splits, "_first_store_ms", first_store_ms)
    planned(log.root, stats=out, startTimestamp=STORE_MS + 100 * MINUTE_MS)
    assert looked == [15 * SEGMENT]


def test_a_log_is_listed_once(log: Log, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    original = list_segments

    def counting(directory: str, digits: int) -> Any:
        listed.append(directory)
        return original(directory, digits)

    monkeypatch.setattr(storage, "list_segments", counting)
    planned(log.root, stats=out, topics="phase-1")
    assert listed.count(str(log.root / "commitlog")) == 1


def test_clocks_that_were_set_back(tmp_path: Path) -> None:
    """Two hours: more than what a read without statistics allows for."""
    late = of_phases(1, 60, topic="T")
    early = of_phases(1, 60, topic="T", store_ms=STORE_MS - 2 * HOUR_MS)
    log = Log(tmp_path / "store").append([*late, *early, *of_phases(1, 60, topic="T")])
    make_stats(tmp_path / "stats", log.root)
    for low, high in ((-3, 0), (0, 1), (-1, 3)):
        start, end = STORE_MS + low * HOUR_MS, STORE_MS + high * HOUR_MS
        expected = [
            row
            for row in rows(log.root)
            if start <= int(row["store_timestamp"].timestamp() * 1000) < end
        ]
        options: dict[str, Any] = {"startTimestamp": start, "endTimestamp": end}
        assert rows(log.root, stats=tmp_path / "stats", **options) == expected


@pytest.mark.parametrize("number", [50, 85], ids=["middle", "before the last segment"])
def test_single_time_out_of_order_is_found(tmp_path: Path, number: int) -> None:
    phases = of_phases(1, 100)
    phases[number] = replace(phases[number], store_ms=STORE_MS + 50 * HOUR_MS)
    log = Log(tmp_path / "store").append(phases)
    make_stats(tmp_path / "stats", log.root)
    actual_rows = rows(log.root, stats=tmp_path / "stats", startTimestamp=STORE_MS + 49 * HOUR_MS)
    assert [row["physical_offset"] for row in actual_rows] == [log.offsets[number]]


@pytest.mark.parametrize("how", ["zeros", "topic", "size", "time"])
def test_a_damaged_segment_is_never_left_out(tmp_path: Path, how: str) -> None:
    """Its lost records can be of any topic and any time."""
    phases = of_phases()
    if how == "topic":
        phases[30] = replace(phases[30], raw_topic=b"\xff\xfe")
    if how == "time":
        phases[30] = replace(phases[30], store_ms=1 << 60)
    log = Log(tmp_path / "store").append(phases)
    if how == "zeros":
        log.write(log.offsets[30], bytes(log.sizes[30]))
    if how == "size":
        log.flip(log.offsets[30] + 2)
    report = make_stats(tmp_path / "stats", log.root)
    assert report.exit_code == 1
    assert [(one["id"], one["count"]) for one in report.findings] == [("malformed", 1)]
    assert f"the first at {2 * SEGMENT}: they are never left out" in report.findings[0]["title"]
    actual = same(log, tmp_path / "stats", topics="phase-4")
    assert any(row["_corrupt"] for row in actual) == (how in ("zeros", "size"))
    read, left_out = planned(log.root, stats=tmp_path / "stats", topics="phase-4")
    assert 2 * SEGMENT in read
    assert left_out
    same(log, tmp_path / "stats", topics="phase-4", mode="DROPMALFORMED")


def test_segment_truncated_during_a_read_is_not_believed(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = statistics.identity_of

    def cut(*arguments: Any) -> statistics.SegmentIdentity:
        log.write(log.offsets[12], bytes(log.sizes[12]))
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(statistics, "identity_of", cut)
        make_stats(tmp_path / "stats", log.root)
    assert 0 not in planned(log.root, stats=tmp_path / "stats", topics="phase-4")[1]
    same(log, tmp_path / "stats", topics="phase-4")


@pytest.mark.parametrize("when", ["new", "read", "known"])
def test_segment_deleted_during_the_job_is_no_damage(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Deletions by retention: before the segment is read, after its last byte, or known before."""
    log.write(log.offsets[190], bytes(log.sizes[190]))  # damage stays damage
    if when == "known":
        make_stats(tmp_path / "stats", log.root)
    original = statistics.identity_of

    def deleting(*arguments: Any) -> Any:
        log.path(0).unlink(missing_ok=True)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(statistics if when == "read" else job_module, "identity_of", deleting)
        if when == "new":
            opened = job_module._opened

            def then_deleted(*arguments: Any) -> job_module.Store:
                store = opened(*arguments)
                log.path(0).unlink()
                return store

            patch.setattr(job_module, "_opened", then_deleted)
        report = make_stats(tmp_path / "stats", log.root)
    assert [(one["id"], one["count"]) for one in report.findings] == [("malformed", 1)]
    assert f"the first at {14 * SEGMENT}" in report.findings[0]["title"]
    assert report.counts["segments"] == 15
    assert report.counts["records"] == 200 - 1 - log.offsets.index(SEGMENT)
    assert f"{log.root}: 1 segments were deleted while the job ran" in report.notes[0]
    (file,) = (tmp_path / "stats").iterdir()
    assert parquet.read_table(file)["segment"].to_pylist() == [n * SEGMENT for n in range(1, 16)]


def test_store_missing_on_a_machine_is_no_damage(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = job_module._opened

    def then_moved(*arguments: Any) -> job_module.Store:
        store = opened(*arguments)
        shutil.move(log.root, tmp_path / "elsewhere")
        return store

    monkeypatch.setattr(job_module, "_opened", then_moved)
    with pytest.raises(PipelineError, match=r"^\[ROCKETBED_NOT_A_STORE\] .*no such directory"):
        make_stats(tmp_path / "stats", log.root)


def test_damage_that_was_healed_is_read_anew(tmp_path: Path, log: Log) -> None:
    log.flip(log.offsets[30] + 2)
    make_stats(tmp_path / "stats", log.root)
    log.flip(log.offsets[30] + 2)
    report = make_stats(tmp_path / "stats", log.root)
    assert (report.exit_code, report.counts["read"]) == (0, 2)
    assert 2 * SEGMENT in planned(log.root, stats=tmp_path / "stats", topics="phase-4")[1]


def test_the_last_segment_is_not_believed(log: Log, out: Path) -> None:
    log.append([Message(topic="late", body=bytes(20))] * 60)
    assert len(same(log, out, topics="late")) == 60
    assert {row["topic"] for row in same(log, out, startTimestamp=STORE_MS)} >= {"late"}


def test_a_second_run_reads_what_is_new(tmp_path: Path, log: Log, out: Path) -> None:
    report = make_stats(out, log.root)
    assert (report.counts["segments"], report.counts["read"], report.counts["known"]) == (16, 1, 15)
    log.append([Message(topic="late", body=bytes(200))] * 40)
    report = make_stats(out, log.root)
    assert (report.counts["segments"], report.counts["read"], report.counts["known"]) == (19, 4, 15)
    assert (report.counts["records"], report.counts["not_full"]) == (240, 1)
    log.path(0).unlink()  # as by retention
    report = make_stats(out, log.root)
    assert (report.counts["segments"], report.counts["read"]) == (18, 1)
    assert report.notes == []


def test_contents_of_a_row(tmp_path: Path) -> None:
    """A record of three messages is one record; delayed messages have their topic of the log."""
    batch = Message("B", THREE, "KEYS\x01k\x02INNER_NUM\x013\x02", sys_flag=INNER)
    late = Message(DELAYED, store_ms=STORE_MS + 5)
    early = Message(DELAYED, store_ms=STORE_MS - 5)
    log = Log(tmp_path / "store").append([batch, late, early, Message(body=bytes(3800))] * 2)
    report = make_stats(tmp_path / "stats", log.root)
    assert (report.counts["records"], report.counts["messages"]) == (8, 12)
    (file,) = (tmp_path / "stats").iterdir()
    first, *_ = parquet.read_table(file).to_pylist()
    assert {"B", DELAYED} == {one["topic"] for one in first["topics"]}
    of_batch, delayed = first["topics"]
    assert (of_batch["records"], of_batch["messages"], of_batch["bytes"]) == (1, 3, log.sizes[0])
    assert (delayed["oldest_ms"], delayed["youngest_ms"]) == (STORE_MS - 5, STORE_MS + 5)
    assert (first["oldest_ms"], first["youngest_ms"]) == (STORE_MS - 5, STORE_MS + 5)
    assert (first["first_offset"], first["last_offset"]) == (0, log.offsets[2])
    assert (first["segment"], first["size"], first["is_full"]) == (0, SEGMENT, True)
    assert first["store"] == os.path.realpath(log.root)
    for topic, count in (("B", 6), (DELAYED, 4), ("T", 2)):
        assert len(same(log, tmp_path / "stats", topics=topic)) == count
    same(log, tmp_path / "stats", topics="B", inner="keep")


def test_a_store_that_was_moved(
    log: Log, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(log.root, moved)
    assert len(rows(moved, stats=out, topics="phase-2")) == 40
    assert "read without statistics, since those in" in caplog.text
    assert "are not there; `rocketbed pipeline stats` makes them anew" in caplog.text


def test_missing_directory_is_reported_in_every_read(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If nothing could be left out, it was accepted silently."""
    assert len(rows(log.root, stats=tmp_path / "nope")) == 200
    assert [record.getMessage() for record in caplog.records] == [
        f"option stats: {tmp_path}/nope is not there; `rocketbed pipeline stats` makes them anew"
    ]
    caplog.clear()
    assert len(rows(log.root, stats=tmp_path / "nope", topics="phase-2")) == 40
    assert "are not there; `rocketbed pipeline stats` makes them anew" in caplog.text


def test_two_ways_to_one_store(log: Log, out: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(log.root)
    assert planned(tmp_path / "link", stats=out, topics="phase-2")[1]


def other_store(tmp_path: Path) -> Log:
    """A store with the same lengths everywhere, and the topics in another order."""
    phases = of_phases()
    return Log(tmp_path / "other").append(phases[::-1])


@pytest.mark.parametrize("variant", ["all", "one", "last"])
def test_segments_of_another_store(
    log: Log, out: Path, tmp_path: Path, variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = other_store(tmp_path)
    numbers = {"all": range(16), "one": [2], "last": [14]}[variant]
    for number in numbers:
        path = log.path(number * SEGMENT)
        stat_before = path.stat()
        shutil.copyfile(foreign.path(number * SEGMENT), path)
        os.utime(path, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns))
    for topic in ("phase-0", "phase-2", "phase-4"):
        same(log, out, topics=topic)
    since = STORE_MS + 100 * MINUTE_MS
    actual = in_order(rows(log.root, stats=out, startTimestamp=since))
    assert actual == [
        row for row in rows(log.root) if row["store_timestamp"].timestamp() * 1000 >= since
    ]
    expected_text = "not the segment that its statistics are of: read without them"
    assert (expected_text in caplog.text) == (variant == "one")
    assert ("is not the segment that the statistics in" in caplog.text) == (variant != "one")
    caplog.clear()
    report = make_stats(out, log.root)
    assert report.notes == [
        f"{log.root}: {len(numbers) - (variant == 'all')} segments were not those that were known"
    ]
    same(log, out, topics="phase-4")
    assert "statistics" not in caplog.text


def test_segment_replaced_between_plan_and_read(log: Log, out: Path, tmp_path: Path) -> None:
    foreign = other_store(tmp_path)
    plan = Plan.of(Options.parse({"path": str(log.root), "stats": str(out), "topics": "phase-4"}))
    parts = plan.splits()
    shutil.copyfile(foreign.path(SEGMENT), log.path(SEGMENT))
    schema = arrow_schema("records", ["physical_offset"])
    actual = [row for part in parts for b in plan.read(part, schema) for row in b.to_pylist()]
    expected = rows(log.root, ["physical_offset"], topics="phase-4")
    assert len(expected) == 53
    assert sorted(map(str, actual)) == sorted(map(str, expected))


def test_log_truncated_and_continued_differently(tmp_path: Path) -> None:
    """A log after a failover: the segment begins as before, and is full again."""
    phases = of_phases(1, 30)
    log = Log(tmp_path / "store").append(phases)
    make_stats(tmp_path / "stats", log.root)
    shutil.rmtree(log.root)
    log = Log(tmp_path / "store").append([*phases[:20], *of_phases(1, 10, topic="other")])
    assert {row["segment"] for row in same(log, tmp_path / "stats", topics="other")} == {
        SEGMENT,
        2 * SEGMENT,
    }
    assert make_stats(tmp_path / "stats", log.root).counts["known"] == 1


def test_a_segment_of_another_length(log: Log, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(log.path(SEGMENT), SEGMENT - 100)
    actual = same(log, out, topics="phase-4", failOnDataLoss="false")
    assert [row["size"] for row in actual if row["_corrupt"]] == [122, 100]  # filler, hole
    assert "1 segments are not as long as their statistics say: read without" in caplog.text
    left_out = planned(log.root, stats=out, topics="phase-4")[1]
    assert 0 in left_out
    assert SEGMENT not in left_out


def test_a_segment_that_is_deleted_meanwhile(
    log: Log, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It held nothing of what is asked for; without statistics the read fails."""
    for stats in ({"stats": str(out)}, {}):
        plan = Plan.of(Options.parse({"path": str(log.root), "topics": "phase-4", **stats}))
        parts = plan.splits()
        data = log.path(0).read_bytes()
        log.path(0).unlink()
        schema = arrow_schema("records", ["physical_offset"])

        def read(
            plan: Plan = plan, parts: list[Any] = parts, schema: Any = schema
        ) -> Iterator[Any]:
            return (row for part in parts for b in plan.read(part, schema) for row in b.to_pylist())

        if stats:
            assert len(list(read())) == 40
            assert "deleted meanwhile; it held nothing of what is read" in caplog.text
        else:
            with pytest.raises(DataLost, match="the file was deleted"):
                list(read())
        log.path(0).write_bytes(data)


def test_machine_without_the_store_does_not_report_it_deleted(log: Log, out: Path) -> None:
    plan = Plan.of(Options.parse({"path": str(log.root), "topics": "phase-4", "stats": str(out)}))
    (part,) = (part for part in plan.splits() if isinstance(part, LeftOut))
    shutil.move(log.root, log.root.with_name("elsewhere"))
    with pytest.raises(DataLost, match="the file was deleted"):
        list(plan.read(part, arrow_schema("records", ["physical_offset"])))


def test_a_store_of_one_segment(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append(messages(9))
    make_stats(tmp_path / "stats", log.root)
    assert len(same(log, tmp_path / "stats", topics="topic-1", startTimestamp=STORE_MS)) == 3


def test_no_topic_at_all(log: Log, out: Path) -> None:
    plan = Plan.of(Options.parse({"path": str(log.root), "topics": "phase-4", "stats": str(out)}))
    no_topics = replace(plan.selection, topics=frozenset())
    left_out, last = replace(plan, selection=no_topics).splits()[::-1]
    assert (len(left_out.segments), last.base) == (15, 15 * SEGMENT)


def test_two_stores_below_one_path(tmp_path: Path, log: Log, out: Path) -> None:
    second_log = other_store(tmp_path)
    make_stats(out, second_log.root)
    assert len(list(out.iterdir())) == 2
    both = f"a={log.root},b={second_log.root}"
    actual_rows = rows(both, topics="phase-1", stats=out)
    assert actual_rows == rows(both, topics="phase-1")
    assert len(actual_rows) == 80
    assert make_stats(out, f"a={log.root}", f"b={second_log.root}").counts["known"] == 30


def test_only_what_all_replicas_hold_is_believed(tmp_path: Path) -> None:
    long = Log(tmp_path / "long").append(of_phases())
    short = Log(tmp_path / "short").append(of_phases(2))
    report = make_stats(tmp_path / "stats", f"b/l={long.root}", f"b/s={short.root}")
    assert report.counts["segments"] == 2 * 7
    assert report.counts["not_full"] == 2
    same(long, tmp_path / "stats", topics="phase-3")


def spoil(path: Path, how: str) -> str:
    """Make a file of statistics one that is of no use; why."""
    table = parquet.read_table(path)
    if how == "version":
        parquet.write_table(table.replace_schema_metadata({statistics.KEY: b"2 crc=1"}), path)
        return "of format 2, not 1"
    if how == "foreign":
        parquet.write_table(table.replace_schema_metadata({}), path)
        return "no statistics at all: another program wrote this Parquet file"
    if how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 0x55
        path.write_bytes(data)
        return "damaged"
    elif how == "edited":
        parquet.write_table(table.slice(1), path)
        return "damaged"
    elif how == "columns":
        reduced = table.drop_columns(["topics", "damaged"])
        parquet.write_table(reduced.replace_schema_metadata(statistics.SCHEMA.metadata), path)
    elif how == "store":
        name = table.schema.get_field_index("store")
        foreign = table.set_column(name, "store", [["/data/other"] * table.num_rows])
        path.write_bytes(statistics.packed(foreign))
        return "of another store"
    return "not readable: "


def test_file_with_a_flipped_bit_is_unusable(log: Log, out: Path) -> None:
    (file,) = out.iterdir()
    data = file.read_bytes()
    for at in range(0, len(data), 7):
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << at % 8
        file.write_bytes(spoilt)
        with pytest.raises(statistics.Unusable):
            statistics.load(storage.LOCAL, str(file), os.path.realpath(log.root))


@pytest.mark.parametrize(
    "how", ["version", "foreign", "cut", "empty", "flipped", "edited", "columns", "store"]
)
def test_a_file_that_is_of_no_use(
    log: Log, out: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = out.iterdir()
    why = spoil(file, how)
    same(log, out, topics="phase-2")
    assert f"read without statistics, since those in {file} are {why}" in caplog.text
    report = make_stats(out, log.root)
    assert report.counts["read"] == 16
    assert report.notes[0].startswith(f"{os.path.realpath(log.root)}: the statistics were {why}")
    assert planned(log.root, stats=out, topics="phase-2")[1]


def test_a_run_that_ends_half_way(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whole segments are kept of what was read, and the next run reads the rest."""
    described = statistics.describe

    def failing(store: str, split: Any) -> Any:
        if split.base == 9 * SEGMENT:
            raise PipelineError("the disk is gone")
        return described(store, split)

    monkeypatch.setattr(job_module, "PIECE_BYTES", SEGMENT)
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "describe", failing)
        with pytest.raises(PipelineError, match="the disk is gone"):
            make_stats(tmp_path / "stats", log.root)
    same(log, tmp_path / "stats", topics="phase-4")
    assert len(planned(log.root, stats=tmp_path / "stats", topics="phase-4")[1]) == 9
    report = make_stats(tmp_path / "stats", log.root)
    assert (report.counts["read"], report.counts["known"]) == (7, 9)


def test_it_saves_on_the_way(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[int] = []
    original = job_module._save

    def save(place: Any, stores: dict[str, Any]) -> None:
        saves.append(sum(len(store.new) for store in stores.values()))
        original(place, stores)

    monkeypatch.setattr(job_module, "PIECE_BYTES", 8 * SEGMENT)
    monkeypatch.setattr(job_module, "SAVE_S", -1.0)
    monkeypatch.setattr(job_module, "_save", save)
    make_stats(tmp_path / "stats", log.root)
    assert saves == [8, 16, 16]


def test_minimum_of_tasks_counts_segments_to_read(log: Log, out: Path) -> None:
    options: dict[str, Any] = {"topics": "phase-2", "minPartitions": 20}
    read, left_out = planned(log.root, stats=out, **options)
    assert len(read) >= 20
    assert left_out
    same(log, out, **options)


def test_an_empty_store(tmp_path: Path) -> None:
    log = Log(tmp_path / "store")
    assert make_stats(tmp_path / "stats", log.root).counts["segments"] == 0
    assert rows(log.root, stats=tmp_path / "stats", startTimestamp=0) == []


def test_statistics_are_refused_where_meaningless(log: Log, out: Path) -> None:
    with pytest.raises(OptionError, match="view=files does not support option stats"):
        rows(log.root, view="files", stats=out)
    with pytest.raises(OptionError, match="option stats is for batch reads, not streams"):
        Options.parse({"path": "/x", "stats": "/y"}, Use.STREAM)
    with pytest.raises(OptionError, match="option stats is for path, not for a read over endpoi"):
        Options.parse({"endpoints": "h:1", "stats": "/y"}, Use.BATCH)
    with pytest.raises(WrongUsage, match="no output: give --out DIR"):
        make_stats("", log.root)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("nope://b/stats", r"nope://b cannot be opened: .* known: s3, s3a, s3n, gs, .*hdfs"),
        ("wasbs://c@a.blob/x", r"It is read as abfss://CONTAINER@ACCOUNT\.dfs\."),
        ("s3a:///stats", "expected a bucket"),
        ("s3a:/b/stats", "a directory, or SCHEME"),
        ("FILE", "a directory, or SCHEME"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"topics": "phase-2"}], ids=["all", "topics"])
def test_an_option_that_can_never_be_right(
    log: Log, out: Path, options: dict[str, Any], place: str, why: str
) -> None:
    (file,) = out.iterdir()
    place = str(file) if place == "FILE" else place
    pattern = rf"^option stats='{place}': expected the --out of `rocketbed pipeline stats`.*{why}"
    with pytest.raises(OptionError, match=pattern) as caught:
        planned(log.root, stats=place, **options)
    assert caught.value.condition is Condition.ILLEGAL_OPTION


def test_unknown_scheme_is_refused_before_any_read(log: Log) -> None:
    with pytest.raises(OptionError, match=r"schemes that are known: s3, s3a,"):
        make_stats("nope://b/stats", log.root)


def test_a_place_that_is_away_for_the_moment(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its scheme is right, and it is unreachable: the log is read, also where a file is missing."""

    def away(*_: object) -> Any:
        raise OSError("Unable to load libhdfs")

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=away))
    place = "hdfs://away:8020/stats"
    assert len(rows(log.root, stats=place, topics="phase-2")) == 40
    assert f"since those in {place}/store-" in caplog.text
    assert "are not readable: hdfs://away:8020 cannot be opened: Unable to load" in caplog.text


def test_a_path_that_cannot_be_written(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unwritable, match=r"cannot write to .*/file: File exists"):
        make_stats(tmp_path / "file", log.root)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr("rocketbed.pipeline.jobs.export.place.write_whole", full)
    with pytest.raises(Unwritable, match=f"cannot write to {tmp_path}/stats: No space left") as why:
        make_stats(tmp_path / "stats", log.root)
    assert why.value.exit_code == 5


@pytest.mark.parametrize("inside", ["", "commitlog", "consumequeue", "index/stats", "stats"])
def test_a_path_inside_a_store_is_refused(tmp_path: Path, log: Log, inside: str) -> None:
    (tmp_path / "link").symlink_to(log.root)
    before = sorted(log.root.rglob("*"))
    second_log = Log(tmp_path / "other").append(messages(3))
    for read, out in [
        (log.root, log.root / inside),
        (log.root, tmp_path / "link" / inside),
        (second_log.root, log.root / inside),
    ]:
        pattern = f"is in the store {log.root}: give a directory outside it, as {log.root}-out$"
        with pytest.raises(WrongUsage, match=pattern):
            make_stats(out, read)
    assert sorted(log.root.rglob("*")) == before


def test_a_path_inside_a_store_elsewhere_is_refused() -> None:
    stores = ["s3a://b/data/store"]
    assert Place.of("s3a://b/data/store-out", (), stores).path == "s3a://b/data/store-out"
    for out in ("s3a://b/data/store/", "s3a://b/data//store/commitlog"):
        with pytest.raises(WrongUsage, match="is in the store s3a://b/data/store: give"):
            Place.of(out, (), stores)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.slow
def test_stores_and_statistics_elsewhere(
    s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path / "store").append(of_phases())
    location = s3.put(log.root, "stored/store")
    out = f"s3a://{BUCKET}/stats"
    conf = {f"spark.hadoop.{name}": value for name, value in s3.options.items()}
    assert make_stats(out, location, conf=conf).counts["read"] == 16
    options: dict[str, Any] = {"topics": "phase-3", **s3.options}
    assert planned(location, stats=out, **options)[1]
    assert rows(location, stats=out, **options) == rows(location, **options)
    with s3.file_system().open_output_stream(f"{BUCKET}/stored/store/commitlog/{0:020d}") as file:
        file.write(other_store(tmp_path).path(0).read_bytes())
    options["topics"] = "phase-4"
    assert in_order(rows(location, stats=out, **options)) == rows(location, **options)
    assert "not the segment that its statistics are of" in caplog.text
    report = make_stats(out, location, conf=conf)
    assert (report.counts["read"], report.counts["known"]) == (2, 14)


def test_the_job_is_quiet_about_what_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    log = Log(tmp_path / "store").append(messages(60))
    report = make_stats(tmp_path / "stats", log.root)
    assert (report.exit_code, report.notes, caplog.text) == (0, [], "")


def test_a_segment_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark knows only the text of what a task raises."""
    log = Log(tmp_path / "store").append([Message()])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(log.root))

    monkeypatch.setattr(job_module, "describe", refuse)
    pattern = rf"^\[ROCKETBED_UNREADABLE\] {log.root}: Permission denied$"
    with pytest.raises(PipelineError, match=pattern):
        make_stats(tmp_path / "stats", log.root)
