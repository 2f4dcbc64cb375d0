"""Generated mutants put to the test: each is run where its line is visited, until a run fails.

What became of each is a line of a file in the output directory, so that an examination that was
ended goes on where it was. Lines of other sources count no more, since both the bug and what looks
for it may have changed.
"""

import json
import resource
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from rocketbed.chaos.hunt.runner import Errand, Outcome, Say, run_errands
from rocketbed.chaos.mutants.draw import Generated, Source, candidates, draw, read_sources
from rocketbed.chaos.mutants.equivalent import Equivalent, load_equivalents
from rocketbed.chaos.mutants.mutant import StaleMutant
from rocketbed.chaos.mutants.visits import (
    KINDS,
    Trial,
    Visited,
    digest_of_sources,
    files_of_tests,
    measure,
    suite,
)

SEED: Final = 1
RUNS: Final = 6
"""Runs of clusters that a mutant has to pass to count as not found, if so many visit its line, and
every session that does."""
TESTS: Final = 8
"""Files of tests that it has to pass besides."""
PATIENCE: Final = 4.0
"""Times the CPU seconds of the watched run, after which a run hangs ..."""
PATIENCE_S: Final = 10.0
"""... and this on top. Seconds of CPU, since a busy machine is no find."""
RESULTS: Final = "results.jsonl"
VISITS: Final = "visits.json"


class UnknownMutant(Exception):
    """A key was asked for that was not drawn."""


State = Literal["found", "tests only", "not found", "not visited", "equivalent"]


@dataclass(slots=True, kw_only=True)
class Fate:
    """What became of one mutant."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    number: int
    out: Path
    """Directory of the results; made if it does not exist."""
    seed: int = SEED
    """Of the draw, and first of the runs."""
    jobs: int = 2
    runs: int = RUNS
    only: Sequence[str] = ()
    """Keys; empty: all that are drawn."""
    tests: Path | None = None
    """Folder of test files, which look for what no other run found."""


@dataclass(slots=True)
class Found:
    """The outcome of a search, in the order of the draw."""

    fates: list[tuple[Generated, Fate]]
    stale: list[Equivalent]
    """Known equivalents that are no mutant of any source any more."""


@dataclass(slots=True)
class _Case:
    mutant: Generated
    fate: Fate
    left: deque[Visited]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt(Errand):
    case: _Case
    visited: Visited


def search(
    wanted: Search,
    told: Callable[[Fate], None],
    say: Say,
    *,
    warn: Say,
    trials: list[Trial] | None = None,
    sources: list[Source] | None = None,
) -> Found:
    """Do it, in `trials` or the suite of the seed; `told` hears of each mutant once it is decided,
    `warn` of tests that are left out.

    Raises `UnknownMutant`, `VisitError` if a run fails by itself, `StaleMutant` if a source was
    edited meanwhile, `OSError` for the directory.
    """
    sources = read_sources() if sources is None else sources
    drawn = draw(wanted.number, wanted.seed, sources)
    chosen = [one for one in drawn if not wanted.only or one.key in wanted.only]
    if lost := set(wanted.only) - {one.key for one in chosen}:
        raise UnknownMutant(f"{', '.join(sorted(lost))}: not among the {len(drawn)} drawn")
    equivalents = load_equivalents()
    all_keys = {one.key for source in sources for one in candidates(source)}
    digest = digest_of_sources()
    wanted.out.mkdir(parents=True, exist_ok=True)
    results = wanted.out / RESULTS
    known = _load(results, digest)
    fates = {one.key: known.get(one.key) or _fresh(one) for one in chosen}
    for key in equivalents.keys() & fates:
        fates[key].state = "equivalent"
    if trials is None:
        trials = suite(wanted.seed) + (files_of_tests(wanted.tests) if wanted.tests else [])
    visited = measure(
        trials,
        sources,
        wanted.out / f"{digest}-{VISITS}",
        jobs=wanted.jobs,
        say=say,
        warn=warn,
    )
    cases: deque[_Case] = deque()
    for one in chosen:
        fate = fates[one.key]
        where = [run for run in visited if run.visits(fate.place, fate.line)]
        most = {"cluster": wanted.runs, "session": len(where), "tests": TESTS}
        here = [
            run
            for kind in KINDS
            for run in [one for one in where if one.kind == kind][: most[kind]]
        ]
        left = deque(run for run in here if run.name not in fate.passed)
        if fate.state == "not found" and not here:
            fate.state = "not visited"
            told(fate)
        elif fate.state == "not found" and left:
            cases.append(_Case(one, fate, left))
    is_cut = results.exists() and not results.read_bytes().endswith(b"\n")
    with (
        results.open("a", encoding="utf-8") as file,
        closing(run_errands(_Attempts(cases), jobs=wanted.jobs)) as done,
    ):
        file.write("\n" if is_cut else "")
        for attempt, outcome in done:
            case = attempt.case
            _judge(case, attempt.visited, outcome)
            if case.fate.state == "not found" and case.left:
                cases.appendleft(case)
                continue
            file.write(json.dumps({"sources": digest, **asdict(case.fate)}) + "\n")
            file.flush()
            told(case.fate)
    stale = [one for key, one in equivalents.items() if key not in all_keys]
    return Found([(one, fates[one.key]) for one in chosen], stale)


def _fresh(mutant: Generated) -> Fate:
    site = mutant.site
    return Fate(
        key=mutant.key,
        place=mutant.source.place,
        function=site.function,
        line=site.line,
        operator=site.operator,
    )


def _load(results: Path, digest: str) -> dict[str, Fate]:
    """What is known of these sources; a line that was cut short is none."""
    found: dict[str, Fate] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if row.pop("sources") == digest:
            found[row["key"]] = Fate(**row)
    return found


class _Attempts(Iterator[_Attempt]):
    """The next run of the first case. A case comes back when it passed and has runs left."""

    def __init__(self, cases: deque[_Case]) -> None:
        self._cases = cases

    def __next__(self) -> _Attempt:
        if not self._cases:
            raise StopIteration
        case = self._cases.popleft()
        visited = case.left.popleft()
        before = partial(_begin, case.mutant, int(PATIENCE * visited.cost_s + PATIENCE_S))
        asked = visited.trial.errand(before)
        return _Attempt(plan=asked.plan, options=asked.options, case=case, visited=visited)


def _begin(mutant: Generated, cpu_s: int) -> None:
    """In the run's process, before it begins."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    mutant.plant()


def _judge(case: _Case, visited: Visited, outcome: Outcome) -> None:
    """Take one run in."""
    fate = case.fate
    fate.cpu_s = round(fate.cpu_s + outcome.cpu_s, 2)
    if outcome.verdict == "pass":
        fate.passed.append(visited.name)
        fate.same = fate.same and outcome.digest == visited.digest
        return
    fate.state = "tests only" if visited.kind == "tests" else "found"
    fate.run = visited.name
    if outcome.judgement is None:
        if StaleMutant.__name__ in outcome.error:
            raise StaleMutant(outcome.error)
        fate.by = [_cause(visited, outcome)]
        fate.error = (outcome.error.strip().splitlines() or [""])[-1]
    else:
        fate.by = outcome.finding_ids or [outcome.verdict]


def _cause(visited: Visited, outcome: Outcome) -> str:
    if outcome.timed_out:
        return "hang"
    return "crash" if visited.kind == "cluster" else visited.trial.plan.name
