"""Replay files: a failure with all that is needed to repeat it (`FAIL-NAME-SEED.rbx`, JSON).

A file holds a plan and its outcome: findings, digest, and checkpoints of the digest, so that a
replay that diverges can report after which event. If the plan was shrunk, the seed's own plan is
kept too (`original`). The file of a pytest test has no steps, since those are the body's, but lists
those to leave out (`test`). Source: chaos.md 4.7.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast, get_args

import trio

from rocketbed import __version__
from rocketbed.chaos.backends.sim.clock import CHECKPOINT_EVENTS
from rocketbed.chaos.evidence.record import with_tuples
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.form import plan_from_row, plan_to_row
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import unknown
from rocketbed.chaos.search.determinism import shared_events, window
from rocketbed.chaos.search.runner import BackendName, Options, Outcome, run_plan
from rocketbed.host.files import write_whole

FORMAT: Final = 3
KIND: Final = "rocketbed replay"
Repro = Literal["exact", "schedule", "none"]
"""`exact`: the same run to the last event; `schedule`: the same plan, on machines that are not
deterministic; `none`: it was repeated and did not recur."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """Result of one run of a plan."""

    verdict: str = ""
    findings: tuple[str, ...] = ()
    digest: str = ""
    """The simulation's digest; empty on real processes."""
    events: int = 0
    checkpoints: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """Steps that were carried out, with times and names."""

    @classmethod
    def of(cls, outcome: Outcome) -> "PlanResult":
        return cls(
            verdict=outcome.verdict,
            findings=tuple(outcome.finding_ids),
            digest=outcome.digest,
            events=outcome.facts.get("events", 0),
            checkpoints=tuple(outcome.facts.get("checkpoints", ())),
            steps=tuple(outcome.record.steps) if outcome.record is not None else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPart:
    """Additional part of the file of a pytest test: its steps are the body's, and not the
    plan's."""

    __test__ = False

    node: str
    """Pytest id of the test, with backend and seed."""
    left_out: tuple[int, ...]
    """Numbers of the body's steps that are skipped."""
    fault_phases: dict[int, tuple[str, ...]]
    """Number of a fault phase -> its steps, replacing those that the seed would draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A failure that can be repeated."""

    plan: Plan
    """Plan that a replay runs."""
    taken: PlanResult
    backend: BackendName = "sim"
    target: str = ""
    """Foreign software that it ran on (`chaos.backends.foreign.target`), followed by its mode."""
    mode: Literal["classic", "controller"] = "classic"
    repro: Repro = "exact"
    finding: str = ""
    """Finding that the plan was shrunk for; empty if it was not. For a test, its failure's
    signature."""
    test: TestPart | None = None
    original: Plan | None = None
    """Own plan of the seed, if `plan` was shrunk."""
    original_taken: PlanResult | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the software that wrote the file."""

    @classmethod
    def of(cls, outcome: Outcome) -> "Replay":
        return cls(
            plan=outcome.plan,
            taken=PlanResult.of(outcome),
            backend=outcome.backend,
            target=outcome.facts.get("target", ""),
            mode=outcome.facts.get("mode", "classic"),
            repro="exact" if outcome.backend == "sim" else "schedule",
            versions=versions(),
        )

    def of_original(self) -> "Replay":
        """Return the seed's own run. Raises `ScenarioError` if this is it already."""
        if self.original is None or self.original_taken is None:
            raise ScenarioError("this file holds a seed's own plan: it has no other original")
        original = replace(self, plan=self.original, taken=self.original_taken)
        return replace(original, finding="", test=None, original=None, original_taken=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    outcome: Outcome
    same_digest: bool | None
    """None if there is nothing to compare: real processes, or a different backend."""
    expected: frozenset[str]
    """Ids of the findings to be repeated; empty if there were none."""
    note: str = ""
    """Where the replay diverged, if it did."""

    @property
    def same_finding(self) -> bool:
        """True if the replay has all findings of the first run."""
        return self.expected.issubset(self.outcome.finding_ids)

    def comparison(self) -> str:
        current = set(self.outcome.finding_ids)
        if not self.expected:
            return f"no findings the first time, {_list(current) or 'nothing'} this time"
        parts = {
            "found again": self.expected & current,
            "not found this time": self.expected - current,
        }
        return "; ".join(f"{_list(ids)}: {label}" for label, ids in parts.items() if ids)


def save_replay(replay: Replay, path: Path) -> None:
    """Write a replay file. Raises `OSError`."""
    row = {
        "kind": KIND,
        "format": FORMAT,
        "scenario": replay.plan.name,
        "seed": replay.plan.seed,
        **asdict(replay),
        "versions": replay.versions or versions(),
        "plan": plan_to_row(replay.plan),
        "original": replay.original and plan_to_row(replay.original),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(row, indent=1) + "\n")


def load_replay(path: Path) -> Replay:
    """Read the replay file of a scenario.

    Raises `ScenarioError` for a test's file, another version's, a damaged one, or another kind of
    file.
    """
    replay = read_replay(path)
    if replay.test is not None:
        test = replay.test.node.partition("[")[0]
        raise ScenarioError(
            f"{path}: this file belongs to a test; use pytest {test} --rb-replay {path}"
        )
    return replay


def read_replay(path: Path) -> Replay:
    """Read a replay file, a scenario's or a test's. Raises `ScenarioError` as `load_replay`."""
    try:
        row = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot read the replay file: {error}") from None
    if not isinstance(row, dict) or row.get("kind") != KIND:
        raise ScenarioError(f"{path}: not a rocketbed replay file")
    if row.get("format") != FORMAT:
        written = row.get("versions", {})
        by = f" by rocketbed {written['rocketbed']}" if "rocketbed" in written else ""
        raise ScenarioError(
            f"{path}: written{by} in format {row.get('format')}, and this rocketbed"
            f" {__version__} reads format {FORMAT}: replay it with the version that wrote it"
        )
    try:
        shrunk, test = row["original"] is not None, row["test"]
        if test is not None:
            fault_phases = {
                int(number): tuple(steps) for number, steps in test["fault_phases"].items()
            }
            test = TestPart(**{**with_tuples(test), "fault_phases": fault_phases})
        return Replay(
            plan=plan_from_row(row["plan"]),
            taken=PlanResult(**with_tuples(row["taken"])),
            backend=read_backend(row["backend"]),
            target=row.get("target", ""),
            mode=row.get("mode", "classic"),
            repro=row["repro"],
            finding=row["finding"],
            original=plan_from_row(row["original"]) if shrunk else None,
            original_taken=PlanResult(**with_tuples(row["original_taken"])) if shrunk else None,
            test=test,
            versions=row["versions"],
        )
    except (ScenarioError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ScenarioError(f"{path}: the replay file is damaged: {error}") from None


def read_backend(name: object) -> BackendName:
    """Return a backend by its name. Raises `ScenarioError`."""
    if name not in get_args(BackendName):
        raise ScenarioError(unknown("backend", str(name), list(get_args(BackendName))))
    return cast(BackendName, name)


def run_replay(
    replay: Replay, options: Options | None = None, *, directory: Path | None = None
) -> Replayed:
    """Run a replay here and compare. `options` may name another backend than the file's."""
    options = options or Options(backend=replay.backend, target=replay.target, mode=replay.mode)
    outcome = run_plan(replay.plan, options, directory=directory)
    expected = frozenset([replay.finding] if replay.finding else replay.taken.findings)
    if options.backend != "sim" or not replay.taken.digest or not outcome.digest:
        return Replayed(outcome=outcome, same_digest=None, expected=expected)
    same = outcome.digest == replay.taken.digest
    note = "" if same else _describe_divergence(replay, outcome)
    return Replayed(outcome=outcome, same_digest=same, expected=expected, note=note)


def _describe_divergence(replay: Replay, outcome: Outcome) -> str:
    """Describe between which events a replay diverged from the first run."""
    begin = shared_events(list(replay.taken.checkpoints), outcome.facts.get("checkpoints", []))
    end = min(begin + CHECKPOINT_EVENTS, outcome.facts.get("events", 0))
    events = window(replay.plan, begin, end)
    first = f"; event {begin} of this run is {events[0]}" if events else ""
    last = f", event {end - 1} is {events[-1]}" if len(events) > 1 else ""
    place = f"after event {begin} and by event {end}{first}{last}"
    return f"it diverged from the first run {place}{changed_versions(replay)}"


def changed_versions(replay: Replay) -> str:
    """Return the versions that have changed since, in brackets; empty if none has."""
    current = versions()
    changed = [
        f"{name} was {value} and is {current.get(name, 'unknown')}"
        for name, value in replay.versions.items()
        if current.get(name) != value
    ]
    return f" ({'; '.join(changed)})" if changed else ""


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that determines how a run goes."""
    result = {
        "rocketbed": __version__,
        "python": platform.python_version(),
        "trio": trio.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }
    folder = os.path.dirname(__file__)
    try:
        answer = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        result["git"] = answer.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        result["git"] = "unknown"
    return result


def _list(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
