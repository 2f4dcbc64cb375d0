"""A plan as JSON: for replay files, corpora and child processes.

Every field is written, so that a default that changes later does not change an old plan.
"""

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from rocketbed.chaos.evidence.record import with_tuples
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import parse_step, unknown

_PARTS: dict[str, Any] = {
    field.name: field.type for field in fields(Plan) if is_dataclass(field.type)
}


def plan_to_row(plan: Plan) -> dict[str, Any]:
    """Return JSON fields, with steps as their texts."""
    return {**asdict(plan), "steps": [str(step) for step in plan.steps]}


def plan_from_row(row: dict[str, Any]) -> Plan:
    """Return the plan of a row. Raises `ScenarioError` if the row is not a plan."""
    names = {field.name: None for field in fields(Plan)}
    try:
        for name in row:
            if name not in names:
                raise ScenarioError(unknown("field of a plan", name, names))
        parts = {name: part(**with_tuples(row[name])) for name, part in _PARTS.items()}
        steps = tuple(map(parse_step, row["steps"]))
        return Plan(**{**with_tuples(row), **parts, "steps": steps})
    except (KeyError, TypeError, AttributeError) as error:
        raise ScenarioError(f"not a plan: {error!r}") from error
