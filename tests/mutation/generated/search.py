"""Generated mutants put to the test: each is run where its line is visited, until a run fails.

First what is to be run is found out (`begin`), then it is run: here (`try_cases`), or one by one on
other machines (`decide`), since cases can be pickled and know nothing of each other.
"""

import resource
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rocketbed.chaos.search.runner import Outcome, RunRequest, Say, run_requests
from tests.mutation.generated.draw import Generated, Source, draw, read_sources
from tests.mutation.generated.results import RESULTS, MutantResult, kept_in, load
from tests.mutation.generated.visits import (
    KINDS,
    Trial,
    Visited,
    digest_of_sources,
    files_of_tests,
    measure,
    suite,
)
from tests.mutation.planted.mutant import StaleMutant

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
VISITS: Final = "visits.json"


class UnknownMutant(Exception):
    """A key was asked for that was not drawn."""


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
class Case:
    """A mutant that is not found yet, and the runs that it has not passed."""

    mutant: Generated
    verdict: MutantResult
    remaining: deque[Visited]


@dataclass(slots=True)
class Progress:
    """The state of a search, in the order of the draw."""

    digest: str
    """Of the sources."""
    verdicts: list[tuple[Generated, MutantResult]]
    remaining: list[Case]
    """What is to be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt(RunRequest):
    case: Case
    visited: Visited


def search(
    request: Search,
    on_fate: Callable[[MutantResult], None],
    say: Say,
    *,
    warn: Say,
    trials: list[Trial] | None = None,
    sources: list[Source] | None = None,
) -> Progress:
    """Do it whole; `on_fate` hears of each mutant once it is decided, the rest as `begin`.

    Raises what `begin` does, and `StaleMutant` if a source was edited meanwhile.
    """
    progress = begin(request, say, warn=warn, trials=trials, sources=sources)
    for _, verdict in progress.verdicts:
        if verdict.state == "not visited":
            on_fate(verdict)
    results = request.out / RESULTS
    with closing(
        try_cases(progress.remaining, results, progress.digest, jobs=request.jobs)
    ) as decided:
        for verdict in decided:
            on_fate(verdict)
    progress.remaining.clear()
    return progress


def begin(
    request: Search,
    say: Say,
    *,
    warn: Say,
    trials: list[Trial] | None = None,
    sources: list[Source] | None = None,
) -> Progress:
    """Return known results, and the mutants to try in `trials` or the suite of the seed, which is
    measured first if needed; `warn` gets the tests that are left out.

    Raises `UnknownMutant`, `VisitError` if a run fails without a mutant, `OSError` for the
    directory."""
    sources = read_sources() if sources is None else sources
    drawn = draw(request.number, request.seed, sources)
    chosen = [mutant for mutant in drawn if not request.only or mutant.key in request.only]
    if lost := set(request.only) - {mutant.key for mutant in chosen}:
        raise UnknownMutant(f"{', '.join(sorted(lost))}: not among the {len(drawn)} drawn")
    digest = digest_of_sources()
    request.out.mkdir(parents=True, exist_ok=True)
    known_fates = load([request.out / RESULTS], digest)
    if trials is None:
        trials = suite(request.seed) + (files_of_tests(request.tests) if request.tests else [])
    cache = request.out / f"{digest}-{VISITS}"
    visited = measure(trials, sources, cache, jobs=request.jobs, say=say, warn=warn)
    progress = Progress(digest, [], [])
    for mutant in chosen:
        verdict = known_fates.get(mutant.key) or _fresh(mutant)
        progress.verdicts.append((mutant, verdict))
        here = _tried_in(visited, verdict, request.runs)
        remaining = deque(run for run in here if run.name not in verdict.passed)
        if verdict.state == "not found" and not here:
            verdict.state = "not visited"
        elif verdict.state == "not found" and remaining:
            progress.remaining.append(Case(mutant, verdict, remaining))
    return progress


def try_cases(
    cases: Iterable[Case], results: Path, digest: str, *, jobs: int
) -> Generator[MutantResult, None, None]:
    """Run each until it is decided; its verdict, once it is a line of `results`.

    Raises `StaleMutant`, `OSError` for the file.
    """
    with kept_in(results, digest) as keep, closing(decide(cases, jobs=jobs)) as decided:
        for verdict in decided:
            keep(verdict)
            yield verdict


def decide(cases: Iterable[Case], *, jobs: int) -> Generator[MutantResult, None, None]:
    """The same with no line anywhere. Raises `StaleMutant`."""
    waiting = deque(cases)
    with closing(run_requests(_Attempts(waiting), jobs=jobs)) as done:
        for attempt, outcome in done:
            case = attempt.case
            _judge(case, attempt.visited, outcome)
            if case.verdict.state == "not found" and case.remaining:
                waiting.appendleft(case)
                continue
            yield case.verdict


def _tried_in(visited: list[Visited], verdict: MutantResult, clusters: int) -> list[Visited]:
    """The runs that a mutant has to pass, in their order."""
    where = [run for run in visited if run.visits(verdict.place, verdict.line)]
    most = {"cluster": clusters, "session": len(where), "tests": TESTS}
    by_kind = ([run for run in where if run.kind == kind][: most[kind]] for kind in KINDS)
    return [run for runs in by_kind for run in runs]


def _fresh(mutant: Generated) -> MutantResult:
    site = mutant.site
    return MutantResult(
        key=mutant.key,
        place=mutant.source.place,
        function=site.function,
        line=site.line,
        operator=site.operator,
    )


class _Attempts(Iterator[_Attempt]):
    """The next run of the first case. A case comes back when it passed and has runs left."""

    def __init__(self, cases: deque[Case]) -> None:
        self._cases = cases

    def __next__(self) -> _Attempt:
        if not self._cases:
            raise StopIteration
        case = self._cases.popleft()
        visited = case.remaining.popleft()
        before = partial(_begin, case.mutant, int(PATIENCE * visited.cost_s + PATIENCE_S))
        errand = visited.trial.errand(before)
        return _Attempt(plan=errand.plan, options=errand.options, case=case, visited=visited)


def _begin(mutant: Generated, cpu_s: int) -> None:
    """Plant the mutant in the run's process, before the run begins."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    mutant.plant()


def _judge(case: Case, visited: Visited, outcome: Outcome) -> None:
    """Take one run in."""
    verdict = case.verdict
    verdict.cpu_s = round(verdict.cpu_s + outcome.cpu_s, 2)
    if outcome.verdict == "pass":
        verdict.passed.append(visited.name)
        verdict.same = verdict.same and outcome.digest == visited.digest
        return
    verdict.state = "tests only" if visited.kind == "tests" else "found"
    verdict.run = visited.name
    if outcome.judgement is None:
        if StaleMutant.__name__ in outcome.error:
            raise StaleMutant(outcome.error)
        verdict.by = [_cause(visited, outcome)]
        verdict.error = (outcome.error.strip().splitlines() or [""])[-1]
    else:
        verdict.by = outcome.finding_ids or [outcome.verdict]


def _cause(visited: Visited, outcome: Outcome) -> str:
    if outcome.timed_out:
        return "hang"
    return "crash" if visited.kind == "cluster" else visited.trial.plan.name
