"""What is exported already, and which directories an export may write to."""

import json
from pathlib import Path

import pytest

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.jobs.export import (
    MANIFEST,
    exported_columns,
    locked,
    next_range,
    open_manifest,
)
from rocketbed.pipeline.jobs.inputs import BrokerLog

ASKED = {"columns": ["topic"], "topics": [], "mode": "PERMISSIVE"}


def log(start: int, end: int) -> BrokerLog:
    return BrokerLog("b", (), start, end)


def manifest_of(*ranges: tuple[int, int]) -> dict[str, object]:
    parts = [{"broker": "b", "start": start, "end": end} for start, end in ranges]
    return {"parts": [*parts, {"broker": "other", "start": 0, "end": 900}]}


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
    assert next_range(manifest_of(*ranges), of_log) == expected


def test_a_log_that_lost_its_end_is_refused() -> None:
    with pytest.raises(PipelineError, match="this is another log"):
        next_range(manifest_of((0, 100)), log(0, 90))


def test_a_new_directory_gets_a_manifest_at_once(tmp_path: Path) -> None:
    assert open_manifest(tmp_path, ASKED)["parts"] == []
    assert json.loads((tmp_path / MANIFEST).read_text())["columns"] == ["topic"]
    assert open_manifest(tmp_path, ASKED) == {"format": 1, **ASKED, "parts": []}


def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(WrongUsage, match=r"holds thesis\.txt and no _rocketbed_manifest"):
        open_manifest(tmp_path, ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_export_of_other_columns_is_not_mixed_in(tmp_path: Path) -> None:
    open_manifest(tmp_path, ASKED)
    with pytest.raises(WrongUsage, match="was exported with columns"):
        open_manifest(tmp_path, {**ASKED, "columns": ["topic", "body"]})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 9, "columns": []}'])
def test_a_broken_manifest_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(PipelineError, match="invalid manifest"):
        open_manifest(tmp_path, ASKED)


def test_two_exports_at_once_are_refused(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "out"),
        pytest.raises(WrongUsage, match="another export"),
        locked(tmp_path / "out"),
    ):
        pass
    with locked(tmp_path / "out"):  # the first one's lock went with it
        assert (tmp_path / "out").is_dir()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="cannot write to"), locked(tmp_path / "file" / "out"):
        pass


def test_columns_are_those_asked_for_or_all() -> None:
    assert exported_columns(("topic", "body")) == ("topic", "body")
    everything = exported_columns(())
    assert "uniq_key" in everything
    assert "_corrupt" not in everything
    with pytest.raises(WrongUsage, match="unknown column 'colour'; available columns: broker,"):
        exported_columns(("topic", "colour"))


def test_properties_stand_in_the_files_once() -> None:
    """And an export that began without the column goes on."""
    assert "properties" in exported_columns(())
    assert "headers" not in exported_columns(())
    assert exported_columns(("headers",)) == ("headers",)
