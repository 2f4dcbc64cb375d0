"""A scenario that can be run many times: a seed makes a plan of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import After, At, Every, Step, unknown

BACKENDS: Final = ("sim", "process")
"""Backends that scenarios are written for."""
LIKE: Final[Mapping[str, str]] = {"docker": "process"}
"""Backend -> backend whose scenarios it runs unchanged."""
SEEDS: Final[Mapping[str, int]] = {"sim": 20, "process": 1}
"""Seeds of a usual run by backend, unless a scenario says otherwise."""
QUICK_FAULTS_S: Final = 12.0
QUICK_RECOVERY_S: Final = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A scenario. `plan` is pure: the same arguments give the same plan, anywhere."""

    name: str
    make: Callable[[int, str, bool], Plan]
    """Arguments: seed, backend, true for a short plan."""
    description: str = ""
    """One line."""
    backends: tuple[str, ...] = BACKENDS
    seeds: Mapping[str, int] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Capabilities without which the scenario proves nothing and is skipped as a whole."""
    source: str = ""
    """The file, as `load_scenario` takes it."""

    def plan(self, seed: int, backend: str = "sim", *, quick: bool = False) -> Plan:
        """Return the plan of a seed. Raises `ScenarioError`, also for a backend that is not in
        `backends`."""
        written_for = LIKE.get(backend, backend)
        if written_for not in self.backends:
            raise ScenarioError(
                f"{self.name}: not made for {backend}: {', '.join(self.backends)} only"
                if written_for in BACKENDS
                else unknown("backend", backend, [*BACKENDS, *LIKE])
            )
        return replace(self.make(seed, written_for, quick), needs=self.needs, quick=quick)

    def seed_count(self, backend: str) -> int:
        """Return the number of seeds of a usual run."""
        backend = LIKE.get(backend, backend)
        return self.seeds.get(backend, SEEDS[backend])


def shorten(
    plan: Plan, *, faults_s: float = QUICK_FAULTS_S, recovery_s: float = QUICK_RECOVERY_S
) -> Plan:
    """Return the plan with less time between its steps; by default for a run of about half a
    minute."""
    factor = min(1.0, faults_s / plan.faults_s)
    return replace(
        plan,
        faults_s=round(plan.faults_s * factor, 6),
        recovery_s=min(plan.recovery_s, recovery_s),
        steps=tuple(_sooner(step, factor) for step in plan.steps),
    )


def _sooner(step: Step, factor: float) -> Step:
    def short(seconds: float) -> float:
        return round(seconds * factor, 6)

    trigger = step.trigger
    if isinstance(trigger, At):
        trigger = At(short(trigger.seconds))
    elif isinstance(trigger, After):
        trigger = After(trigger.label, short(trigger.seconds))
    elif isinstance(trigger, Every):
        until = None if trigger.until is None else short(trigger.until)
        trigger = Every(max(short(trigger.seconds), 0.001), short(trigger.jitter), until)
    for_s = None if step.for_s is None else short(step.for_s)
    return replace(step, trigger=trigger, for_s=for_s)
