"""Lines of what became of mutants: cut ones, those of other sources, and those of tasks."""

from pathlib import Path

from rocketbed.chaos.mutants.fates import (
    PARTS,
    RESULTS,
    Fate,
    gather,
    kept_in,
    load,
    new_part,
    parts,
)


def fate(key: str, passed: list[str]) -> Fate:
    place = "node/release.py"
    return Fate(key=key, place=place, function="f", line=1, operator="not", passed=passed)


def test_a_line_that_was_cut_or_is_of_other_sources_is_none(tmp_path: Path) -> None:
    path = tmp_path / RESULTS
    with kept_in(path, "old") as keep:
        keep(fate("a", []))
    with path.open("a") as file:
        file.write('{"key": "b", "sou')
    with kept_in(path, "new") as keep:
        keep(fate("c", ["x/1"]))
        assert load([path], "new") == {"c": fate("c", ["x/1"])}, "on record at once"
    assert list(load([path], "old")) == ["a"]


def test_what_tasks_found_counts_last_and_leaves_no_file(tmp_path: Path) -> None:
    with kept_in(tmp_path / RESULTS, "now") as keep:
        keep(fate("a", []))
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"cut')
    for key in ("a", "b"):
        with kept_in(new_part(tmp_path), "now") as keep:
            keep(fate(key, ["x/1"]))
    assert sorted(load(parts(tmp_path), "now")) == ["a", "b"]
    gather(tmp_path)
    found = load([tmp_path / RESULTS], "now")
    assert found == {key: fate(key, ["x/1"]) for key in ("a", "b")}
    assert list((tmp_path / PARTS).iterdir()) == []
    before = (tmp_path / RESULTS).read_text()
    gather(tmp_path)
    assert (tmp_path / RESULTS).read_text() == before
