"""A plan as JSON: what replay files, corpora and child processes are given.

Every field is written, so that a default that changes later does not change an old plan.
"""

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from rocketbed.chaos.evidence.record import with_tuples
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import parse_step, unknown

_PARTS: dict[str, Any] = {one.name: one.type for one in fields(Plan) if is_dataclass(one.type)}


def plan_to_row(plan: Plan) -> dict[str, Any]:
    """JSON fields; steps as their texts."""
    return {**asdict(plan), "steps": [str(step) for step in plan.steps]}


def plan_from_row(row: dict[str, Any]) -> Plan:
    """The plan again. Raises `ScenarioError` for a row that is none."""
    known = {one.name: None for one in fields(Plan)}
    try:
        for name in row:
            if name not in known:
                raise ScenarioError(unknown("field of a plan", name, known))
        parts = {name: part(**with_tuples(row[name])) for name, part in _PARTS.items()}
        steps = tuple(map(parse_step, row["steps"]))
        return Plan(**{**with_tuples(row), **parts, "steps": steps})
    except (KeyError, TypeError, AttributeError) as error:
        raise ScenarioError(f"not a plan: {error!r}") from error
