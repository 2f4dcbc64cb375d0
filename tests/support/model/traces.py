"""For each rule the shortest known row of actions that violates an invariant without it."""

from typing import NamedTuple

from rocketbed.replication.entry import Policy
from tests.support.model.cluster import Action
from tests.support.model.walks import Shape


class Trace(NamedTuple):
    shape: Shape
    invariant: str
    """Of replication.md 7.17."""
    actions: tuple[Action, ...]


LED: tuple[Action, ...] = (("elect", 0), ("read", 0), ("promise", 0), ("lead", 0))
RETURNED: tuple[Action, ...] = (
    *LED,
    ("confirm", 0),
    ("crash", 0, 0),
    ("restart", 0),
    ("register", 0),
    ("elect", 0),
)
"""One that confirmed alone comes back without it, and leads."""
ALONE = Shape(2, 1, Policy.MEMORY, 1)
BOTH = Shape(2, 1, Policy.MEMORY, 2)

TRACES = {
    "a lossy restart is told": Trace(ALONE, "I5", RETURNED),
    "a loss is told until it is heard": Trace(
        ALONE,
        "I5",
        (
            *LED,
            ("confirm", 0),
            ("crash", 0, 0),
            ("restart", 0),
            ("crash", 0, 0),
            ("restart", 0),
            ("register", 0),
            ("elect", 0),
        ),
    ),
    "a restart ends membership": Trace(ALONE, "I5", RETURNED),
    "the minimum is strict": Trace(
        Shape(2, 2, Policy.MEMORY, 2),
        "I8",
        (("elect", 0), ("fence", 1), ("read", 0), ("promise", 0), ("lead", 0)),
    ),
    "under fsync the synced end counts": Trace(Shape(2, 1, Policy.FSYNC, 1), "I5", RETURNED),
    "all of both sets acknowledge": Trace(
        ALONE,
        "I8",
        (
            *LED,
            ("attach", 1, 0),
            ("fetch", 1, 1),
            ("deliver", 0),
            ("join", 0, 1),
            ("deliver_only", 0),
        ),
    ),
    "only registered lives join": Trace(
        ALONE,
        "I5",
        (
            *LED,
            ("confirm", 0),
            ("attach", 1, 0),
            ("fetch", 1, 1),
            ("crash", 1, 0),
            ("restart", 1),
            ("register", 1),
            ("read", 0),
            ("deliver", 0),
            ("join", 0, 1),
            ("deliver", 0),
            ("hand_over", 0, 1),
        ),
    ),
    "a cut goes by epochs": Trace(
        BOTH,
        "I16",
        (
            *LED,
            ("attach", 1, 0),
            ("fetch", 1, 1),
            ("crash", 1, 1),
            ("restart", 1),
            ("deliver", 0),
            ("confirm", 0),
            ("attach", 1, 0),
        ),
    ),
    "no epoch is empty": Trace(
        BOTH,
        "I16",
        (
            *LED,
            ("hand_over", 0, 1),
            ("read", 1),
            ("promise", 1),
            ("lead", 1),
            ("write", 1),
            ("attach", 0, 1),
            ("fetch", 0, 1),
            ("crash", 0, 1),
            ("restart", 0),
            ("deliver", 0),
            ("confirm", 1),
            ("attach", 0, 1),
        ),
    ),
    "the minimum is of the known set": Trace(
        Shape(3, 2, Policy.MEMORY, 2),
        "I8",
        (
            ("elect", 0),
            ("fence", 1),
            ("read", 0),
            ("promise", 0),
            ("lead", 0),
            ("attach", 2, 0),
            ("fetch", 2, 1),
            ("deliver", 0),
            ("join", 0, 2),
        ),
    ),
    "a promise binds": Trace(
        BOTH,
        "I16",
        (
            *LED,
            ("hand_over", 0, 1),
            ("read", 1),
            ("promise", 1),
            ("lead", 1),
            ("leave", 1, 0),
            ("deliver", 0),
            ("confirm", 1),
            ("attach", 1, 0),
        ),
    ),
    "a request ends by its answer only": Trace(
        BOTH,
        "I8",
        (
            *LED,
            ("leave", 0, 1),
            ("attach", 1, 0),
            ("fetch", 1, 1),
            ("deliver", 0),
            ("deliver", 0),
            ("join", 0, 1),
            ("read", 0),
            ("deliver_only", 0),
        ),
    ),
    "who joins has the marker": Trace(
        ALONE,
        "I5",
        (
            *LED,
            ("confirm", 0),
            ("fence", 0),
            ("elect", 0),
            ("read", 0),
            ("promise", 0),
            ("lead", 0),
            ("attach", 1, 0),
            ("fetch", 1, 0),
            ("deliver", 0),
            ("join", 0, 1),
            ("deliver", 0),
            ("hand_over", 0, 1),
        ),
    ),
}
