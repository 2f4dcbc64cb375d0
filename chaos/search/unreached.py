"""What no run of a campaign reached: named points of the node's code, what it logs, faults, checks.

A branch that only trouble takes says so in the log, or passes a mark; so the events that stand in
the source are the list of such branches, and those that no run logged are where load or faults are
missing. Simulation only: elsewhere nobody notes what a node logs. A check that had nothing to look
at in any run has shown nothing of the node.
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
"""A scenario whose usual run has so many is there to give every check something to look at."""
LEVELS: Final = ("debug", "info", "warning", "error")


def never_ran(runs: Iterable[Mapping[str, bool]]) -> list[str]:
    """Ids of checks that had nothing to look at in any run; each as `Judgement.looked` tells it."""
    found: dict[str, bool] = {}
    for looked in runs:
        for check, ran in looked.items():
            found[check] = found.get(check, False) or ran
    return [check for check, ran in found.items() if not ran]


def must_run_all(family: Family, runs: int, backend: str = "sim") -> bool:
    """Whether so many runs of a scenario fail if a check never ran: it is made for that, and no
    fewer than its usual ones."""
    return SURE_SEEDS <= family.seed_count(backend) <= runs


def unreached(outcomes: Iterable[Outcome]) -> dict[str, list[str]]:
    """By kind (`marks`, `events`, `faults`) what none of these runs had, sorted.

    An event stands with the files that log it: `store.disk_full (store/retention.py)`.
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
    """Every event that a node can log -> the files it stands in, sorted by name."""
    found: dict[str, dict[str, None]] = {}
    for package in PACKAGES:
        root = Path(next(iter(import_module(package).__path__)))
        for path in sorted(root.rglob("*.py")):
            for name in _names(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(name, {})[f"{path.relative_to(root)}"] = None
    return {name: ", ".join(found[name]) for name in sorted(found)}


def _names(tree: ast.AST) -> Iterator[str]:
    """First arguments of calls `LOG.LEVEL("name", ...)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(name)), *_]):
                if level in LEVELS and "." in name:
                    yield name
