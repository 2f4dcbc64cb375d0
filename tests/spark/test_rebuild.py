"""The jobs `rebuild` and `retention` as they run on Spark."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketbed.inspect import Settings, open_directory
from rocketbed.inspect import rebuild as plain_rebuild
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.rebuild.job import RebuildOptions, rebuild
from rocketbed.pipeline.jobs.rebuild.place import PARTS
from rocketbed.pipeline.jobs.retention.job import RetentionOptions, retention
from rocketbed.pipeline.jobs.verify.job import interpreted
from tests.support.logs import INNER, SEGMENT, STORE_MS, THREE, Log, Message
from tests.support.stores import SETTINGS, Spec, files_below, flip, segment_of, unpack
from tests.support.stores import write_log as write

pytestmark = pytest.mark.spark

SIZES = {
    "mappedFileSizeCommitLog": "4096",
    "mappedFileSizeConsumeQueue": "200",
    "maxHashSlotNum": "10",
    "maxIndexNum": "20",
}


def run(
    spark: SparkSession, root: Path, out: Path, options: RebuildOptions
) -> tuple[Job, dict[str, dict[str, bytes]]]:
    """The job and, by part, the files that it made."""
    job = Job("rebuild", JobSettings(stores=(str(root),), out=out), spark=spark)
    try:
        rebuild(job, options)
    finally:
        job.close()
    return job, {part: dict(files_below(out, part)) for part in PARTS}


def plainly(root: Path, out: Path, settings: Settings) -> dict[str, dict[str, bytes]]:
    """The same from the independent reader."""
    directory = open_directory(root, settings)
    plain_rebuild(directory, str(out))
    directory.close()
    return {part: dict(files_below(out, part)) for part in PARTS}


@pytest.mark.slow
def test_a_real_store(spark: SparkSession, tmp_path: Path) -> None:
    root, out = unpack("killed", tmp_path), tmp_path / "out"
    (out / "index").mkdir(parents=True)
    (out / "index" / "old").touch()
    options = RebuildOptions(split_bytes=200_000, force=True)
    job, files = run(spark, root, out, options)
    assert files == plainly(root, tmp_path / "plain", Settings())
    for part in PARTS[:2]:
        assert files[part] == dict(files_below(root, part))
    assert sorted(files["index"].values()) == sorted(dict(files_below(root, "index")).values())
    assert sorted(entry.name for entry in out.iterdir()) == sorted(
        part for part in PARTS if files[part]
    )
    report = job.report
    assert report.exit_code == 0
    listed = {row["path"]: row["entries"] for row in report.files}
    assert set(listed) == {f"{part}/{name}" for part in PARTS for name in files[part]}
    assert report.counts["index_entries"] == sum(
        entries for path, entries in listed.items() if path.startswith("index/")
    )


def test_damage_and_queue_offsets_that_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    slots = [0, 1, 1, 14, 15, 37, 3]
    specs = [
        spec
        for number, slot in enumerate(slots)
        for spec in (
            Spec("odd", queue_offset=slot, body=bytes(300), properties=(("KEYS", f"o{number}"),)),
            Spec("even", properties=(("UNIQ_KEY", f"e{number}"), ("TAGS", "t"))),
        )
    ]
    offsets = write(root, specs)
    path, within = segment_of(root, offsets[3])
    flip(path, within + 92)
    options = RebuildOptions(split_bytes=1000, properties=SIZES)
    job, _ = run(spark, root, out, options)
    assert job.report.exit_code == 1
    assert [counts["id"] for counts in job.report.findings] == ["damage"]
    assert not any(out.iterdir())
    options = RebuildOptions(split_bytes=1000, properties=SIZES, around_damage=True)
    job, files = run(spark, root, out, options)
    assert files == plainly(root, tmp_path / "plain", SETTINGS)
    counts = {row["id"]: row["count"] for row in job.report.findings}
    assert counts == {"damage": 1, "refused": 1, "corrected": 1}
    assert job.report.counts["records"] == len(offsets) - 1


def test_impossible_output_directories(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, [Spec()])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for out, pattern in (
        (root, "is a store itself"),
        (root / "consumequeue", "is within the store"),
        (tmp_path / "mine", r"holds thesis\.txt"),
    ):
        with pytest.raises(WrongUsage, match=pattern):
            run(spark, root, out, RebuildOptions())
    assert [path.name for path in root.iterdir()] == ["commitlog"]


def test_retention(spark: SparkSession, tmp_path: Path) -> None:
    hour_ms = 3_600_000
    created = [
        Message(
            f"topic-{number % 2}",
            bytes(600),
            f"KEYS\x01k{number % 6}\x02" if number % 2 else "",
            store_ms=STORE_MS + number * hour_ms,
        )
        for number in range(30)
    ]
    log = Log(tmp_path / "store").append(created)
    log.flip(log.offsets[3] + 4)
    job = Job("retention", JobSettings(stores=(str(log.root),), out=tmp_path / "out"), spark=spark)
    now_ms = STORE_MS + 30 * hour_ms
    with interpreted(spark, is_small=True):
        retention(job, RetentionOptions(hours=(1000, 12), now_ms=now_ms))
    report, tables = job.report, job.report.tables
    assert report.exit_code == 1
    assert [(found["id"], found["count"]) for found in report.findings] == [("malformed", 1)]
    assert report.counts["messages"] == 29
    for table in ("topics", "days", "segments"):
        assert sum(row["messages"] for row in tables[table]) == 29
        assert sum(row["bytes"] for row in tables[table]) == sum(log.sizes) - log.sizes[3]
    assert [row["topic"] for row in tables["topics"]] == ["topic-0", "topic-1"]
    assert [row["day"] for row in tables["days"]] == ["2026-11-18", "2026-11-19"]
    short, long = tables["retention"]
    assert (short["hours"], long["hours"], long["deleted_segments"]) == (12, 1000, 0)
    kept_offset = min(offset for offset in log.offsets if offset >= 3 * SEGMENT)
    assert short["oldest_kept_ms"] == STORE_MS + log.offsets.index(kept_offset) * hour_ms
    assert (short["deleted_segments"], short["deleted_messages"]) == (3, 14)
    (keys,) = tables["keys"]
    assert (keys["topic"], keys["keys"], keys["keyed_messages"]) == ("topic-1", 3, 14)
    assert keys["compactable_messages"] == 11
    assert (tmp_path / "out" / "keys.csv").read_text().startswith("topic,messages,bytes,")


def test_retention_counts_the_messages_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    batch = Message("B", THREE, "KEYS\x01k\x02INNER_NUM\x013\x02", sys_flag=INNER)
    log = Log(tmp_path / "store").append([batch, Message("T"), batch])
    job = Job("retention", JobSettings(stores=(str(log.root),)), spark=spark)
    with interpreted(spark, is_small=True):
        retention(job, RetentionOptions(now_ms=STORE_MS))
    assert (job.report.counts["messages"], job.report.counts["bytes"]) == (7, sum(log.sizes))
    assert [(row["topic"], row["messages"]) for row in job.report.tables["topics"]] == [
        ("B", 6),
        ("T", 1),
    ]
    (keys,) = job.report.tables["keys"]
    assert keys["compactable_bytes"] == log.sizes[0]
