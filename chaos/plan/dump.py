"""Writes a plan as TOML, so that a shrunk failure becomes a scenario of its own."""

from collections.abc import Mapping

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.table import (
    BACKGROUND,
    CLUSTER,
    CONSUMER,
    EXPECT,
    FIELDS,
    LISTENER,
    PRODUCER,
    RECOVERY,
    Kind,
    show_number,
    show_text,
    show_time,
)


def plan_to_toml(plan: Plan, *, description: str = "") -> str:
    """Return a file that reproduces the plan, with its seed. Steps are written as texts."""
    lines = [f"name = {show_text(plan.name)}"]
    if description:
        lines.append(f"description = {show_text(description)}")
    if plan.needs:
        lines.append(f"needs = [{', '.join(map(show_text, plan.needs))}]")
    lines += ["steps = [", *(f"    {show_text(str(step))}," for step in plan.steps), "]"]
    lines += _part("cluster", CLUSTER, plan.shape)
    if plan.shape.settings:
        settings = {key: show_text(value) for key, value in plan.shape.settings.items()}
        lines += _table("cluster.settings", settings)
    lines += _part("load.producer", PRODUCER, plan.producers)
    lines += _part("load.consumer", CONSUMER, plan.consumers)
    lines += _part("load.listener", LISTENER, plan.listeners)
    background = plan.background
    lines += _part("background", BACKGROUND, background)
    disk = {node: show_time(ms / 1000) for node, ms in background.disk_ms.items()}
    lines += _table("background.disk", disk)
    slowness = {node: show_number(factor) for node, factor in background.slowness.items()}
    lines += _table("background.slowness", slowness)
    lines += _part("recovery", RECOVERY, plan)
    return "\n".join([*lines, *_part("expect", EXPECT, plan.expect), ""])


def _part(name: str, keys: Mapping[str, Kind], part: object) -> list[str]:
    values = {key: getattr(part, FIELDS.get(key, key)) for key in keys}
    return _table(
        name, {key: keys[key].show(value) for key, value in values.items() if value is not None}
    )


def _table(name: str, values: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{_key(key)} = {value}" for key, value in values.items())]


def _key(value: str) -> str:
    return value if value.replace("-", "").replace("_", "").isalnum() else show_text(value)
