"""Results of generated mutants: a line of a file for each, once it is decided.

    OUT/results.jsonl     all of them

So an interrupted examination continues. Lines of other sources do not count, since
both the bug and what looks for it may have changed.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

RESULTS: Final = "results.jsonl"

State = Literal["found", "tests only", "not found", "not visited"]


@dataclass(slots=True, kw_only=True)
class MutantResult:
    """Result of one mutant."""

    key: str
    place: str
    """`node/store/flush.py`."""
    function: str
    line: int
    operator: str
    state: State = "not found"
    by: list[str] = field(default_factory=list)
    """Ids of the checks that found it; else the verdict, `crash` or `hang`."""
    run: str = ""
    """Which run found it."""
    passed: list[str] = field(default_factory=list)
    """Runs that did not."""
    same: bool = True
    """Whether those were, event by event, what they are without it: perhaps it changes nothing."""
    cpu_s: float = 0.0
    error: str = ""
    """Last line of what the harness said, of a crash."""


def load(paths: Iterable[Path], digest: str) -> dict[str, MutantResult]:
    """Load the results for these sources by key; foreign and truncated lines are skipped.

    Raises `OSError`.
    """
    verdicts: dict[str, MutantResult] = {}
    for line in _lines(paths):
        try:
            row: dict[str, Any] = json.loads(line)
            if row.pop("sources") == digest:
                verdicts[row["key"]] = MutantResult(**row)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return verdicts


@contextmanager
def kept_in(path: Path, digest: str) -> Iterator[Callable[[MutantResult], None]]:
    """Return a function that appends a verdict to a file, durably. Raises `OSError`."""
    is_cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" if is_cut else "")

        def keep(verdict: MutantResult) -> None:
            file.write(json.dumps({"sources": digest, **asdict(verdict)}) + "\n")
            file.flush()

        yield keep


def _lines(paths: Iterable[Path]) -> list[str]:
    texts = (path.read_text(encoding="utf-8") for path in paths if path.exists())
    return [line for text in texts for line in text.splitlines()]
