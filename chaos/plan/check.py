"""Checks of a plan before it runs.

A scenario that names a node that cannot exist, or a step that can never be due, would run and pass
without having tried anything; so it is refused, with a sentence that says which step and why.
"""

from collections.abc import Mapping
from typing import Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import GROUPS, Plan
from rocketbed.chaos.plan.step import After, At, Every, Step, unknown
from rocketbed.chaos.plan.targets import NUMBERED, check_target, client_names, labels_in
from rocketbed.chaos.plan.units import show_duration
from rocketbed.chaos.plan.verbs import VERBS
from rocketbed.node.config.node_config import ConfigError, Setting, make_config

CAPABILITIES: Final = tuple(
    dict.fromkeys(
        need for verb in VERBS.values() for need in (verb.needs, *verb.word_needs.values()) if need
    )
)
"""Capabilities of a backend that steps may need."""
BODY_MAX: Final = 4 << 20
"""Largest size of a body, bytes."""
MESSAGE_MAX: Final = 16384
"""Bytes; `maxMessageSize` of simulated nodes."""
BATCH_BODY_MAX: Final = 1900
"""Bytes of a body such that eight messages fit into a batch of 16 KiB."""
SEGMENT_MIN: Final = 4096
MANY: Final = ("all", "others", "ns:all", "rand:majority", "clients:", "follower:all")
"""Beginnings of targets that cannot stay broken in the recovery phase."""


def check_plan(plan: Plan) -> None:
    """Raise a `ScenarioError` that names the step or the key, if the plan is wrong."""
    _check_shape(plan)
    _check_load(plan)
    nodes = plan.shape.nodes
    for node in [*plan.background.disk_ms, *plan.background.slowness]:
        if node not in nodes:
            raise ScenarioError(f"background: {unknown('node', node, nodes)}")
    if plan.broken:
        _check_broken(plan)
    labels = _labels(plan.steps)
    for step in plan.steps:
        _earliest(step, labels)
    for step in plan.steps:
        try:
            _check_step(step, plan, labels)
        except ScenarioError as error:
            raise ScenarioError(f"step {str(step)!r}: {error}") from None


def _check_broken(plan: Plan) -> None:
    """Check that the cluster can do without the broken machines: a leader remains, and enough nodes
    for all copies."""
    check_target(plan.broken, plan, [])
    target, shape = plan.broken.removeprefix("node:"), plan.shape
    number = NUMBERED.fullmatch(target)
    count = (len(shape.nodes) - 1) // 2 if target == "rand:minority" else 1
    count = int(number[2]) if number else count
    may_lead = target.startswith(("leader", "longest", "rand"))
    may_lead |= target in [nodes[0] for nodes in shape.group_nodes().values()]
    remaining = shape.brokers - count
    if "," in target or target.startswith(MANY) or target in client_names(plan) or not count:
        reason = "one node that the others can do without, as follower:any or ns:any"
    elif target.startswith("ns"):
        reason = "there is no other nameserver" if shape.nameservers == 1 else ""
    elif may_lead and not shape.failover:
        reason = "nobody would lead: use follower:any, or failover = true"
    elif remaining < shape.copies or (shape.failover and 2 * remaining <= shape.brokers):
        reason = f"{shape.brokers} brokers of a group could be {remaining}, too few to store"
    else:
        reason = ""
    if reason:
        raise ScenarioError(f"recovery.broken: {plan.broken!r}: {reason}")


def _check_shape(plan: Plan) -> None:
    shape = plan.shape
    _within("brokers", shape.brokers, 1, 9)
    _within("groups", shape.groups, 1, len(GROUPS))
    _within("nameservers", shape.nameservers, 1, 9)
    _within("min_isr", shape.min_isr, 1, 9)
    if shape.failover and (shape.brokers < 3 or shape.repl != "sync" or shape.min_isr != 2):
        raise ScenarioError(
            "failover: needs three brokers or more, and what their groups promise by themselves:"
            ' repl = "sync", min_isr = 2'
        )
    if shape.segment < SEGMENT_MIN:
        raise ScenarioError(
            f"segment: {shape.segment} bytes is too small, at least {SEGMENT_MIN} needed"
        )
    try:
        config, _ = make_config(
            [Setting(key, value, "settings") for key, value in shape.settings.items()]
        )
    except ConfigError as error:
        raise ScenarioError(str(error)) from None
    if not config.auto_create_group:
        raise ScenarioError(
            "settings: autoCreateSubscriptionGroup=false: nobody makes the groups of a run's"
            " consumers beforehand"
        )
    (_, longest), most = plan.producers.body, config.store.max_message_size
    if longest > most:
        raise ScenarioError(
            f"settings: maxMessageSize={most} refuses bodies of this load, which have up to"
            f" {longest} bytes (body)"
        )


def _check_load(plan: Plan) -> None:
    load = plan.producers
    _within("producers", load.count, 1, 99)
    _within("consumers", plan.consumers.count, 0, 99)
    consumers = plan.consumers.count
    _within("members", plan.consumers.members, 1, consumers or 99, why=f"of {consumers} consumers")
    _within("filtered", plan.consumers.filtered, 0, 1)
    _within("rewinds", plan.consumers.rewinds, 0, 1)
    _within("listeners", plan.listeners.count, 0, 99)
    _within("delayed", plan.listeners.delayed, 0, 1)
    _within("refused", plan.listeners.refused, 0, 1)
    _within("greedy", plan.listeners.greedy, 0, 1)
    if plan.listeners.count and plan.background.wall_rate != 1:
        raise ScenarioError("listeners: delays are told in wall time, so wall_rate must be 1")
    _within("in_flight", load.in_flight, 1, 1000)
    _within("topics", load.topics, 1, 999)
    _within("queues", load.queues, 1, 99)
    _within("keys", load.keys, 1, 1_000_000)
    if load.rate <= 0:
        raise ScenarioError(f"rate: must be positive, not {load.rate:g}")
    for key, share in (("batch", load.batch), ("oneway", load.oneway)):
        if not 0 <= share <= 1:
            raise ScenarioError(f"{key}: must be between 0 and 1, not {share:g}")
    _within("burst", load.burst, 0, 10_000)
    _within("late", load.late, 0, load.topics)
    stay = f"topics: {load.topics}, late: {load.late}, and one has to stay"
    _within("deleted", load.deleted, 0, max(load.topics - load.late - 1, 0), why=stay)
    _within("changes", load.changes, 0, 99)
    _within("settings", load.settings, 0, 99)
    _within("properties", load.properties, 0, 1)
    _within("batch_queues", load.batch_queues, 0, load.topics - load.late - load.deleted)
    _within("large", load.large, 0, BODY_MAX)
    if not 0 < load.body[0] <= load.body[1]:
        raise ScenarioError(f"body: {load.body[0]} to {load.body[1]} bytes is not a range of sizes")
    if load.batch and load.body[1] > BATCH_BODY_MAX and "maxMessageSize" not in plan.shape.settings:
        raise ScenarioError(
            f"body: batches of bodies of {load.body[1]} bytes exceed what nodes accept"
            f" (maxMessageSize): at most {BATCH_BODY_MAX}, or batch = 0"
        )
    if max(load.body[1], load.large) > MESSAGE_MAX and "maxMessageSize" not in plan.shape.settings:
        raise ScenarioError(
            f"body: {max(load.body[1], load.large)} bytes exceed what nodes accept: at most"
            f" {MESSAGE_MAX}, or give maxMessageSize in [cluster.settings]"
        )
    if load.timeout_s <= 0:
        raise ScenarioError("timeout: must be positive")
    if plan.faults_s <= 0 or plan.recovery_s <= 0:
        raise ScenarioError("recovery: 'at' and 'drain' must be positive")


def _check_step(step: Step, plan: Plan, labels: Mapping[str, Step]) -> None:
    for target in (step.target, step.second):
        if target:
            check_target(target, plan, list(labels))
    earliest = _earliest(step, labels)
    if earliest < 0:
        raise ScenarioError(
            "it is due before the cluster is up: times count from the moment the load begins"
        )
    if isinstance(step.trigger, At | Every) and earliest > plan.faults_s:
        raise ScenarioError(
            f"it is due at {show_duration(earliest)}, after the faults end"
            f" ([recovery] at = {show_duration(plan.faults_s)})"
        )
    if step.for_s is not None and step.for_s < 0:
        raise ScenarioError("'for' must not be negative")
    latest = step.trigger.seconds if isinstance(step.trigger, At) else None
    for label in labels_in(step.target) + labels_in(step.second):
        begin = _earliest(labels[label], labels)
        if labels[label] is step:
            raise ScenarioError(f"@{label} refers to the step itself")
        if latest is not None and begin > latest:
            raise ScenarioError(
                f"@{label} is used at {show_duration(latest)}, before its step, which is due at"
                f" {show_duration(begin)} at the earliest"
            )


def _labels(steps: tuple[Step, ...]) -> dict[str, Step]:
    labels: dict[str, Step] = {}
    for step in steps:
        if step.label in labels:
            raise ScenarioError(
                f"two steps are called {step.label!r}: '{labels[step.label]}' and '{step}'"
            )
        if step.label:
            labels[step.label] = step
    return labels


def _earliest(step: Step, labels: Mapping[str, Step]) -> float:
    """Return when a step can be due at the earliest, seconds, following `after` triggers.

    Steps that wait for a condition may be due at once.
    """
    seconds, visited, first = 0.0, [step], step
    while isinstance(trigger := step.trigger, After):
        if trigger.seconds < 0:
            raise ScenarioError(f"step {str(first)!r}: the time after '+' must not be negative")
        if trigger.label not in labels:
            reason = unknown("label", trigger.label, dict(labels))
            raise ScenarioError(f"step {str(first)!r}: {reason}")
        seconds += trigger.seconds
        step = labels[trigger.label]
        if any(before is step for before in visited):
            names = " after ".join(after.label for after in [*visited[-1:], step])
            raise ScenarioError(f"step {str(first)!r}: labels form a cycle: {names}")
        visited.append(step)
    if isinstance(trigger, At):
        return seconds + trigger.seconds
    if isinstance(trigger, Every):
        return seconds + max(0.0, trigger.seconds - trigger.jitter)
    return seconds


def _within(key: str, value: float, low: int, high: int, *, why: str = "") -> None:
    if not low <= value <= high:
        reason = f" ({why})" if why else ""
        raise ScenarioError(f"{key}: {value} is not between {low} and {high}{reason}")
