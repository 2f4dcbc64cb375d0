"""Checks that must run on a run, so that a check that could not run leaves no silent gap.

Some follow from the load and the cluster; a scenario names further ones itself (`[expect] checks`).
The run's record holds both, as ids.
"""

from collections.abc import Sequence
from typing import Final

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import Step
from rocketbed.chaos.run.group import follows, groups_of

MESSAGES: Final = (
    "lost-write",
    "loss-within-bound",
    "unseen-message",
    "phantom-write",
    "unknown-value",
    "altered-label",
    "duplicate",
    "retry-duplicate",
    "inconsistent-offset",
    "moved-write",
    "nonmonotonic-send",
    "dense-queue-offsets",
)
ANSWERS: Final = (
    "query-mismatch",
    "query-miss-under-faults",
    "bound-error",
    "time-search",
    "store-times-rise",
)
TAGS: Final = ("broker-tag-filter",)
"""Required if a topic has queues that are read by tag; batch queues have no tags to filter by."""
DIRECTORIES: Final = (
    *(
        "log-files-tile",
        "record-checksums",
        "nothing-beyond-log",
        "queue-entries-match-log",
        "queue-entries-complete",
        "queue-entry-places",
        "queue-tag-codes",
        "index-matches-log",
        "no-silent-damage",
        "index-complete",
        "checkpoint-not-ahead",
        "abort-file",
        "abort-file-law",
    ),
    *("tables-readable", "queue-bounds", "one-store-owner", "tables-complete"),
)
LIVENESS: Final = (
    "no-unexpected-exit",
    "set-up",
    "leader-serves",
    "replicas-in-sync",
    "producers-continue",
    "everything-read",
    "replicas-equal",
    "nodes-stop",
    "sends-succeed",
    "groups-caught-up",
    "routes-correct",
)
SENT: Final = (*MESSAGES, *ANSWERS, *DIRECTORIES, *LIVENESS)
"""Required if messages are sent to nodes of ours."""
GROUPS: Final = ("group-skip", "redelivery", "offset-regress", "offset-overrun", "group-backlog")
"""Required if a group consumes."""
READ_BACK: Final = ("wrong-reported-offset", "early-commit")
"""Required if a group consumes long enough in simulation, where no machine is too busy for it."""
FILTERS: Final = ("unwanted-tag",)
"""Required if a group subscribes to some tags only."""
FOLLOWERS: Final = (
    "nonmonotonic-poll",
    "poll-skip",
    "wrong-poll-position",
    "vanished-read",
    "future-read",
    "read-lag",
    "follower-skip",
)
"""Required if consumers follow queues by offsets of their own."""
DELAYS: Final = ("late-delivery",)
"""Required if there are readers and the recovery phase is longer than a client waits for a lost
machine."""
LISTENED: Final = ("listener-never-called", "retries-and-dead-letters", "double-queue-owner")
"""Required if listeners are called for messages."""
DELAYED: Final = ("early-delayed-call", "delayed-duplicate")
"""Required if listeners get delayed messages too."""
COPIES: Final = ("equal-logs",)
"""Required if a group of brokers has two nodes."""
TAPPED: Final = ("dishonest-ack",)
"""Due if, besides, every acknowledgement of a slave is visible: in simulation."""
SET: Final = ("settings-kept",)
"""Required if settings are changed."""
DELETED: Final = ("deletion-complete",)
"""Required if topics are deleted."""
CHANGED: Final = ("topic-changes-kept",)
"""Required if topics are changed."""
ANSWERED: Final = ("requests-answered",)
"""Required if the recovery phase is that long: every sender asks questions in it."""
RECOVERY_S: Final = 30.0
ON_DISK: Final = ("read-before-flush",)
"""Required if followers are given only synced messages, and every sync is visible."""
OBSERVED: Final = ("acked-before-durable", "tables-replaced-whole", "sends-answered")
"""Required if every write and every sync of a node is visible: in simulation."""


INDEXED: Final = (
    "query-mismatch",
    "query-miss-under-faults",
    "delayed-duplicate",
    "index-matches-log",
    "index-complete",
)
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


def required_checks(plan: Plan, backend: str) -> tuple[str, ...]:
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
