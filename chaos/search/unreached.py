"""Points that no run of a campaign reached: marks of the node's code, log events, faults, checks.

A branch that only trouble takes logs an event, or passes a mark. So the events in the source are
the list of such branches, and those that no run logged show where load or faults are missing.
Simulation only, as other backends do not record what a node logs. A check that had nothing to
examine in any run has shown nothing about the node.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.marks import MARKS
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.plan.verbs import VERBS
from rocketbed.chaos.search.runner import Outcome

PACKAGES: Final = ("rocketbed.node", "rocketbed.replication")
SURE_SEEDS: Final = 200
"""A scenario with at least this many usual runs exists to give every check something to examine."""
LEVELS: Final = ("debug", "info", "warning", "error")


def never_ran(runs: Iterable[Mapping[str, bool]]) -> list[str]:
    """Return the ids of checks that had nothing to examine in any run, from `Judgement.looked`."""
    has_examined: dict[str, bool] = {}
    for looked in runs:
        for check, ran in looked.items():
            has_examined[check] = has_examined.get(check, False) or ran
    return [check for check, ran in has_examined.items() if not ran]


def must_run_all(family: Family, runs: int, backend: str = "sim") -> bool:
    """True if this many runs of a scenario fail if a check never ran: the scenario is made for
    that, and there are at least as many runs as usual."""
    return SURE_SEEDS <= family.seed_count(backend) <= runs


def unreached(outcomes: Iterable[Outcome]) -> dict[str, list[str]]:
    """Return what none of these runs reached, sorted, by kind (`marks`, `events`, `faults`).

    An event is listed with the files that log it: `store.disk_full (store/retention.py)`.
    """
    points: set[str] = set()
    verbs: set[str] = set()
    for outcome in outcomes:
        points.update(point.partition(" ")[0] for point in outcome.facts.get("points", ()))
        if outcome.record is not None:
            verbs.update(parse_step(step).verb for step in outcome.record.steps)
    return {
        "marks": [mark for mark in MARKS if mark not in points],
        "events": [f"{name} ({at})" for name, at in logged_events().items() if name not in points],
        "faults": [verb for verb in VERBS if verb not in verbs],
    }


def logged_events() -> Mapping[str, str]:
    """Return every event that a node can log -> the files that log it, sorted by name."""
    files_by_event: dict[str, dict[str, None]] = {}
    for package in PACKAGES:
        root = Path(next(iter(import_module(package).__path__)))
        for path in sorted(root.rglob("*.py")):
            for name in _names(ast.parse(path.read_text(encoding="utf-8"))):
                files_by_event.setdefault(name, {})[f"{path.relative_to(root)}"] = None
    return {name: ", ".join(files_by_event[name]) for name in sorted(files_by_event)}


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the first arguments of calls `LOG.LEVEL("name", ...)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(name)), *_]):
                if level in LEVELS and "." in name:
                    yield name
