"""Lines of what became of mutants: cut ones, and those of other sources."""

from pathlib import Path

from tests.mutation.generated.results import RESULTS, MutantResult, kept_in, load


def verdict(key: str, passed: list[str]) -> MutantResult:
    place = "node/release.py"
    return MutantResult(key=key, place=place, function="f", line=1, operator="not", passed=passed)


def test_truncated_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / RESULTS
    with kept_in(path, "old") as keep:
        keep(verdict("a", []))
    with path.open("a") as file:
        file.write('{"key": "b", "sou')
    with kept_in(path, "new") as keep:
        keep(verdict("c", ["x/1"]))
        assert load([path], "new") == {"c": verdict("c", ["x/1"])}, "on record at once"
    assert list(load([path], "old")) == ["a"]
