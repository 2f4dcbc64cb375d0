"""Checks that must run on a run, so that a check that could not run leaves no silent gap.

Some follow from the load and the cluster; a scenario names further ones itself (`[expect] checks`).
The run's record holds both, as ids.
"""

from collections.abc import Sequence
from typing import Final

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import Step
from rocketbed.chaos.run.group import follows, groups_of

MESSAGES: Final = ("A1", "2.3", "A2", "A3", "A4", "A4l", "A5", "A6", "A7", "A8", "A9", "I13")
ANSWERS: Final = ("A17", "A17w", "A18", "A19", "A19s")
TAGS: Final = ("A33f",)
"""Due if a topic has queues that are read by tag; batch queues have no tags to filter by."""
DIRECTORIES: Final = (
    *("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S12a"),
    *("S15", "S16", "S18", "S21"),
)
LIVENESS: Final = ("C1", "L0", "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9")
SENT: Final = (*MESSAGES, *ANSWERS, *DIRECTORIES, *LIVENESS)
"""Due if messages are sent to nodes of ours."""
GROUPS: Final = ("A22", "A23", "A24", "A25", "A30")
"""Due if a group consumes."""
READ_BACK: Final = ("A37", "A41")
"""Due if a group consumes long enough in simulation, where no machine is too busy for it."""
FILTERS: Final = ("A33",)
"""Due if a group subscribes to some tags only."""
FOLLOWERS: Final = ("A10", "A11", "A12", "A13", "A14", "A16", "A31")
"""Due if consumers follow queues by offsets of their own."""
DELAYS: Final = ("A32",)
"""Due if there are readers and the recovery phase is longer than a client waits for a lost
machine."""
LISTENED: Final = ("A27", "A28", "A29")
"""Due if listeners are called for messages."""
DELAYED: Final = ("A26", "A42")
"""Due if listeners get delayed messages too."""
COPIES: Final = ("R1",)
"""Due if a group of brokers has two nodes."""
TAPPED: Final = ("R3",)
"""Due if, besides, every acknowledgement of a slave is visible: in simulation."""
SET: Final = ("S29",)
"""Due if settings are changed."""
DELETED: Final = ("S26",)
"""Due if topics are deleted."""
CHANGED: Final = ("S27",)
"""Due if topics are changed."""
ANSWERED: Final = ("L10",)
"""Due if the recovery phase is that long: every sender asks questions in it."""
RECOVERY_S: Final = 30.0
ON_DISK: Final = ("I11",)
"""Due if followers are given only synced messages, and every sync is visible."""
OBSERVED: Final = ("I7", "S15t", "L11")
"""Due if every write and every sync of a node is visible: in simulation."""


INDEXED: Final = ("A17", "A17w", "A42", "S8", "S10")
"""Checks of these lists that depend on an index of keys."""


def is_indexed(plan: Plan, done: Sequence[Step] = ()) -> bool:
    """Return whether every node always keeps an index of keys. `done` may have steps by hand, which
    the plan does not."""
    key = "messageIndexEnable"
    values = [plan.shape.settings.get(key, "true")]
    for step in (*plan.steps, *done):
        name, _, value = step.words.get("set", "").partition("=")
        values += [value] if name == key else []
    return all(value.lower() != "false" for value in values)


def checks_due(plan: Plan, backend: str) -> tuple[str, ...]:
    """Return the ids of the checks that must run when our own nodes carry a plan out."""
    readers, groups = plan.consumers, groups_of(plan)
    is_followed = any(follows(plan, place) for place in range(readers.count))
    checks: list[str] = []
    if plan.producers.count:
        checks += SENT
        checks += TAGS if plan.producers.batch_queues < plan.producers.topics else ()
        checks += GROUPS if groups else ()
        is_long = plan.recovery_s >= RECOVERY_S and backend == "sim"
        checks += READ_BACK if groups and is_long else ()
        checks += FILTERS if any(group.tags for group in groups) else ()
        checks += FOLLOWERS if is_followed else ()
        checks += DELAYS if readers.count and is_long else ()
        checks += ANSWERED if is_long else ()
        checks += LISTENED if plan.listeners.count else ()
        checks += DELAYED if plan.listeners.count and plan.listeners.delayed else ()
        checks += COPIES if plan.shape.brokers > 1 else ()
        checks += TAPPED if plan.shape.brokers > 1 and backend == "sim" else ()
        checks += CHANGED if plan.producers.changes else ()
        checks += SET if plan.producers.settings else ()
        checks += DELETED if plan.producers.deleted else ()
        checks += OBSERVED if backend == "sim" else ()
        is_sure = plan.shape.flush == "sync" and is_followed and backend == "sim"
        checks += ON_DISK if is_sure else ()
    return tuple(check for check in checks if check not in INDEXED or is_indexed(plan))
