"""Replay files: a failure with all that is needed to have it again (`FAIL-NAME-SEED.rbx`, JSON).

A file holds one plan and its outcome: findings, digest, and checkpoints of the digest, so that
a replay that goes another way can say after which event it did. Where a plan was shrunk, the plan
is the small one, and the own plan of the seed stands beside it (`original`). The file of a pytest
test has no steps to be taken, since those are the body's, but says which are left out (`test`).
Source: chaos.md 4.7.
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

FORMAT: Final = 2
KIND: Final = "rocketbed replay"
Repro = Literal["exact", "schedule", "none"]
"""`exact`: the same run to the last event; `schedule`: the same plan, on machines that have their
own mind; `none`: it was tried again and did not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one run of a plan came to."""

    verdict: str = ""
    findings: tuple[str, ...] = ()
    digest: str = ""
    """The simulation's digest; empty on real processes."""
    events: int = 0
    checkpoints: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """What was carried out, with times and names."""

    @classmethod
    def of(cls, outcome: Outcome) -> "Taken":
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
    """What the file of a pytest test says besides: the steps are not the plan's, but the body's."""

    __test__ = False

    node: str
    """pytest's id of the test, with backend and seed."""
    left_out: tuple[int, ...]
    """Numbers of the body's steps that are not taken."""
    storms: dict[int, tuple[str, ...]]
    """Number of a storm -> its steps, in place of what the seed would draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A failure that can be had again."""

    plan: Plan
    """What a replay runs."""
    taken: Taken
    backend: BackendName = "sim"
    target: str = ""
    """Foreign software that it ran on (`chaos.backends.foreign.target`), and in which mode."""
    mode: Literal["classic", "controller"] = "classic"
    repro: Repro = "exact"
    finding: str = ""
    """What the plan was shrunk for; empty if it was not. Of a test: its failure's signature."""
    test: TestPart | None = None
    original: Plan | None = None
    """The seed's own plan, where the other one was shrunk."""
    original_taken: Taken | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the software that wrote the file."""

    @classmethod
    def of(cls, outcome: Outcome) -> "Replay":
        return cls(
            plan=outcome.plan,
            taken=Taken.of(outcome),
            backend=outcome.backend,
            target=outcome.facts.get("target", ""),
            mode=outcome.facts.get("mode", "classic"),
            repro="exact" if outcome.backend == "sim" else "schedule",
            versions=versions(),
        )

    def of_original(self) -> "Replay":
        """The seed's own run. Raises `ScenarioError` where that is this one already."""
        if self.original is None or self.original_taken is None:
            raise ScenarioError("this file holds a seed's own plan: it has no other original")
        own = replace(self, plan=self.original, taken=self.original_taken)
        return replace(own, finding="", test=None, original=None, original_taken=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    outcome: Outcome
    same_digest: bool | None
    """None where there is nothing to compare: real processes, or another backend than before."""
    wanted: frozenset[str]
    """Ids of the findings to be had again; empty where nothing was found."""
    note: str = ""
    """Where it went another way, if it did."""

    @property
    def same_finding(self) -> bool:
        """Whether what was found is among what it finds."""
        return self.wanted.issubset(self.outcome.finding_ids)

    def comparison(self) -> str:
        now = set(self.outcome.finding_ids)
        if not self.wanted:
            return f"no findings the first time, {_list(now) or 'nothing'} this time"
        parts = {"found again": self.wanted & now, "not found this time": self.wanted - now}
        return "; ".join(f"{_list(ids)}: {what}" for what, ids in parts.items() if ids)


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

    Raises `ScenarioError` for what is none, a test's, another version's or damaged.
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
        row = json.loads(path.read_text(encoding="utf-8"))
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
            storms = {int(number): tuple(steps) for number, steps in test["storms"].items()}
            test = TestPart(**{**with_tuples(test), "storms": storms})
        return Replay(
            plan=plan_from_row(row["plan"]),
            taken=Taken(**with_tuples(row["taken"])),
            backend=read_backend(row["backend"]),
            target=row.get("target", ""),
            mode=row.get("mode", "classic"),
            repro=row["repro"],
            finding=row["finding"],
            original=plan_from_row(row["original"]) if shrunk else None,
            original_taken=Taken(**with_tuples(row["original_taken"])) if shrunk else None,
            test=test,
            versions=row["versions"],
        )
    except (ScenarioError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ScenarioError(f"{path}: the replay file is damaged: {error}") from None


def read_backend(name: object) -> BackendName:
    """A backend by its name. Raises `ScenarioError`."""
    if name not in get_args(BackendName):
        raise ScenarioError(unknown("backend", str(name), list(get_args(BackendName))))
    return cast(BackendName, name)


def run_replay(
    replay: Replay, options: Options | None = None, *, directory: Path | None = None
) -> Replayed:
    """Run it again, here, and compare. Another backend than the file's may be asked for."""
    options = options or Options(backend=replay.backend, target=replay.target, mode=replay.mode)
    outcome = run_plan(replay.plan, options, directory=directory)
    wanted = frozenset([replay.finding] if replay.finding else replay.taken.findings)
    if options.backend != "sim" or not replay.taken.digest or not outcome.digest:
        return Replayed(outcome=outcome, same_digest=None, wanted=wanted)
    same = outcome.digest == replay.taken.digest
    note = "" if same else _where_parted(replay, outcome)
    return Replayed(outcome=outcome, same_digest=same, wanted=wanted, note=note)


def _where_parted(replay: Replay, outcome: Outcome) -> str:
    """Between which events a replay left the way of the first run, in words."""
    begin = shared_events(list(replay.taken.checkpoints), outcome.facts.get("checkpoints", []))
    end = min(begin + CHECKPOINT_EVENTS, outcome.facts.get("events", 0))
    seen = window(replay.plan, begin, end)
    first = f"; event {begin} of this run is {seen[0]}" if seen else ""
    last = f", event {end - 1} is {seen[-1]}" if len(seen) > 1 else ""
    where = f"after event {begin} and by event {end}{first}{last}"
    return f"it diverged from the first run {where}{changed_versions(replay)}"


def changed_versions(replay: Replay) -> str:
    """What is another version by now, in brackets; empty if nothing is."""
    now = versions()
    changed = [
        f"{name} was {value} and is {now.get(name, 'unknown')}"
        for name, value in replay.versions.items()
        if now.get(name) != value
    ]
    return f" ({'; '.join(changed)})" if changed else ""


@cache
def versions() -> dict[str, str]:
    """Versions of everything that determines how a run goes."""
    found = {
        "rocketbed": __version__,
        "python": platform.python_version(),
        "trio": trio.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }
    here = os.path.dirname(__file__)
    try:
        answer = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        found["git"] = answer.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found["git"] = "unknown"
    return found


def _list(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
