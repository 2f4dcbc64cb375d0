"""Which checks have to run on a run, so that one that could not leaves no silent hole.

Some follow from the load and the cluster; what a scenario is there to show besides it says itself
(`[expect] checks`). The run's record holds both, as ids.
"""

from collections.abc import Sequence
from typing import Final

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import Step
from rocketbed.chaos.run.group import follows, groups_of

MESSAGES: Final = ("A1", "2.3", "A2", "A3", "A4", "A4l", "A5", "A6", "A7", "A8", "A9", "I13")
ANSWERS: Final = ("A17", "A17w", "A18", "A19", "A19s")
TAGS: Final = ("A33f",)
"""Where a topic has queues that are asked for one tag: batch queues have none to go by."""
DIRECTORIES: Final = (
    *("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S12a"),
    *("S15", "S16", "S18", "S21"),
)
LIVENESS: Final = ("C1", "L0", "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9")
SENT: Final = (*MESSAGES, *ANSWERS, *DIRECTORIES, *LIVENESS)
"""Where messages are sent to nodes of ours."""
GROUPS: Final = ("A22", "A23", "A24", "A25", "A30")
"""Where a group consumes."""
READ_BACK: Final = ("A37", "A41")
"""Where it does so long enough, in simulation, where nothing is too busy for it."""
FILTERS: Final = ("A33",)
"""Where a group asks for some tags only."""
FOLLOWERS: Final = ("A10", "A11", "A12", "A13", "A14", "A16", "A31")
"""Where queues are followed."""
DELAYS: Final = ("A32",)
"""Where anybody reads in a calm phase that is longer than a client waits for a lost machine."""
LISTENED: Final = ("A27", "A28", "A29")
"""Where functions are called for messages, and"""
DELAYED: Final = ("A26", "A42")
"""where some of these are delayed."""
COPIES: Final = ("R1",)
"""Where a group of brokers has two nodes."""
TAPPED: Final = ("R3",)
"""Where besides every report of a slave is seen: in simulation."""
SET: Final = ("S29",)
"""Where settings are changed."""
DELETED: Final = ("S26",)
"""Where topics are deleted."""
CHANGED: Final = ("S27",)
"""Where topics are changed."""
ANSWERED: Final = ("L10",)
"""Where questions are asked in such a calm phase: by everybody who sends."""
CALM_S: Final = 30.0
ON_DISK: Final = ("I11",)
"""Where followers are given only what is on disk, and every sync is seen."""
OBSERVED: Final = ("I7", "S15t", "L11")
"""Where every write and every sync of a node is seen: in simulation."""


INDEXED: Final = ("A17", "A17w", "A42", "S8", "S10")
"""Those of them that go by an index of keys."""


def is_indexed(plan: Plan, done: Sequence[Step] = ()) -> bool:
    """Whether no node is ever told to keep no index of keys; `done`: steps that were given by hand
    among others."""
    key = "messageIndexEnable"
    given = [plan.shape.settings.get(key, "true")]
    for step in (*plan.steps, *done):
        name, _, value = step.words.get("set", "").partition("=")
        given += [value] if name == key else []
    return all(value.lower() != "false" for value in given)


def checks_due(plan: Plan, backend: str) -> tuple[str, ...]:
    """Ids of the checks that have to run when our own nodes carry a plan out."""
    readers, groups = plan.consumers, groups_of(plan)
    is_followed = any(follows(plan, place) for place in range(readers.count))
    due: list[str] = []
    if plan.producers.count:
        due += SENT
        due += TAGS if plan.producers.batch_queues < plan.producers.topics else ()
        due += GROUPS if groups else ()
        is_long = plan.calm_s >= CALM_S and backend == "sim"
        due += READ_BACK if groups and is_long else ()
        due += FILTERS if any(group.tags for group in groups) else ()
        due += FOLLOWERS if is_followed else ()
        due += DELAYS if readers.count and is_long else ()
        due += ANSWERED if is_long else ()
        due += LISTENED if plan.listeners.count else ()
        due += DELAYED if plan.listeners.count and plan.listeners.delayed else ()
        due += COPIES if plan.shape.brokers > 1 else ()
        due += TAPPED if plan.shape.brokers > 1 and backend == "sim" else ()
        due += CHANGED if plan.producers.changes else ()
        due += SET if plan.producers.settings else ()
        due += DELETED if plan.producers.deleted else ()
        due += OBSERVED if backend == "sim" else ()
        is_sure = plan.shape.flush == "sync" and is_followed and backend == "sim"
        due += ON_DISK if is_sure else ()
    return tuple(one for one in due if one not in INDEXED or is_indexed(plan))
