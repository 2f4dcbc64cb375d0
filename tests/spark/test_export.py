"""`export` on the stores of a real RocketMQ, compared with what its manifests say is stored."""

import json
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.export.manifest import NAME as MANIFEST
from rocketbed.pipeline.jobs.export.writing import Form
from rocketbed.pipeline.report import Report
from tests.support.logs import INNER, THREE, Log, Message
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.spark
INNER_BATCH = "FxBatchCQ"
"""Its records hold several messages each, which the manifest lists one by one."""


def unpack(name: str, place: Path) -> Path:
    with tarfile.open(FIXTURES / f"rocketmq-store-{name}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return place / "store"


def stored(name: str) -> dict[int, dict[str, Any]]:
    """Return the rows that the real broker gave back, by place in the log."""
    text = (FIXTURES / f"rocketmq-store-{name}.manifest.json").read_text(encoding="utf-8")
    return {row["commitLogOffset"]: row for row in json.loads(text)["stored"]}


def run(spark: SparkSession, store: Path | str, out: Path, **options: Any) -> Report:
    settings = JobSettings(stores=(str(store),), out=out, mode=options.pop("mode", "PERMISSIVE"))
    job = Job("export", settings, spark=spark)
    try:
        export(job, ExportOptions(form=Form(**options)))
    finally:
        job.close()
    return job.report


def read(out: Path) -> list[dict[str, Any]]:
    """Rows of the files that the manifest names, as any reader of Parquet sees them."""
    manifest = json.loads((out / MANIFEST).read_text())
    files = [file for part in manifest["parts"] for file in part["files"]]
    rows_read = []
    for file in files:
        rows = pyarrow.dataset.dataset(out / file["path"], format="parquet").to_table().to_pylist()
        assert len(rows) == file["rows"]
        names = dict(piece.split("=", 1) for piece in file["path"].split("/") if "=" in piece)
        rows_read += [
            row | {"topic": unquote(names["topic"]), "date": names["date"]} for row in rows
        ]
    return rows_read


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clean", "killed"])
def test_rows_equal_the_real_brokers_messages(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    store = unpack(name, tmp_path)
    out = tmp_path / "out"
    report = run(spark, store, out)
    assert (report.exit_code, report.findings) == (0, [])
    exported_rows = read(out)
    assert report.counts["rows"] == len(exported_rows)
    rows = {row["physical_offset"]: row for row in exported_rows}
    expected = stored(name)
    assert expected.keys() <= rows.keys()
    for at, theirs in expected.items():
        ours = rows[at]
        assert (ours["topic"], ours["queue_id"]) == (theirs["topic"], theirs["queueId"])
        assert ours["crc_ok"]
        if theirs["topic"] == INNER_BATCH:  # the last message of the record
            assert ours["queue_offset"] >= theirs["queueOffset"]
            continue
        assert ours["queue_offset"] == theirs["queueOffset"]
        assert ours["size"] == theirs["storeSize"]
        assert ours["born_timestamp"].timestamp() * 1000 == theirs["bornTimestamp"]
        assert str(ours["store_timestamp"].date()) == ours["date"]
        if len(ours["body"]) == theirs["bodyLength"]:
            assert ours["tags"] == theirs["properties"].get("TAGS")
    before = sorted(path for path in out.rglob("*") if path.is_file())
    second = run(spark, store, out)
    assert second.counts["rows"] == 0
    assert second.counts["rows_in_all"] == len(exported_rows)
    assert "nothing new" in second.notes[0]
    assert sorted(path for path in out.rglob("*") if path.is_file()) == before


@pytest.mark.slow
def test_damage_is_reported_and_later_messages_are_added(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = unpack("clean", tmp_path)
    log = store / "commitlog"
    second = log / "00000000000001048576"
    segment_data = second.read_bytes()
    second.unlink()
    (store / "abort").touch()  # as of a live store: there is more to come
    out = tmp_path / "out"
    columns = {"compact": True, "records_per_file": 5}
    first = run(spark, store, out, **columns)
    second.write_bytes(segment_data)
    with open(second, "r+b") as file:  # one record of the second file loses its beginning
        data = file.read(100_000)
        file.seek(data.rfind(b"\xda\xa3\x20\xa7") - 4)
        file.write(bytes(8))
    later = run(spark, store, out, **columns)
    assert (first.exit_code, later.exit_code) == (0, 1)
    assert [(one["id"], one["count"]) for one in later.findings] == [("malformed", 1)]
    third = run(spark, store, out, **columns)
    assert (third.exit_code, [one["id"] for one in third.findings]) == (1, ["incomplete"])
    parts = json.loads((out / MANIFEST).read_text())["parts"]
    assert [part["start"] for part in parts] == [0, parts[0]["end"]]
    assert all(file["rows"] <= 5 for part in parts for file in part["files"])
    assert first.counts["rows"] + later.counts["rows"] == later.counts["rows_in_all"] == 267
    assert len(read(out)) == 267
    assert not (out / "_staging").exists()

    second.unlink()
    with pytest.raises(PipelineError, match="this is another log"):
        run(spark, store, out, **columns)


def test_impossible_export_is_refused_before_writing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is no store directory"):
        run(spark, tmp_path, tmp_path / "out")
    job = Job("export", JobSettings(stores=("x",)), spark=spark)
    with pytest.raises(WrongUsage, match="no output: give"):
        export(job, ExportOptions())
    assert not (tmp_path / "out").exists()


def test_misnamed_segment_stops_the_export(spark: SparkSession, tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    log = store / "commitlog"
    (log / "00000000000001048576").rename(log / "moved")
    with pytest.raises(PipelineError, match=r"moved is a segment, .*: rename it first"):
        run(spark, store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (log / "moved").rename(log / "00000000000001048576")
    assert run(spark, store, tmp_path / "out").counts["rows"] == 268


def test_the_replica_that_has_most_is_exported(spark: SparkSession, tmp_path: Path) -> None:
    stores = []
    for name in "ab":
        (tmp_path / name).mkdir()
        stores.append(unpack("clean", tmp_path / name))
    (stores[0] / "commitlog" / "00000000000000000000").unlink()  # as by retention
    settings = JobSettings(
        stores=tuple(f"g/{number}={root}" for number, root in enumerate(stores)),
        out=tmp_path / "out",
    )
    job = Job("export", settings, spark=spark)
    export(job, ExportOptions())
    assert job.report.counts["rows"] == 268


def test_another_log_of_the_same_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    clean, killed = unpack("clean", tmp_path / "1"), unpack("killed", tmp_path / "2")
    out = tmp_path / "out"
    first = run(spark, clean, out)
    with pytest.raises(PipelineError, match=r"has other bytes before .*: this is another log"):
        run(spark, killed, out)
    assert len(read(out)) == first.counts["rows"]


def test_messages_deleted_before_their_export_are_a_finding(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = unpack("clean", tmp_path)
    second = store / "commitlog" / "00000000000001048576"
    data = second.read_bytes()
    second.unlink()
    (store / "abort").touch()  # as of a live store: there is more to come
    out = tmp_path / "out"
    run(spark, store, out)
    (store / "commitlog" / "00000000000000000000").unlink()
    second.write_bytes(data)
    (part,) = json.loads((out / MANIFEST).read_text())["parts"]
    part["end"] -= 1000
    part["mark"] = 0
    manifest = json.loads((out / MANIFEST).read_text()) | {"parts": [part]}
    (out / MANIFEST).write_text(json.dumps(manifest))
    report = run(spark, store, out)
    assert report.exit_code == 1
    assert [one["title"] for one in report.findings] == [
        f"store: {part['end']} to {1 << 20} were deleted before they were exported"
    ]


def test_dropped_rows_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(body=b"%d" % n) for n in range(6)])
    log.write(log.offsets[2], bytes(8))
    log.flip(log.offsets[4] + 88)  # its body
    report = run(spark, log.root, tmp_path / "out", mode="DROPMALFORMED")
    assert (report.exit_code, report.counts["rows"]) == (0, 4)
    assert report.notes == [f"store 0 to {log.end}: 2 that cannot be read were dropped"]


def test_damaged_batches_are_reported_without_a_body(spark: SparkSession, tmp_path: Path) -> None:
    bodies = THREE, THREE[:-3], THREE
    log = Log(tmp_path / "store").append([Message(body=one, sys_flag=INNER) for one in bodies])
    log.flip(log.offsets[0] + 88)
    report = run(spark, log.root, tmp_path / "out")
    assert [(one["id"], one["count"]) for one in report.findings] == [("wrong_crc", 2)]
    rows_read = sorted(read(tmp_path / "out"), key=lambda row: row["queue_offset"])
    assert [row["body"] for row in rows_read] == [None, None, b"one", b"", b"three"]
