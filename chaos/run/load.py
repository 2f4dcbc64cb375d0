"""Clients of a run: what they send and read, and the history row of every attempt.

A send is one attempt of the client, never retried inside it. Each attempt has a body of its own, so
that a second copy is visible as such. A send that is refused or unknown is attempted again with a
new value; a one-way send is not, and its row says unknown. The content of a client's load follows
from the seed and its number alone, so that leaving out a fault changes nothing else.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Final, NamedTuple

import trio

from rocketbed.chaos.evidence.history import Attempt, Function, HistoryWriter
from rocketbed.chaos.evidence.history import Outcome as HistoryOutcome
from rocketbed.chaos.evidence.workload import (
    BODY_SIZE_MIN,
    Writer,
    body_crc,
    encode_body,
    label_crc,
    note_of,
)
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Program
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Refused, Sent
from rocketbed.client.producer import Producer
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.message import parse_offset_message_id
from rocketbed.world.api import World

BATCH_MAX: Final = 8
SEQUENCES: Final = 64
"""Room for the messages of one batch in a sequence number."""
LOOK_S: Final = 0.5
PAUSE_S: Final = 0.1
"""Pause before an operation is attempted again."""
ATTEMPTS_MAX: Final = 40
PACE_S: Final = 0.003
"""Operations due within this time begin together, from 667 a second on: timers of an operating
system fire a millisecond or two late, and a producer loses that at each of its sleeps. Below that
rate it still does: of 300 planned operations a second about 190 began."""
TAGS: Final = ("red", "müà", "violet")
"""The first two have the same hash, so a broker gives a group both; the hash of the last is
negative."""
KEYS_KEPT: Final = 60
"""Acknowledged values whose keys are queried at the end."""
OUTAGE_NS: Final = 1_000_000_000
BURST_EVERY_S: Final = 4.0
"""Average time between two bursts of a producer."""
LARGE_SHARE: Final = 0.02
"""Share of large messages among single sends, if there are any."""
LATENCIES_MAX: Final = 10_000
"""Enough for half a second: a node acknowledges some thousand sends a second."""
ClientFailure = (ClientError, RemotingError, ProtocolError)
"""Exceptions that a working client of ours may raise; the last for damage that it was served."""


@dataclass(slots=True)
class LoadControl:
    """State that all clients of a run share: switches, counts, numbers."""

    producing: bool = True
    consuming: bool = True
    leaving: bool = True
    """True while clients stop and start again: during the faults."""
    topics: list[str] = field(default_factory=list)
    """Topics that may be sent to and read now; late ones are added."""
    topics_read: dict[str, list[str]] = field(default_factory=dict)
    """Reader -> topics that it reads, if topics change."""
    sending: dict[str, "Counter[str]"] = field(default_factory=dict)
    """Producer -> its operations that are under way, by topic."""
    counts: "Counter[str]" = field(default_factory=Counter)
    """Messages by outcome: ok, weak, fail, info."""
    latencies_ns: "deque[int]" = field(default_factory=lambda: deque(maxlen=LATENCIES_MAX))
    """Latencies of the last acknowledged sends; the live page removes those that it draws."""
    acknowledged_ns: dict[str, int] = field(default_factory=dict)
    """Producer -> time of its last acknowledgement."""
    outages: list[tuple[str, int, int]] = field(default_factory=list)
    """(producer, since when it waited for an acknowledgement, when it came) of each wait after a
    failure, or of more than `OUTAGE_NS`."""
    keys: list[tuple[str, str, int]] = field(default_factory=list)
    """Topic, key and value of some acknowledged messages."""
    values: Iterator[int] = field(default_factory=partial(count, 1))
    """Numbers for attempts."""
    operations: Iterator[int] = field(default_factory=partial(count, 1))
    """Numbers for sends with all their attempts."""
    processes: Iterator[int] = field(default_factory=partial(count, 1))
    """Numbers for incarnations of clients."""


def topic_names(plan: Plan) -> list[str]:
    return [f"{plan.producers.prefix}-{number + 1}" for number in range(plan.producers.topics)]


def late_names(plan: Plan) -> list[str]:
    """Return the topics that are created under load: the last ones of all."""
    names = topic_names(plan)
    return names[len(names) - plan.producers.late :]


def deleted_names(plan: Plan) -> list[str]:
    """Return the topics that are deleted under load: the last of those that exist at the
    beginning."""
    load = plan.producers
    end = load.topics - load.late
    return topic_names(plan)[end - load.deleted : end]


def lasting_names(plan: Plan) -> list[str]:
    """Return the topics that exist from the beginning to the end."""
    load = plan.producers
    return topic_names(plan)[: load.topics - load.late - load.deleted]


def batch_queue_names(plan: Plan) -> list[str]:
    """Return the topics of `queue.type=BatchCQ`."""
    return lasting_names(plan)[: plan.producers.batch_queues]


def stay_s(plan: Plan, random: Random) -> float:
    """Return how long a client stays this time, seconds."""
    load = plan.producers
    return random.expovariate(1 / load.stay_s) if load.stay_s else math.inf


async def come_and_go(
    reader: Program, plan: Plan, control: LoadControl, name: str, world: World
) -> None:
    """Run a reader that restarts when its stay is over, or a topic is added or removed.

    After the faults it stays, as it would be late with what it reads again.
    """
    random = Random(f"{plan.seed}/{name}/stay")
    while control.consuming:
        leaves = trio.current_time() + stay_s(plan, random)
        topics = control.topics_read[name] = list(control.topics)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, world)
            while control.consuming:
                await trio.sleep(LOOK_S)
                is_over = control.leaving and trio.current_time() >= leaves
                if is_over or control.topics != topics:
                    nursery.cancel_scope.cancel()
                    break


class _Item(NamedTuple):
    """Message to be sent, except for its writer."""

    size: int
    tag: str
    key: str


class _Operation(NamedTuple):
    """Messages that are sent together, with all attempts."""

    topic: str
    items: list[_Item]
    sequence: int
    oneway: bool = False


class ProducerProgram:
    def __init__(
        self, plan: Plan, control: LoadControl, history: HistoryWriter, nameservers: str, name: str
    ) -> None:
        self._plan = plan
        self._load = plan.producers
        self._control = control
        self._history = history
        self._nameservers = nameservers
        self._name = name
        self._failed_ns: int | None = None
        self._sequence = 0
        self._incarnation = 0
        self._sending: Counter[str] = Counter()
        self._single = frozenset(batch_queue_names(plan))
        """Topics that get no batches: in batch queues a batch is a single record, and the checks
        expect records of one message."""

    async def __call__(self, world: World) -> None:
        """Send at the planned rate until the load ends; then finish the sends under way."""
        self._sending = self._control.sending[self._name] = Counter()
        while self._control.producing:
            await self._stay(world)

    async def _stay(self, world: World) -> None:
        """Run one incarnation of the client, with all that it sends."""
        self._process = next(self._control.processes)
        self._incarnation += 1
        random = Random(f"{self._plan.seed}/{self._name}/{self._incarnation}")
        limit = trio.CapacityLimiter(self._load.in_flight)
        leaves = trio.current_time() + stay_s(self._plan, random)
        async with (
            Producer(
                world,
                nameservers=self._nameservers,
                group=self._name,
                timeout_s=self._load.timeout_s,
                retries=0,
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            together = max(1, int(self._load.rate * PACE_S))
            burst_at = self._burst_at(random)
            control = self._control
            while control.producing and not (control.leaving and trio.current_time() >= leaves):
                pauses = [random.expovariate(self._load.rate) for _ in range(together)]
                await trio.sleep(min(sum(pauses), 2.0))
                for _ in range(together):
                    if limit.available_tokens >= 1:
                        await self._begin(nursery, limit, producer, random)
                if trio.current_time() >= burst_at:
                    burst_at = self._burst_at(random)
                    at_once = trio.CapacityLimiter(self._load.burst)
                    for _ in range(self._load.burst):
                        await self._begin(nursery, at_once, producer, random)

    def _burst_at(self, random: Random) -> float:
        if not self._load.burst:
            return math.inf
        return trio.current_time() + random.expovariate(1 / BURST_EVERY_S)

    async def _begin(
        self, nursery: trio.Nursery, limit: trio.CapacityLimiter, producer: Producer, random: Random
    ) -> None:
        load = self._load
        topic = random.choice(self._control.topics)
        size = random.randint(2, BATCH_MAX) if random.random() < load.batch else 1
        if topic in self._single:
            size = 1
        key = f"k{random.randrange(load.keys)}"
        items = [_Item(self._size(random, size), random.choice(TAGS), key) for _ in range(size)]
        self._sequence += 1
        oneway = bool(load.oneway) and size == 1 and random.random() < load.oneway
        operation = _Operation(topic, items, self._sequence, oneway)
        if load.ordered:
            await self._deliver(limit, producer, operation)
        else:
            nursery.start_soon(self._deliver, limit, producer, operation)

    def _size(self, random: Random, count: int) -> int:
        """Return the body size of a message that is one of `count` sent together."""
        load = self._load
        if load.large and count == 1 and random.random() < LARGE_SHARE:
            return int(load.body[1] * (load.large / load.body[1]) ** random.random())
        return max(BODY_SIZE_MIN, random.randint(*load.body))

    async def _deliver(
        self, limit: trio.CapacityLimiter, producer: Producer, operation: _Operation
    ) -> None:
        number = next(self._control.operations)
        self._sending[operation.topic] += 1
        try:
            async with limit:
                for attempt in range(ATTEMPTS_MAX):
                    sent = await self._attempt(producer, operation, number, attempt)
                    if sent or not self._control.producing:
                        return
                    await trio.sleep(PAUSE_S * (1 + min(attempt, 9)))
        finally:
            self._sending[operation.topic] -= 1

    async def _attempt(
        self, producer: Producer, operation: _Operation, number: int, attempt: int
    ) -> bool:
        """Make one attempt. Return whether it is the last one."""
        topic, items, sequence, oneway = operation
        messages: list[Message] = []
        rows: list[Attempt] = []
        for place, item in enumerate(items):
            value = next(self._control.values)
            writer = Writer(value, number, self._process, sequence * SEQUENCES + place)
            body = encode_body(writer, item.size)
            keys = (item.key, f"v{value}")
            has_note = value * self._load.properties % 1 < self._load.properties
            own = note_of(value) if has_note else {}
            message = Message(topic, body, tag=item.tag, keys=keys, properties=own)
            messages.append(message)
            rows.append(begin_send(self._history, writer, message, attempt, oneway=oneway))
        if oneway:
            with suppress(*ClientFailure):
                await producer.send_oneway(messages[0])
            rows[0].finish(HistoryOutcome.INFO)
            self._control.counts["oneway"] += 1
            return True
        order_key = items[0].key if self._load.ordered else None
        if len(messages) > 1:
            answer = await producer.send_batch(messages, order_key=order_key)
        else:
            answer = await producer.send(messages[0], order_key=order_key)
        outcome = finish_sends(answer, rows)
        self._note(outcome, rows, topic)
        return outcome is HistoryOutcome.OK

    def _note(self, outcome: HistoryOutcome, rows: list[Attempt], topic: str) -> None:
        control = self._control
        control.counts[outcome.name.lower()] += len(rows)
        now_ns = self._history.now_ns()
        if outcome is not HistoryOutcome.OK:
            if self._failed_ns is None:
                self._failed_ns = now_ns
            return
        control.latencies_ns.append(now_ns - rows[0].row.invoked_ns)
        last_ns = control.acknowledged_ns.get(self._name, 0)
        control.acknowledged_ns[self._name] = now_ns
        waited_ns = max(rows[0].row.invoked_ns, last_ns)
        since_ns = waited_ns if self._failed_ns is None else min(waited_ns, self._failed_ns)
        if self._failed_ns is not None or now_ns - since_ns > OUTAGE_NS:
            control.outages.append((self._name, since_ns, now_ns))
        self._failed_ns = None
        if len(control.keys) < KEYS_KEPT or rows[0].row.value % 64 == 0:
            value = rows[-1].row.value
            control.keys.append((topic, f"v{value}", value))


def begin_send(
    history: HistoryWriter, writer: Writer, message: Message, attempt: int, *, oneway: bool = False
) -> Attempt:
    return history.begin(
        Function.SEND_ONEWAY if oneway else Function.SEND,
        process=writer.producer,
        topic=message.topic,
        value=writer.value,
        operation=writer.operation,
        attempt=min(attempt, 255),
        length=len(message.body),
        body_crc=body_crc(message.body),
        label_crc=label_crc(message.tag, message.keys, message.properties),
    )


def finish_sends(answer: Outcome, rows: list[Attempt]) -> HistoryOutcome:
    """Record the outcome of the messages of one send. Return what their sender may rely on."""
    if isinstance(answer, Sent):
        result = HistoryOutcome.OK if answer.is_safe else HistoryOutcome.WEAK
        for place, row in enumerate(rows):
            physical = -1
            if place < len(answer.offset_ids):
                physical = parse_offset_message_id(answer.offset_ids[place])[2]
            row.finish(
                result,
                status=answer.status.value,
                queue=answer.queue.queue_id,
                queue_offset=answer.queue_offset + place,
                physical_offset=physical,
                node=answer.queue.broker_name,
            )
        return result
    result = HistoryOutcome.FAIL if isinstance(answer, Refused) else HistoryOutcome.INFO
    for row in rows:
        row.finish(result, status=-1 if answer.code is None else answer.code)
    return result
