"""Parts exported already, and the directories that an export may write to."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import JobSettings, WrongUsage, run_job
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.export.manifest import NAME, Manifest, Part
from rocketbed.pipeline.jobs.export.new import next_range
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.jobs.export.writing import Form, exported_columns, partition_names
from rocketbed.pipeline.jobs.inputs import BrokerLog

REQUEST = {"columns": ["topic"], "topics": [], "mode": "PERMISSIVE", "source": "logs"}


def opened(out: Path, request: dict[str, Any] | None = None) -> Manifest:
    return Manifest(Place.of(str(out), ()), REQUEST if request is None else request)


def log(start: int, end: int) -> BrokerLog:
    return BrokerLog("b", (), start, end)


def parts_of(*ranges: tuple[int, int]) -> list[Part]:
    parts = [Part("p", "b", start, end) for start, end in ranges]
    return [*parts, Part("q", "other", 0, 900)]


@pytest.mark.parametrize(
    ("ranges", "of_log", "expected"),
    [
        ([], log(0, 100), (0, 100)),
        ([], log(40, 100), (40, 100)),
        ([(0, 100)], log(0, 100), None),
        ([(0, 100)], log(0, 130), (100, 130)),
        ([(0, 100), (100, 130)], log(0, 150), (130, 150)),
        ([(0, 100)], log(120, 150), (120, 150)),
        ([], log(0, 0), None),
    ],
)
def test_only_what_is_new_is_exported(
    ranges: list[tuple[int, int]], of_log: BrokerLog, expected: tuple[int, int] | None
) -> None:
    assert next_range(parts_of(*ranges), of_log) == expected


def test_a_log_that_lost_its_end_is_refused() -> None:
    with pytest.raises(PipelineError, match="this is another log"):
        next_range(parts_of((0, 100)), log(0, 90))


def test_a_new_directory_gets_a_manifest_at_once(tmp_path: Path) -> None:
    assert opened(tmp_path).parts == []
    assert json.loads((tmp_path / NAME).read_text())["columns"] == ["topic"]
    assert opened(tmp_path).parts == []


def test_a_part_is_pending_until_it_is_whole(tmp_path: Path) -> None:
    manifest = opened(tmp_path)
    part = Part("part=b-0-9", "b", 0, 9, mark=7)
    manifest.begin(part)
    reopened = opened(tmp_path)
    assert (reopened.parts, reopened.pending) == ([], [part])
    reopened.begin(reopened.pending[0])  # it is written once more, over what is there
    reopened.end(reopened.pending[0])
    last = opened(tmp_path)
    assert (last.parts, last.pending) == ([part], [])


def test_concurrent_manifest_writers_are_reported(tmp_path: Path) -> None:
    """Without a lock, the second writer fails at its first write."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.begin(Part("p", "b", 0, 9))
    with pytest.raises(PipelineError, match="was changed by another export meanwhile"):
        second.begin(Part("p", "b", 0, 9))


def test_manifest_of_an_older_export_is_continued(tmp_path: Path) -> None:
    old = {"format": 1, "columns": ["topic"], "topics": [], "mode": "PERMISSIVE"}
    part = {"name": "p", "broker": "b", "start": 0, "end": 9, "rows": 1, "files": []}
    (tmp_path / NAME).write_text(json.dumps({**old, "parts": [part]}))
    request = {**REQUEST, "format_of_files": "parquet", "partition_by": ["topic", "date"]}
    assert opened(tmp_path, request).parts == [Part("p", "b", 0, 9, rows=1)]
    with pytest.raises(WrongUsage, match="was exported with format_of_files=parquet, not orc"):
        opened(tmp_path, {**request, "format_of_files": "orc"})


def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(WrongUsage, match=r"holds thesis\.txt and no _rocketbed_manifest"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_export_with_other_columns_is_not_mixed_in(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "part=b-0-9").mkdir()
    with pytest.raises(WrongUsage, match="was exported with columns"):
        opened(tmp_path, {**REQUEST, "columns": ["topic", "body"]})


def test_empty_export_does_not_bind_the_next_one(tmp_path: Path) -> None:
    """An export with a mistyped format, for example."""
    request = {**REQUEST, "columns": ["topic", "body"]}
    opened(tmp_path).begin(Part("part=b-0-9", "b", 0, 9))
    manifest = opened(tmp_path, request)
    assert (manifest.parts, manifest.pending) == ([], [])
    manifest.begin(Part("part=b-0-9", "b", 0, 9))
    manifest.end(manifest.pending[0])
    assert len(opened(tmp_path, request).parts) == 1
    with pytest.raises(WrongUsage, match="was exported with columns"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 9, "columns": []}'])
def test_broken_manifest_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(PipelineError, match="invalid manifest"):
        opened(tmp_path)


def test_two_exports_at_once_are_refused(tmp_path: Path) -> None:
    place = Place.of(str(tmp_path / "out"), ())
    with (
        place.locked(),
        pytest.raises(WrongUsage, match="another export"),
        place.locked(),
    ):
        pass
    with place.locked():  # the first one's lock went with it
        assert (tmp_path / "out").is_dir()


def test_uncreatable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = Place.of(str(tmp_path / "file" / "out"), ())
    with pytest.raises(PipelineError, match="cannot write to"), place.locked():
        pass


def test_places(tmp_path: Path) -> None:
    assert Place.of(f"file:{tmp_path}/a/", ()).for_spark == f"file:{tmp_path}/a"
    assert Place.of("s3a://b//c/", ()).for_spark == "s3a://b/c"
    with pytest.raises(WrongUsage, match="expected a directory, or SCHEME"):
        Place.of("s3a:/b/c", ())


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (Form(format="par quet"), "--format par quet: expected"),
        (Form(partition_by=("body",)), "--partition-by body: expected date or one of broker,"),
        (Form(partition_by=("topic", "topic")), "stands twice"),
        (
            Form(format="csv", columns=("tags", "body", "keys")),
            r"--format csv cannot hold body \(binary\), keys \(array<string>\): .*--columns",
        ),
        (Form(format="CSV", columns=("tags", "body")), r"csv cannot hold body \(binary\)"),
        (Form(format="csv", columns=("tags", "headers")), r"cannot hold headers \(map"),
        (Form(format="csv", columns=("tags", "_corrupt")), r"cannot hold _corrupt \(struct"),
        (Form(format="text", columns=("queue_id",)), r"cannot hold queue_id \(int\)"),
        (Form(format="xml", columns=("queue_id", "tags")), r"cannot hold tags \(string\)"),
    ],
)
def test_forms_that_cannot_be(form: Form, pattern: str) -> None:
    with pytest.raises(WrongUsage, match=pattern):
        form.check()


@pytest.mark.parametrize("name", ["CSV", "Json", "ORC", "Parquet"])
def test_a_format_counts_in_any_case(name: str) -> None:
    assert Form(format=name) == Form(format=name.lower())
    assert Form(format=name).is_of_files


def test_texts_hold_every_writable_value() -> None:
    Form(format="csv", columns=("tags", "store_timestamp", "crc_ok")).check()
    Form(format="json", columns=("body", "keys")).check()
    Form(format="text", columns=("queue_id", "tags"), partition_by=("queue_id",)).check()


def test_csv_refuses_bytes_before_spark_starts(tmp_path: Path) -> None:
    """They were what Spark shows of them, `[74 61 67]`, in a run that was good."""
    settings = JobSettings(stores=(str(tmp_path),), columns=("topic", "tags", "body"))
    form = Form(format="csv", partition_by=())
    options = ExportOptions(out=str(tmp_path / "out"), form=form)
    report = run_job("export", settings, lambda job: export(job, options))
    assert report.exit_code == 64
    assert "cannot hold body (binary)" in report.error
    assert not (tmp_path / "out").exists()


def test_columns_are_the_chosen_ones_or_all() -> None:
    assert exported_columns(("topic", "body")) == ("topic", "body")
    everything = exported_columns(())
    assert "uniq_key" in everything
    assert "_corrupt" not in everything
    with pytest.raises(WrongUsage, match="unknown column 'colour'; available columns: broker,"):
        exported_columns(("topic", "colour"))


def test_names_of_columns_count_in_any_case() -> None:
    assert exported_columns(("TOPIC", "Queue_Id")) == ("topic", "queue_id")
    assert partition_names(("Topic", "DATE", "colour")) == ("topic", "date", "colour")
    with pytest.raises(WrongUsage, match="--columns Topic,TOPIC: a column stands twice"):
        exported_columns(("Topic", "TOPIC"))


def test_properties_are_in_the_files_once() -> None:
    """And an export that began without the column goes on."""
    assert "properties" in exported_columns(())
    assert "headers" not in exported_columns(())
    assert exported_columns(("headers",)) == ("headers",)
