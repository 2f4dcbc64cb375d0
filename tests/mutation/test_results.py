"""Lines of what became of mutants: cut ones, and those of other sources."""

from pathlib import Path

from tests.mutation.generated.results import RESULTS, Fate, kept_in, load


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
