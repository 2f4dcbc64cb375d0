"""Scenarios as TOML files.

A file is a family: a seed makes a plan of it, so all that is left to chance (`[background] swarm`,
`[generate]`) is drawn from the seed. Keys: chaos.md 4.3. `[quick]`, `[sim]` and `[process]` hold
keys that replace others in short runs and on those backends.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan import table as read
from rocketbed.chaos.plan.check import CAPABILITIES, check_plan
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.family import BACKENDS, Family, shorten
from rocketbed.chaos.plan.generator import GENERATED, Generate, generate
from rocketbed.chaos.plan.plan import Background, Consumers, Listeners, Plan, Producers, Shape
from rocketbed.chaos.plan.step import Step, parse_step, unknown
from rocketbed.chaos.plan.swarm import swarm_background
from rocketbed.chaos.plan.table import Table

VARIANTS: Final = ("quick", *BACKENDS)


def read_file(path: Path) -> Family:
    """Return the scenario in a file. Raises `ScenarioError`."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from None
    return read_toml(content, str(path), name=path.stem)


def read_toml(content: str, source: str, *, name: str = "") -> Family:
    """Return the scenario in a TOML text. Raises `ScenarioError` with file and key."""
    try:
        values = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not valid TOML: {error}") from None
    return family_of(values, source, name=name)


def family_of(values: object, source: str, *, name: str = "") -> Family:
    """Return the scenario in nested tables; every variant of it is compiled once, to find
    mistakes."""
    top = Table(values, f"{source}: ")
    family_name = top.take("name", read.text, name)
    if not family_name:
        raise top.error("name", "is required")
    backends = top.take("backends", read.list_of(read.one_of(*BACKENDS)), list(BACKENDS))
    seeds = top.take("seeds", read.map_of(read.whole), {})
    for backend in seeds:
        if backend not in BACKENDS:
            choices = ", ".join(BACKENDS)
            raise top.error(f"seeds.{backend}", f"no backend given; choose from {choices}")
    needs = top.take("needs", read.list_of(read.text), [])
    for capability in needs:
        if capability not in CAPABILITIES:
            raise top.error("needs", unknown("capability", capability, list(CAPABILITIES)))

    def make(seed: int, backend: str, quick: bool) -> Plan:
        return _compile(top.values, source, family_name, seed, backend, quick)

    family = Family(
        name=family_name,
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
        top.take(key, lambda value: value, None)
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
    cluster, load, background = top.table("cluster"), top.table("load"), top.table("background")
    settings = cluster.take("settings", read.map_of(_setting), {})
    shape = Shape(**cluster.fields(read.CLUSTER, Shape()), settings=settings)
    producers = Producers(**load.one_table("producer").fields(read.PRODUCER, Producers()))
    consumers = Consumers(**load.one_table("consumer").fields(read.CONSUMER, Consumers()))
    listeners = Listeners(**load.one_table("listener").fields(read.LISTENER, Listeners()))
    load.done()
    usual = Background()
    if background.take("swarm", read.flag, False):
        usual = swarm_background(shape, f"{name}/{seed}/weather")
    disk_ms = background.take("disk", read.map_of(read.milliseconds), dict(usual.disk_ms))
    slowness = background.take("slowness", read.map_of(read.number), dict(usual.slowness))
    plan = Plan(
        name=name,
        seed=seed,
        shape=shape,
        producers=producers,
        consumers=consumers,
        listeners=listeners,
        background=Background(
            **background.fields(read.BACKGROUND, usual), disk_ms=disk_ms, slowness=slowness
        ),
        steps=_steps(top),
        expect=Expectation(**top.table("expect").fields(read.EXPECT, Expectation())),
    )
    plan = replace(plan, **top.table("recovery").fields(read.RECOVERY, plan))
    if "generate" in top:
        plan = _generated(top.table("generate"), plan)
    top.take("generate", lambda value: value, None)
    top.done()
    return plan


def _setting(value: object) -> str:
    """Return a value of `broker.conf`, with numbers and booleans as RocketMQ writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else read.text(value)


def _steps(top: Table) -> tuple[Step, ...]:
    steps = []
    for at, text in enumerate(top.take("steps", read.list_of(read.text), [])):
        try:
            steps.append(parse_step(text))
        except ScenarioError as error:
            raise top.error(f"steps[{at}]", str(error)) from None
    return tuple(steps)


def _generated(table: Table, plan: Plan) -> Plan:
    classes = table.take("classes", _classes, tuple(GENERATED))
    wishes = Generate(
        faults_s=table.take("faults", read.duration, plan.faults_s),
        recovery_s=table.take("recovery", read.duration, plan.recovery_s),
        classes=classes,
        failover=table.take("failover", read.number, 0.0),
    )
    table.done()
    return generate(plan.seed, wishes, name=plan.name)


def _classes(value: object) -> tuple[str, ...]:
    if value == "all":
        return GENERATED
    return tuple(read.list_of(read.one_of(*GENERATED))(value))


def _merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merge(old, value)
        merged[key] = value
    return merged
