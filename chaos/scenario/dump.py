"""A plan as TOML: what a shrunk failure is kept as when it becomes a scenario of its own."""

import json
from collections.abc import Mapping

from rocketbed.chaos.scenario.plan import Plan, Shape
from rocketbed.chaos.scenario.units import show_duration


def plan_to_toml(plan: Plan, *, description: str = "") -> str:
    """A file that gives the plan again, with its seed. Steps are written as texts."""
    lines = [f"name = {_text(plan.name)}"]
    if description:
        lines.append(f"description = {_text(description)}")
    if plan.needs:
        lines.append(f"needs = [{', '.join(map(_text, plan.needs))}]")
    lines += ["steps = [", *(f"    {_text(str(step))}," for step in plan.steps), "]"]
    lines += _table("cluster", _cluster(plan.shape))
    if plan.shape.settings:
        lines += _table(
            "cluster.settings", {_key(key): _text(v) for key, v in plan.shape.settings.items()}
        )
    lines += _table("load.producer", _producer(plan))
    consumers = plan.consumers
    lines += _table("load.consumer", {"count": str(consumers.count), "mode": _text(consumers.mode)})
    lines += _weather(plan)
    lines += _table("calm", {"at": _time(plan.storm_s), "drain": _time(plan.calm_s)})
    expect = {"loss": _text(plan.expect.loss)}
    if plan.expect.rto_s is not None:
        expect["rto"] = _time(plan.expect.rto_s)
    if plan.expect.progress is not None:
        expect["progress"] = f"[{plan.expect.progress[0]}, {_time(plan.expect.progress[1])}]"
    return "\n".join([*lines, *_table("expect", expect), ""])


def _cluster(shape: Shape) -> dict[str, str]:
    return {
        "brokers": str(shape.brokers),
        "groups": str(shape.groups),
        "nameservers": str(shape.nameservers),
        "flush": _text(shape.flush),
        "repl": _text(shape.repl),
        "min_isr": str(shape.min_isr),
        "segment": str(shape.segment),
    }


def _producer(plan: Plan) -> dict[str, str]:
    load = plan.producers
    return {
        "count": str(load.count),
        "rate": repr(float(load.rate)),
        "in_flight": str(load.in_flight),
        "topics": str(load.topics),
        "queues": str(load.queues),
        "body": f"[{load.body[0]}, {load.body[1]}]",
        "keys": str(load.keys),
        "batch": repr(float(load.batch)),
        "prefix": _text(load.prefix),
        "ordered": str(load.ordered).lower(),
        "timeout": _time(load.timeout_s),
    }


def _weather(plan: Plan) -> list[str]:
    weather = plan.weather
    lines = _table(
        "weather",
        {
            "cut": _text(weather.cut_mode),
            "link": _time(weather.link_ms / 1000),
            "link_jitter": _time(weather.link_jitter_ms / 1000),
            "cold_share": repr(float(weather.cold_share)),
        },
    )
    lines += _table(
        "weather.disk", {_key(node): _time(ms / 1000) for node, ms in weather.disk_ms.items()}
    )
    slowness = {_key(node): repr(float(factor)) for node, factor in weather.slowness.items()}
    return lines + _table("weather.slowness", slowness)


def _table(name: str, values: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]


def _text(value: str) -> str:
    """A basic string: TOML's escapes are JSON's, for what stands in a plan."""
    return json.dumps(value, ensure_ascii=False)


def _key(value: str) -> str:
    return value if value.replace("-", "").replace("_", "").isalnum() else _text(value)


def _time(seconds: float) -> str:
    return _text(show_duration(seconds))
