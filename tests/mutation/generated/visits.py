"""Lines of the mutated modules that a run visits: measured once for each run, and kept.

The table is memory that the run's process shares with this one, so that the visits of a killed run
count too."""

import hashlib
import json
import mmap
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

from rocketbed.chaos.plan.library import all_scenarios, load_scenario
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.runner import Options, RunRequest, Say, run_requests
from rocketbed.host.files import write_whole
from tests.model.catalogue import Session, sessions
from tests.mutation.generated.draw import ROOT, Source
from tests.mutation.generated.testing import run_tests

MORE: Final = {"soak-swarm": 4, "soak-failover": 3}
"""Seeds of the swarms beside one of each scenario: together some thirty runs."""


RUN_BY: Final = (
    "chaos",
    "client",
    "inspect",
    "node",
    "remoting",
    "replication",
    "routing",
    "wire",
    "world",
)
"""Folders whose code decides what a run does."""


class VisitError(Exception):
    """A run fails although nothing is planted, so that it cannot judge; the message says which."""


Kind = Literal["cluster", "session", "tests"]
KINDS: Final[tuple[Kind, ...]] = ("cluster", "session", "tests")
"""In the order in which they are tried: the score tells who found a mutant first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run of the suite: of a plan, a session of one store (`tests.model`), a test file."""

    plan: Plan
    session: Session | None = None
    """What is run instead of the plan."""
    kind: Kind = "cluster"

    @property
    def name(self) -> str:
        return run_name(self.plan)

    def errand(self, before: Callable[[], None]) -> RunRequest:
        """`before` is called in its process."""
        return RunRequest(plan=self.plan, options=Options(before=before, instead=self.session))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched(RunRequest):
    kind: Kind


class Visited:
    """Visits of one run of the suite without a mutant."""

    def __init__(self, trial: "Trial", row: dict[str, Any]) -> None:
        self.trial = trial
        self.name = trial.name
        self.cost_s: float = row["cost_s"]
        """CPU seconds, watched, which takes longer."""
        self.digest: str = row["digest"]
        self._lines = {place: set(lines) for place, lines in row["lines"].items()}
        self.scope = sum(map(len, self._lines.values()))
        """How many lines it visits: tests of few are about these."""

    @property
    def kind(self) -> Kind:
        return self.trial.kind

    def visits(self, place: str, line: int) -> bool:
        return line in self._lines.get(place, ())


def suite(seed: int) -> list[Trial]:
    """Short simulated runs of every kind, and sessions of a store."""
    plans = [family.plan(seed, quick=True) for family in all_scenarios()]
    for name, count in MORE.items():
        swarm = load_scenario(name)
        plans += [swarm.plan(seed + more, quick=True) for more in range(1, 1 + count)]
    trials = [Trial(plan=plan) for plan in plans]
    for name, session in sessions(seed).items():
        title, _, first = name.partition("/")
        plan = Plan(name=title, seed=int(first))
        trials.append(Trial(plan=plan, session=session, kind="session"))
    return trials


def files_of_tests(folder: Path) -> list[Trial]:
    """A run of each test file of a folder."""
    return [
        Trial(
            plan=Plan(name=str(path), seed=zlib.crc32(path.read_bytes())),
            session=partial(run_tests, path),
            kind="tests",
        )
        for path in sorted(folder.rglob("test_*.py"))
    ]


def run_name(plan: Plan) -> str:
    return f"{plan.name}/{plan.seed}"


def digest_of_sources(root: Path = ROOT) -> str:
    """Return the digest of everything that a run depends on."""
    digest = hashlib.sha256()
    for folder in RUN_BY:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def measure(
    trials: list[Trial], sources: list[Source], cache: Path, *, jobs: int, say: Say, warn: Say
) -> list[Visited]:
    """Run what `cache` does not know yet, and watch it; by kind, the cheapest run first, or the
    tests that visit the least.

    Test files that fail are left out, which `warn` hears. Raises `VisitError` if a run fails, or
    each file of tests, `OSError`.
    """
    known_visits: dict[str, Any] = json.loads(cache.read_text()) if cache.exists() else {}
    missing = [trial for trial in trials if trial.name not in known_visits]
    watches = {trial.name: Watch(sources) for trial in missing}

    def errand(trial: Trial) -> _Watched:
        errand_of_trial = trial.errand(watches[trial.name].begin)
        return _Watched(plan=errand_of_trial.plan, options=errand_of_trial.options, kind=trial.kind)

    with closing(run_requests(map(errand, missing), jobs=jobs)) as done:
        for errand_watched, outcome in done:
            name = run_name(outcome.plan)
            if outcome.verdict != "pass":
                why = ", ".join(outcome.finding_ids) or outcome.error.strip()
                text = f"{name} fails with nothing planted: {outcome.verdict}: {why}"
                if errand_watched.kind != "tests":
                    raise VisitError(text)
                warn(f"left out: {text}")
                continue
            known_visits[name] = {
                "cost_s": round(outcome.cpu_s, 2),
                "digest": outcome.digest,
                "lines": watches[name].lines(),
            }
            say(f"{name}: {sum(map(len, known_visits[name]['lines'].values()))} lines")
            write_whole(cache, json.dumps(known_visits))
    visited = [
        Visited(trial, known_visits[trial.name]) for trial in trials if trial.name in known_visits
    ]
    if {one.kind for one in visited} != {one.kind for one in trials}:
        raise VisitError("every file of tests fails with nothing planted")
    return sorted(visited, key=_turn)


def _turn(visited: Visited) -> tuple[int, float, str]:
    cost = visited.scope if visited.kind == "tests" else visited.cost_s
    return KINDS.index(visited.kind), cost, visited.name


class Watch:
    """A byte for each line of the sources: whether a process visited it."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._first: dict[str, tuple[str, int]] = {}
        size = 0
        for source in sources:
            self._first[str(source.path)] = (source.place, size)
            size += source.data.count(b"\n") + 2
        self._table = mmap.mmap(-1, size)
        self._size = size

    def begin(self) -> None:
        """Watch this process from now on, which makes it some times slower."""
        table = self._table

        def watcher(first: int) -> Any:
            def on_line(frame: FrameType, _event: str, _value: object) -> Any:
                table[first + (frame.f_lineno or 0)] = 1  # what the compiler adds has no line
                return on_line

            return on_line

        watchers = {path: watcher(first) for path, (_, first) in self._first.items()}

        def on_call(frame: FrameType, _event: str, _value: object) -> Any:
            return watchers.get(frame.f_code.co_filename)

        sys.settrace(on_call)

    def lines(self) -> dict[str, list[int]]:
        """Place -> numbers of the lines that were visited."""
        ends = [*(first for _, first in list(self._first.values())[1:]), self._size]
        lines_visited = {}
        for (place, first), end in zip(self._first.values(), ends, strict=True):
            lines_visited[place] = [at - first for at in range(first, end) if self._table[at]]
        return lines_visited
