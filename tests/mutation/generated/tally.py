"""Score of generated mutants for each part, and the survivors, each with its difference."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.mutation.generated.results import MutantResult
from tests.mutation.generated.search import Progress

STATES: Final = ("found", "tests only", "not found", "not visited")
ALL: Final = "all"
SURVIVORS: Final = "survivors.txt"
"""In the output directory: what was not found."""


def result_text(verdict: MutantResult) -> str:
    how = ", ".join(verdict.by) if verdict.by else f"{len(verdict.passed)} runs passed"
    how = "" if verdict.state == "not visited" else f" ({how})"
    return f"{verdict.key} {verdict.operator:7} {_where(verdict)}: {verdict.state}{how}"


def score(results: Progress) -> dict[str, dict[str, int]]:
    """Part -> state -> mutants; a part is a folder, and `all`."""
    rows: dict[str, dict[str, int]] = {}
    for _, verdict in sorted(results.verdicts, key=lambda result: result[1].place):
        for part in (verdict.place.rpartition("/")[0], ALL):
            row = rows.setdefault(part, dict.fromkeys(STATES, 0))
            row[verdict.state] += 1
    if ALL in rows:
        rows[ALL] = rows.pop(ALL)
    return rows


def percent(row: dict[str, int]) -> int | None:
    """Share that the testbed found, in percent; None if there are no mutants."""
    counted = sum(row.values())
    return round(100 * row["found"] / counted) if counted else None


def score_lines(results: Progress) -> Iterator[str]:
    yield f"{'':10} " + " ".join(f"{state:>12}" for state in STATES) + "   score"
    for part, row in score(results).items():
        share = percent(row)
        numbers = " ".join(f"{row[state]:12}" for state in STATES)
        yield f"{part:10} {numbers}   {'-' if share is None else f'{share:3} %'}"
    by = Counter(name for _, verdict in results.verdicts for name in verdict.by[:1])
    yield "found first by: " + ", ".join(f"{name} {times}" for name, times in by.most_common())
    unvisited = [
        _where(verdict) for _, verdict in results.verdicts if verdict.state == "not visited"
    ]
    yield from (f"no run visits {where}" for where in sorted(unvisited))


def write_survivors(results: Progress, path: Path) -> int:
    """Those that were not found, as one text; how many they are. Raises `OSError`."""
    survivors = [
        (mutant, verdict) for mutant, verdict in results.verdicts if verdict.state == "not found"
    ]
    survivors.sort(key=lambda result: (result[1].place, result[1].line))
    texts = []
    for mutant, verdict in survivors:
        events = "the same events as without it" if verdict.same else "other events"
        texts.append(
            f"{result_text(verdict)}\n{events} in {', '.join(verdict.passed)}\n{mutant.diff}"
        )
    path.write_text("\n".join(texts), encoding="utf-8")
    return len(survivors)


def as_row(results: Progress) -> dict[str, Any]:
    """For programs."""
    return {
        "score": {part: {**row, "percent": percent(row)} for part, row in score(results).items()},
        "mutants": [
            {"key": verdict.key, "where": _where(verdict), "state": verdict.state, "by": verdict.by}
            for _, verdict in results.verdicts
        ],
    }


def _where(verdict: MutantResult) -> str:
    return f"{verdict.place}:{verdict.line} {verdict.function}"
