"""Targets of steps: machines by name, and descriptions that are resolved when the step is due.

This module has only the words; `chaos.run.targets` resolves them.
"""

import re
from typing import Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import unknown

SELECTORS: Final = {
    "leader": "the node with broker id 0",
    "longest": "the running node with the longest log, perhaps the leader",
    "follower:any": "any node that is not the leader",
    "follower:all": "all nodes except the leader",
    "follower:insync": "a follower that holds everything confirmed",
    "follower:lagging": "a follower that does not",
    "follower:longest": "the running follower with the longest log",
    "ns:all": "all nameservers",
    "ns:any": "one of the nameservers",
    "rand:minority": "fewer than half of the nodes",
    "rand:majority": "more than half of the nodes",
    "others": "after an arrow: the nodes that are not before it",
    "all": "all nodes",
    "clients:all": "all producers, consumers and listeners",
    "clients:producers": "all producers",
    "clients:consumers": "all consumers",
}
"""Words for targets. Those of roles may end with a group: `leader:c`, `follower:any:c`."""
ROLES: Final = tuple(
    name for name in SELECTORS if name.startswith(("leader", "longest", "follower"))
)
NUMBERED: Final = re.compile(r"(rand|ns):(\d+)")
"""`rand:2`, two nodes; `ns:1`, a nameserver."""


def client_names(plan: Plan) -> list[str]:
    return producer_names(plan) + consumer_names(plan) + listener_names(plan)


def producer_names(plan: Plan) -> list[str]:
    return [f"producer-{number + 1}" for number in range(plan.producers.count)]


def consumer_names(plan: Plan) -> list[str]:
    return [f"consumer-{number + 1}" for number in range(plan.consumers.count)]


def listener_names(plan: Plan) -> list[str]:
    """Return the producer of the listeners, and the members of their two groups."""
    numbers = range(1, plan.listeners.count + 1)
    members = [f"{name}-{number}" for name in ("listener", "ordered") for number in numbers]
    return ["teller", *members] if members else []


def machine_names(plan: Plan) -> list[str]:
    """Return every machine of a run except the harness."""
    return plan.shape.nodes + plan.shape.nameserver_names + client_names(plan)


def labels_in(text: str) -> list[str]:
    """Return the labels in a target (`@k`)."""
    return [part[1:] for part in text.split(",") if part.startswith("@")]


def check_target(text: str, plan: Plan, labels: list[str]) -> None:
    """Raise `ScenarioError` for a target that no moment of this plan can have."""
    names = machine_names(plan)
    for part in text.split(","):
        if part.startswith("@"):
            if part[1:] not in labels:
                raise ScenarioError(unknown("label", part[1:], labels))
            continue
        if part.startswith("controller"):
            raise ScenarioError(
                f"target {part!r} needs automatic failover, which is not available yet"
            )
        bare, _, group = part.rpartition(":")
        is_selector = part in SELECTORS or (bare in ROLES and group in plan.shape.group_nodes())
        numbered = NUMBERED.fullmatch(part)
        if numbered and numbered[1] == "ns" and f"ns{numbered[2]}" not in names:
            raise ScenarioError(
                f"target {part!r}: this plan has {plan.shape.nameservers} nameservers"
            )
        if not (is_selector or numbered or part.removeprefix("node:") in names):
            raise ScenarioError(unknown("target", part, [*SELECTORS, *names]))
