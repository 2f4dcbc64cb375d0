"""Crashes at every point: one run counts the changes of a disk, others end at each of a sample.

    for outcome in run_many(crash_points(plan, node="b1", power=True, sample=40)):
        ...

All of them are the same plan with a crash at another event, so a finding identifies the very
operation that must not be interrupted (chaos.md 4.5).
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from rocketbed.chaos.backends.sim.coverage import TICK_NS
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import Step, parse_step
from rocketbed.chaos.search.runner import Options, run_plan

LABEL = "crash-point"


def disk_events(plan: Plan, node: str) -> int:
    """Return the number of changes of a node's disk in the fault phase of a run of the plan.

    Raises `ScenarioError` if the run reports nothing of the node.
    """
    outcome = run_plan(plan, Options(backend="sim"))
    record = outcome.record
    counts = outcome.facts.get("disk_events", {})
    if record is None or node not in counts:
        reason = outcome.error or f"it knows {', '.join(counts) or 'no node'}"
        raise ScenarioError(f"no disk events of {node} were counted: {reason}")
    begin, end = record.facts["zero_ns"] // TICK_NS, record.recovery_ns // TICK_NS
    return sum(count for tick, count in counts[node] if begin < tick < end)


def crash_points(
    plan: Plan, *, node: str = "b1", power: bool = False, sample: int = 40
) -> Iterator[Plan]:
    """Yield plans in which the node dies at one of its disk events, spread over the whole run.

    It is restarted half a second later. A master that may have lost the end of its log returns as a
    slave, after the longest follower was promoted. The seed stays the same, so all reach their
    crash the same way. Raises `ScenarioError` for a node that is not in the plan.
    """
    if node not in plan.shape.nodes:
        raise ScenarioError(f"no node {node!r}: known: {', '.join(plan.shape.nodes)}")
    count = disk_events(plan, node)
    if count == 0:
        raise ScenarioError(
            f"the disk of {node} does not change in a fault phase of {plan.faults_s:g} s"
        )
    random = Random(f"{plan.name}/{plan.seed}/crash-points")
    for event in sorted(random.sample(range(1, count + 1), min(count, sample))):
        yield replace(plan, steps=plan.steps + _death(plan, node, event, power=power))


def crash_event(plan: Plan) -> int | None:
    """Return the disk event at which a plan of `crash_points` lets its node die."""
    events = (int(step.words["store-event"]) for step in plan.steps if step.label == LABEL)
    return next(events, None)


def _death(plan: Plan, node: str, event: int, *, power: bool) -> tuple[Step, ...]:
    """Return the crash, armed when the load begins, and the operator's steps after it."""
    word = " powercut" if power else ""
    lines = [f"at 0s crash {node} at store-event {event}{word} as {LABEL}"]
    masters = {nodes[0]: group for group, nodes in plan.shape.group_nodes().items()}
    delay = "500ms"
    if power and node in masters and plan.shape.brokers > 1:
        group = f":{masters[node]}" if plan.shape.groups > 1 else ""
        lines.append(f"after {LABEL}+500ms promote follower:longest{group}")
        delay = "1500ms"
    lines.append(f"after {LABEL}+{delay} restart @{LABEL}")
    return tuple(map(parse_step, lines))
