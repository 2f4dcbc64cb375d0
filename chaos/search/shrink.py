"""Reduces a plan that has a finding to a small one with the same finding.

Delta debugging on the steps as they were carried out (times and names, no chance left), then on
everything else: durations, times, clients, background faults, the length of the run. A smaller plan
counts only if it has the *same finding*; another failure is not enough (chaos.md 4.6).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Background, Plan
from rocketbed.chaos.plan.step import After, At, Step, parse_step
from rocketbed.chaos.plan.targets import labels_in
from rocketbed.chaos.run.required_checks import LIVENESS
from rocketbed.chaos.search.replay import PlanResult, Replay
from rocketbed.chaos.search.runner import Options, Outcome, run_many, run_plan

Probe = Callable[[Sequence[Plan]], Sequence[bool]]
"""Returns for each of these plans whether it has the finding."""
UNSHORTENED: Final = frozenset({*LIVENESS, "requests-answered", "sends-answered"})
"""Findings that depend on the recovery phase, so it is not shortened for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    plan: Plan
    finding: str
    """Id of the check, for instance `lost-write`."""
    reproduced: bool
    """True if the finding recurred at all; if not, the plan is the original one."""
    runs: int
    steps_before: int
    steps_after: int
    replay: Replay | None = None
    """For a replay file: the small plan and its outcome, and the original one."""


@dataclass(slots=True)
class Budget:
    runs: int = 80
    seconds: float = 120.0
    used: int = 0
    began: float = 0.0

    def is_left(self) -> bool:
        """True if another run may begin."""
        return self.used < self.runs and time.monotonic() - self.began < self.seconds


def shrink(
    outcome: Outcome,
    options: Options | None = None,
    *,
    finding: str = "",
    jobs: int = 2,
    budget: Budget | None = None,
) -> Shrunk:
    """Shrink the plan of an outcome by one of its findings, the gravest unless `finding` names it.

    On real processes each candidate is tried three times and kept if one of them has the finding.
    Raises `ScenarioError` for an outcome without findings.
    """
    options = options or Options()
    findings = outcome.judgement.by_weight if outcome.judgement is not None else []
    if not (finding or findings):
        raise ScenarioError("no finding to shrink")
    finding = finding or findings[0].id
    tries = 1 if options.backend == "sim" else 3
    steps = outcome.record.steps if outcome.record is not None else []
    concrete = tuple(replace(parse_step(text), label="") for text in steps)

    def probe(plans: Sequence[Plan]) -> list[bool]:
        has_finding = [False] * len(plans)
        tried = [plan for plan in plans for _ in range(tries)]
        with closing(run_many(tried, options, jobs=jobs)) as outcomes:
            for result in outcomes:
                has_finding[plans.index(result.plan)] |= finding in result.finding_ids
        return has_finding

    shrunk = shrink_plan(outcome.plan, finding, probe, concrete=concrete, budget=budget, width=jobs)
    return replace(shrunk, replay=_replay_of(shrunk, outcome, options, tries))


def _replay_of(shrunk: Shrunk, outcome: Outcome, options: Options, tries: int) -> Replay:
    """Run the small plan once more for its digest; on real processes until it has the finding."""
    whole = Replay.of(outcome)
    if not shrunk.reproduced:
        return replace(whole, repro="none" if options.backend != "sim" else whole.repro)
    for _ in range(tries):
        small = run_plan(shrunk.plan, replace(options, say=None))
        if shrunk.finding in small.finding_ids:
            break
    return replace(
        whole,
        plan=shrunk.plan,
        taken=PlanResult.of(small),
        finding=shrunk.finding,
        original=outcome.plan,
        original_taken=whole.taken,
    )


def shrink_plan(
    plan: Plan,
    finding: str,
    probe: Probe,
    *,
    concrete: tuple[Step, ...] = (),
    budget: Budget | None = None,
    width: int = 2,
) -> Shrunk:
    """Shrink a plan with a given probe, which gets `width` plans at a time."""
    budget = budget or Budget()
    budget.began = time.monotonic()
    work = _Work(finding, probe, budget, width)
    begin = replace(plan, steps=concrete) if concrete else plan
    is_reproduced = work.first([begin]) is not None
    if not is_reproduced and concrete:
        begin, concrete = plan, ()
        is_reproduced = work.first([begin]) is not None
    small = work.simpler(work.fewer_steps(begin)) if is_reproduced else begin
    return Shrunk(
        plan=small if is_reproduced else plan,
        finding=finding,
        reproduced=is_reproduced,
        runs=budget.used,
        steps_before=len(begin.steps),
        steps_after=len(small.steps),
    )


@dataclass(slots=True)
class _Work:
    finding: str
    probe: Probe
    budget: Budget
    width: int

    def first(self, plans: Iterable[Plan]) -> Plan | None:
        """Return the first of these plans that has the finding; tried a few at a time, in order."""
        waiting = iter(plans)
        while self.budget.is_left():
            group = list(islice(waiting, self.width))
            if not group:
                return None
            self.budget.used += len(group)
            for plan, has_finding in zip(group, self.probe(group), strict=True):
                if has_finding:
                    return plan
        return None

    def fewer_steps(self, plan: Plan) -> Plan:
        """Leave out halves of the steps, then quarters, down to single ones."""
        parts = 2
        while plan.steps and self.budget.is_left():
            size = math.ceil(len(plan.steps) / parts)
            chunks = ((start, start + size) for start in range(0, len(plan.steps), size))
            smaller = self.first(
                replace(plan, steps=_closed(plan.steps[:start] + plan.steps[end:]))
                for start, end in chunks
            )
            if smaller is not None:
                plan = smaller
                parts = max(parts - 1, 2)
            elif size == 1:
                break
            else:
                parts *= 2
        return plan

    def simpler(self, plan: Plan) -> Plan:
        """Simplify everything but the number of steps, one simplification after the other."""
        for simplify in SIMPLER:
            while self.budget.is_left():
                smaller = self.first(simplify(plan, self.finding))
                if smaller is None:
                    break
                plan = smaller
        return plan


def _closed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps without those that follow, or name, a missing one."""
    while True:
        labels = {step.label for step in steps}
        complete = tuple(
            step
            for step in steps
            if not (isinstance(step.trigger, After) and step.trigger.label not in labels)
            and labels.issuperset(labels_in(step.target) + labels_in(step.second))
        )
        if complete == steps:
            return complete
        steps = complete


def _shorter_run(plan: Plan, finding: str) -> Iterator[Plan]:
    """End the fault phase after the last step, and observe for a shorter time."""
    ends = [
        step.trigger.seconds + (step.for_s or 0.0)
        for step in plan.steps
        if isinstance(step.trigger, At)
    ]
    if len(ends) == len(plan.steps):
        faults_s = float(math.ceil(max(ends, default=0.0)) + 1)
        if faults_s < plan.faults_s:
            yield replace(plan, faults_s=faults_s)
    if plan.recovery_s > 10 and finding not in UNSHORTENED:
        yield replace(plan, recovery_s=10.0)


def _fewer_clients(plan: Plan, finding: str) -> Iterator[Plan]:
    load, readers = plan.producers, plan.consumers
    for count in range(readers.count):
        yield replace(plan, consumers=replace(readers, count=count))
    if load.count > 1:
        yield replace(plan, producers=replace(load, count=1))
        yield replace(plan, producers=replace(load, count=load.count - 1))
    if load.batch:
        yield replace(plan, producers=replace(load, batch=0.0))
    if load.topics > 1:
        kinds = min(load.batch_queues, 1)
        fewer = replace(load, topics=1, late=0, deleted=0, batch_queues=kinds)
        yield replace(plan, producers=fewer)
    if load.batch_queues:
        yield replace(plan, producers=replace(load, batch_queues=0))
    if load.changes:
        yield replace(plan, producers=replace(load, changes=0))
    if load.deleted:
        topics = load.topics - load.deleted
        yield replace(plan, producers=replace(load, topics=topics, deleted=0))


def _no_background(plan: Plan, finding: str) -> Iterator[Plan]:
    background, default = plan.background, Background()
    if background == default:
        return
    yield replace(plan, background=default)
    for name in Background.__dataclass_fields__:
        value = getattr(default, name)
        if getattr(background, name) != value:
            yield replace(plan, background=replace(background, **{name: value}))
    for node in background.disk_ms:
        others_ms = {name: ms for name, ms in background.disk_ms.items() if name != node}
        yield replace(plan, background=replace(background, disk_ms=others_ms))


def _short_faults(plan: Plan, finding: str) -> Iterator[Plan]:
    for at, step in enumerate(plan.steps):
        if step.for_s is not None and step.for_s > 0.2:
            yield _with_step(plan, at, replace(step, for_s=round(step.for_s / 2, 1)))


def _round_times(plan: Plan, finding: str) -> Iterator[Plan]:
    for digits in (0, 1):
        steps = tuple(
            replace(step, trigger=At(round(step.trigger.seconds, digits)))
            if isinstance(step.trigger, At)
            else step
            for step in plan.steps
        )
        if steps != plan.steps:
            yield replace(plan, steps=steps)
        for at, step in enumerate(steps):
            if step != plan.steps[at]:
                yield _with_step(plan, at, step)


def _with_step(plan: Plan, at: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:at], step, *plan.steps[at + 1 :]))


SIMPLER: Sequence[Callable[[Plan, str], Iterator[Plan]]] = (
    _shorter_run,
    _no_background,
    _fewer_clients,
    _short_faults,
    _round_times,
)
"""Each yields plans that are a little simpler, the best first."""
