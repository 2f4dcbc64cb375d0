"""Plans that reached something new, kept in a directory; later seeds start from them.

A run reaches a set of points: a mark of the code or an event of its log, the role of the node, and
the fault in force at the time. A plan that reached a point that no earlier plan had is worth
varying, so half of the new plans are variations of kept ones, half are fresh (chaos.md 4.5).
Variations change chance, background faults, load, and what does not affect the lives of machines;
the order of those lives is kept, since it keeps a plan within the fault model.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from rocketbed.chaos.backends.sim.coverage import TICK_NS
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.plan.check import check_plan
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.form import plan_from_row, plan_to_row
from rocketbed.chaos.plan.generator import TINY, draw_producers
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import At, Step, parse_step
from rocketbed.chaos.plan.swarm import swarm_background
from rocketbed.chaos.search.runner import Outcome
from rocketbed.host.files import write_whole

FORMAT: Final = 1
AFTERMATH_S: Final = 3.0
"""Time for which a fault without a duration is assumed to matter."""
INDEPENDENT: Final = ("partition", "isolate", "link", "reset", "swizzle", "clock", "cpu")
"""Verbs that a variation may leave out or move, since no other step depends on them."""


def coverage(record: RunRecord) -> set[str]:
    """Return the points of a run: `MARK ROLE FAULT`, and `MARK ROLE -` for the mark alone."""
    points: dict[str, list[int]] = record.facts.get("points", {})
    zero_ns = int(record.facts.get("zero_ns", 0))
    spans: list[tuple[str, int, int]] = []
    for step in map(parse_step, record.steps):
        begin = zero_ns + int(step.at_s * 1e9)
        end = begin + int(((step.for_s or 0.0) + AFTERMATH_S) * 1e9)
        spans.append((step.verb, begin // TICK_NS, end // TICK_NS))
    reached: set[str] = set()
    for name, ticks in points.items():
        reached.add(f"{name} -")
        for verb, begin, end in spans:
            if any(begin <= tick <= end for tick in ticks):
                reached.add(f"{name} {verb}")
    return reached


@dataclass(slots=True)
class Corpus:
    """A directory of plans, created if missing; used by one process at a time."""

    directory: Path
    plans: list[Plan] = field(default_factory=list)
    reached: dict[str, None] = field(default_factory=dict)
    """Every point that a kept plan reached."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.directory.glob("*.json")):
            plan, points = _read(path)
            self.plans.append(plan)
            self.reached.update(dict.fromkeys(points))

    def add(self, outcome: Outcome) -> list[str]:
        """Add a run and return its new points; its plan is kept if there are any."""
        if outcome.record is None:
            return []
        reached = sorted(coverage(outcome.record))
        new = [point for point in reached if point not in self.reached]
        if new:
            self.reached.update(dict.fromkeys(new))
            self.plans.append(outcome.plan)
            _write(self.directory, outcome.plan, reached)
        return new

    def plan(self, fresh: Plan) -> Plan:
        """Return the plan to run in place of a fresh one: itself for even seeds, else a kept one,
        varied.

        The result depends on what is kept, so it is repeated from its replay file and not from its
        seed.
        """
        if not self.plans or fresh.seed % 2 == 0:
            return fresh
        random = Random(f"{fresh.name}/{fresh.seed}/corpus")
        varied = vary(random.choice(self.plans), fresh, random)
        try:
            check_plan(varied)
        except ScenarioError:
            return fresh
        return varied


def vary(plan: Plan, fresh: Plan, random: Random) -> Plan:
    """Return a variation of a plan, with some parts of a fresh one."""
    varied = replace(plan, seed=fresh.seed, name=fresh.name)
    if random.random() < 0.5:
        background = swarm_background(plan.shape, f"{fresh.name}/{fresh.seed}/weather")
        varied = replace(varied, background=background)
    if random.random() < 0.3:
        rate = plan.producers.rate * plan.producers.count
        producers = draw_producers(random, (rate, rate), plan.shape, varied.background)
        varied = replace(varied, producers=producers)
    if random.random() < 0.3 and TINY not in (plan.shape.segment, fresh.shape.segment):
        varied = replace(varied, shape=replace(plan.shape, segment=fresh.shape.segment))
    return replace(varied, steps=tuple(_vary_steps(plan, fresh, random)))


def _vary_steps(plan: Plan, fresh: Plan, random: Random) -> list[Step]:
    steps: list[Step] = []
    for step in plan.steps:
        if step.verb in INDEPENDENT and not step.label:
            if random.random() < 0.3:
                continue
            if isinstance(step.trigger, At):
                moved = step.trigger.seconds + random.uniform(-1.0, 1.0)
                moment = min(max(round(moved, 3), 0.0), plan.faults_s - 0.5)
                step = replace(step, trigger=At(moment))
        elif step.verb == "crash" and "store-event" in step.words and random.random() < 0.7:
            step = replace(step, words={**step.words, "store-event": str(random.randint(1, 60))})
        steps.append(step)
    if plan.shape.nodes == fresh.shape.nodes:
        extra = (step for step in fresh.steps if step.verb in INDEPENDENT and not step.label)
        steps += [step for step in extra if random.random() < 0.3]
    return steps


def _write(directory: Path, plan: Plan, points: list[str]) -> None:
    row = {"format": FORMAT, "plan": plan_to_row(plan), "points": points}
    text = json.dumps(row, indent=1) + "\n"
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    write_whole(directory / f"{plan.name}-{name}.json", text)


def _read(path: Path) -> tuple[Plan, list[str]]:
    try:
        row = json.loads(path.read_text(encoding="utf-8-sig"))
        if row["format"] != FORMAT:
            raise ScenarioError(f"format {row['format']}, not {FORMAT}")
        return plan_from_row(row["plan"]), list(row["points"])
    except (OSError, ValueError, KeyError, TypeError, ScenarioError) as error:
        raise ScenarioError(f"{path}: not a corpus plan: {error}; remove the file") from None
