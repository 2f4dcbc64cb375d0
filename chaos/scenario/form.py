"""A plan as JSON: what replay files, corpora and child processes are given.

Every field is written, so that a default that changes later does not change an old plan.
"""

from dataclasses import asdict, fields
from typing import Any

from rocketbed.chaos.record import with_tuples
from rocketbed.chaos.scenario.errors import ScenarioError
from rocketbed.chaos.scenario.plan import Consumers, Expect, Plan, Producers, Shape, Weather
from rocketbed.chaos.scenario.step import parse_step, unknown

_PARTS = {
    "shape": Shape,
    "producers": Producers,
    "consumers": Consumers,
    "weather": Weather,
    "expect": Expect,
}


def plan_to_row(plan: Plan) -> dict[str, Any]:
    """JSON fields; steps as their texts."""
    row = {name: asdict(getattr(plan, name)) for name in _PARTS}
    return {
        "name": plan.name,
        "seed": plan.seed,
        **row,
        "steps": [str(step) for step in plan.steps],
        "storm_s": plan.storm_s,
        "calm_s": plan.calm_s,
        "needs": list(plan.needs),
    }


def plan_from_row(row: dict[str, Any]) -> Plan:
    """The plan again. Raises `ScenarioError` for a row that is none."""
    known = {field.name: None for field in fields(Plan)}
    try:
        for name in row:
            if name not in known:
                raise ScenarioError(unknown("field of a plan", name, known))
        values = {**row, "steps": tuple(parse_step(text) for text in row["steps"])}
        values["needs"] = tuple(row.get("needs", ()))
        for name, part in _PARTS.items():
            values[name] = part(**with_tuples(row[name]))
        return Plan(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ScenarioError(f"not a plan: {error!r}") from error
