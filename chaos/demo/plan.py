"""What a trial will do, drawn from its seed before it begins: topics, messages, kills.

Real processes do not repeat themselves to the microsecond, so the seed fixes what is asked for
(what each producer sends, which nodes are killed after how many acknowledged messages, how long
they stay down), not what comes of it.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final, Literal

from chaos.workload import BODY_SIZE_MIN
from rocketbed.wire.errors import RocketbedError

Flush = Literal["sync", "async"]
MASTER: Final = "master"
SLAVES: Final = ("slave-1", "slave-2")
MESSAGES: Final = 40_000
"""About ten seconds of writing on two cores."""
MESSAGES_MIN: Final = 400
"""With fewer, a kill in the middle of writing cannot be aimed."""
MESSAGES_MAX: Final = 5_000_000
BODY_SIZE_MAX: Final = 1500
BATCH_MAX: Final = 16
BATCH_SHARE: Final = 0.05
"""Of the operations; each is 2 to 16 messages, so about a third of the messages."""
LAST_LIMIT: Final = 0.85
"""Share of the messages that may have begun before the last strike is over."""
TAGS: Final = ("red", "green", "blue", "")


class PlanError(RocketbedError):
    """A trial that cannot be: the message says what to change."""


class Target(StrEnum):
    """What a strike is aimed at."""

    MASTER_WRITING = "master-writing"
    SLAVE_WRITING = "slave-writing"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill with its restart."""

    target: Target
    node: str
    at: int
    """After so many acknowledged messages."""
    down_s: float
    """How long the node stays down."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the workload."""

    name: str
    queues: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """A trial as it will be run. Made by `make_plan`."""

    seed: int
    messages: int
    flush: Flush
    producers: int = 4
    in_flight: int = 8
    """Operations that each producer keeps under way."""
    batch_max: int = BATCH_MAX
    topics: tuple[Topic, ...] = ()
    strikes: tuple[Strike, ...] = ()

    def limits(self) -> list[int]:
        """How many messages may have begun: before strike 0 is over, before strike 1 is, ...

        So none is over before the next one is due, and some writing is left for after the last.
        """
        marks = [strike.at for strike in self.strikes[1:]]
        return [mark - 1 for mark in marks] + [int(self.messages * LAST_LIMIT), self.messages]

    def shares(self) -> list[int]:
        """How many messages each producer sends."""
        even, rest = divmod(self.messages, self.producers)
        return [even + (number < rest) for number in range(self.producers)]


@dataclass(frozen=True, slots=True)
class Item:
    """One message to be sent: everything but who writes it."""

    size: int
    tag: str
    key: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One send: an ordinary one of a single item, or a batch."""

    topic: str
    items: tuple[Item, ...]

    @property
    def is_batch(self) -> bool:
        """Whether it goes out as one batch request."""
        return len(self.items) > 1


def make_plan(*, seed: int, messages: int = MESSAGES, flush: Flush = "async") -> DemoPlan:
    """Draw a plan. Raises `PlanError` for a number of messages that cannot be."""
    if not MESSAGES_MIN <= messages <= MESSAGES_MAX:
        raise PlanError(
            f"{messages} messages: at least {MESSAGES_MIN} are needed so that kills meet writers,"
            f" and at most {MESSAGES_MAX} are taken"
        )
    random = Random(f"plan {seed}")
    topics = tuple(
        Topic(f"demo-{word}", queues) for word, queues in (("orders", 4), ("events", 8), ("one", 1))
    )
    strikes = (
        _strike(random, Target.MASTER_WRITING, MASTER, messages, 0.15, 0.25),
        _strike(random, Target.SLAVE_WRITING, random.choice(SLAVES), messages, 0.40, 0.50),
        _strike(random, Target.RECOVERY, random.choice((MASTER, *SLAVES)), messages, 0.65, 0.75),
    )
    return DemoPlan(
        seed=seed,
        messages=messages,
        flush=flush,
        in_flight=min(8, messages // MESSAGES_MIN),
        batch_max=min(BATCH_MAX, messages // 100),
        topics=topics,
        strikes=strikes,
    )


def _strike(
    random: Random, target: Target, node: str, messages: int, earliest: float, latest: float
) -> Strike:
    at = int(messages * random.uniform(earliest, latest))
    return Strike(target, node, at, round(random.uniform(0.1, 0.5), 3))


def beside(plan: DemoPlan, taken: Container[str]) -> DemoPlan:
    """The plan with topics that are not among those `taken`: `demo-one-2` in place of `demo-one`.

    So a trial that begins with an earlier one's data tells its own messages from the old ones.
    """
    suffix = ""
    number = 1
    while any(f"{topic.name}{suffix}" in taken for topic in plan.topics):
        number += 1
        suffix = f"-{number}"
    topics = tuple(Topic(f"{topic.name}{suffix}", topic.queues) for topic in plan.topics)
    return replace(plan, topics=topics)


def operations(plan: DemoPlan, producer: int) -> Iterator[Operation]:
    """What one producer sends, in order."""
    random = Random(f"producer {plan.seed} {producer}")
    left = plan.shares()[producer]
    number = 0
    while left:
        count = 1
        if random.random() < BATCH_SHARE:
            count = min(left, random.randint(2, plan.batch_max))
        items = []
        for _ in range(count):
            number += 1
            size = random.randint(BODY_SIZE_MIN, BODY_SIZE_MAX)
            items.append(Item(size, random.choice(TAGS), f"k{plan.seed}-{producer}-{number}"))
        yield Operation(random.choice(plan.topics).name, tuple(items))
        left -= count
