"""Scenarios as files of TOML.

A file is a family: a seed makes a plan of it, so what is left to chance (`[weather] swarm`,
`[generate]`) is drawn from the seed. Keys: chaos.md 4.3. `[quick]`, `[sim]` and `[process]` hold
keys that replace others in short runs and on those backends.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.scenario import table as read
from rocketbed.chaos.scenario.check import check_capability, check_plan
from rocketbed.chaos.scenario.errors import ScenarioError
from rocketbed.chaos.scenario.family import BACKENDS, Family, shorten
from rocketbed.chaos.scenario.generator import GENERATED, Generate, generate
from rocketbed.chaos.scenario.plan import Consumers, Expect, Plan, Producers, Shape, Weather
from rocketbed.chaos.scenario.step import Step, parse_step
from rocketbed.chaos.scenario.swarm import swarm_weather
from rocketbed.chaos.scenario.table import Table

VARIANTS: Final = ("quick", *BACKENDS)


def read_file(path: Path) -> Family:
    """The scenario in a file. Raises `ScenarioError`."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from None
    return read_toml(content, str(path), name=path.stem)


def read_toml(content: str, source: str, *, name: str = "") -> Family:
    """The scenario in a text of TOML. Raises `ScenarioError` with file and key."""
    try:
        values = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not valid TOML: {error}") from None
    return family_of(values, source, name=name)


def family_of(values: object, source: str, *, name: str = "") -> Family:
    """The scenario in nested tables; every variant of it is compiled once, to find mistakes."""
    top = Table(values, f"{source}: ")
    given = top.take("name", read.text, name)
    if not given:
        raise top.error("name", "is required")
    backends = top.take("backends", read.list_of(read.one_of(*BACKENDS)), list(BACKENDS))
    seeds = top.take("seeds", read.map_of(read.whole), {})
    for backend in seeds:
        if backend not in BACKENDS:
            raise top.error(
                f"seeds.{backend}", f"no backend given; choose from {', '.join(BACKENDS)}"
            )
    needs = top.take("needs", read.list_of(read.text), [])
    for capability in needs:
        try:
            check_capability(capability)
        except ScenarioError as error:
            raise top.error("needs", str(error)) from None

    def make(seed: int, backend: str, quick: bool) -> Plan:
        return _compile(top.values, source, given, seed, backend, quick)

    family = Family(
        name=given,
        description=top.take("description", read.text, ""),
        backends=tuple(backends),
        seeds=seeds,
        needs=tuple(needs),
        source=source,
        make=make,
    )
    for backend in backends:
        for quick in (False, True):
            family.plan(0, backend, quick=quick)
    return family


def _compile(
    values: Mapping[str, Any], source: str, name: str, seed: int, backend: str, quick: bool
) -> Plan:
    merged = {key: value for key, value in values.items() if key not in VARIANTS}
    for variant in (backend, *(["quick"] if quick else [])):
        changes = values.get(variant, {})
        if not isinstance(changes, dict):
            raise ScenarioError(f"{source}: {variant}: must be a table of keys and values")
        merged = _merge(merged, changes)
    top = Table(merged, f"{source}: ")
    for key in ("name", "description", "backends", "seeds", "needs", *VARIANTS):
        top.take(key, lambda found: found, None)
    try:
        plan = _plan(top, name, seed)
        if quick and "quick" not in values:
            plan = shorten(plan)
        check_plan(plan)
    except ScenarioError as error:
        text = str(error)
        raise ScenarioError(text if text.startswith(source) else f"{source}: {text}") from None
    return plan


def _plan(top: Table, name: str, seed: int) -> Plan:
    shape = _shape(top.table("cluster"))
    load = top.table("load")
    producers, consumers = _producers(load.one_table("producer")), _consumers(load)
    calm = top.table("calm")
    storm_s = calm.take("at", read.duration, 60.0)
    calm_s = calm.take("drain", read.duration, 30.0)
    calm.done()
    plan = Plan(
        name=name,
        seed=seed,
        shape=shape,
        producers=producers,
        consumers=consumers,
        weather=_weather(top.table("weather"), shape, name, seed),
        steps=_steps(top),
        storm_s=storm_s,
        calm_s=calm_s,
        expect=_expect(top.table("expect")),
    )
    if "generate" in top:
        plan = _generated(top.table("generate"), plan)
    top.take("generate", lambda found: found, None)
    top.done()
    return plan


def _shape(table: Table) -> Shape:
    default = Shape()
    if table.take("controllers", read.whole, 0):
        raise table.error("controllers", "automatic failover is not available yet: leave it out")
    shape = Shape(
        brokers=table.take("brokers", read.whole, default.brokers),
        groups=table.take("groups", read.whole, default.groups),
        nameservers=table.take("nameservers", read.whole, default.nameservers),
        flush=table.take("flush", read.one_of("sync", "async"), default.flush),
        repl=table.take("repl", read.one_of("sync", "async"), default.repl),
        min_isr=table.take("min_isr", read.whole, default.min_isr),
        segment=table.take("segment", read.size, default.segment),
        settings=table.take("settings", read.map_of(_setting), {}),
    )
    table.done()
    return shape


def _setting(value: object) -> str:
    """A line of `broker.conf`; TOML's numbers and truths are written as RocketMQ writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else read.text(value)


def _producers(table: Table) -> Producers:
    default = Producers()
    body = table.take("body", read.list_of(read.size, 2), list(default.body))
    producers = Producers(
        count=table.take("count", read.whole, default.count),
        rate=table.take("rate", read.number, default.rate),
        in_flight=table.take("in_flight", read.whole, default.in_flight),
        topics=table.take("topics", read.whole, default.topics),
        queues=table.take("queues", read.whole, default.queues),
        body=(body[0], body[1]),
        keys=table.take("keys", read.whole, default.keys),
        batch=table.take("batch", read.number, default.batch),
        prefix=table.take("prefix", read.text, default.prefix),
        ordered=table.take("ordered", read.flag, default.ordered),
        timeout_s=table.take("timeout", read.duration, default.timeout_s),
    )
    table.done()
    return producers


def _consumers(load: Table) -> Consumers:
    table = load.one_table("consumer")
    default = Consumers()
    consumers = Consumers(
        count=table.take("count", read.whole, default.count),
        mode=table.take("mode", read.one_of("group", "pull", "mixed"), default.mode),
    )
    table.done()
    load.done()
    return consumers


def _weather(table: Table, shape: Shape, name: str, seed: int) -> Weather:
    default = Weather()
    if table.take("swarm", read.flag, False):
        default = swarm_weather(shape, f"{name}/{seed}/weather")
    disk = table.take("disk", read.map_of(_milliseconds), dict(default.disk_ms))
    weather = Weather(
        disk_ms=disk,
        cut_mode=table.take(
            "cut", read.one_of("random", "strict", "prefix", "reorder"), default.cut_mode
        ),
        link_ms=table.take("link", _milliseconds, default.link_ms),
        link_jitter_ms=table.take("link_jitter", _milliseconds, default.link_jitter_ms),
        slowness=table.take("slowness", read.map_of(read.number), dict(default.slowness)),
        cold_share=table.take("cold_share", read.number, default.cold_share),
    )
    table.done()
    return weather


def _milliseconds(value: object) -> float:
    return round(read.duration(value) * 1000, 3)


def _expect(table: Table) -> Expect:
    progress = table.take("progress", _progress, None)
    rto_s = table.take("rto", read.duration, None)
    loss = table.take("loss", read.one_of("bound", "none"), "bound")
    table.done()
    return Expect(loss=loss, rto_s=rto_s, progress=progress)


def _progress(value: object) -> tuple[int, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f'{value!r} is not a number and a time such as [50, "5s"]')
    return read.whole(value[0]), read.duration(value[1])


def _steps(top: Table) -> tuple[Step, ...]:
    texts = top.take("steps", read.list_of(read.text), [])
    return tuple(_step(text, f"{top.place}steps[{at}]") for at, text in enumerate(texts))


def _step(text: str, place: str) -> Step:
    try:
        return parse_step(text)
    except ScenarioError as error:
        raise ScenarioError(f"{place}: {error}") from None


def _generated(table: Table, plan: Plan) -> Plan:
    classes = table.take("classes", _classes, tuple(GENERATED))
    wishes = Generate(
        storm_s=table.take("storm", read.duration, plan.storm_s),
        calm_s=table.take("calm", read.duration, plan.calm_s),
        classes=classes,
    )
    table.done()
    return generate(plan.seed, wishes, name=plan.name)


def _classes(value: object) -> tuple[str, ...]:
    if value == "all":
        return tuple(GENERATED)
    return tuple(read.list_of(read.one_of(*GENERATED))(value))


def _merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged
