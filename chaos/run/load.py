"""Clients of a run: what they send and read, and the row they write of every attempt.

A send is one attempt of the client, never retried inside it: each attempt has a body of its own, so
that a second copy is seen as what it is. What was refused or is unknown is attempted again with a
new value; what asked for no answer is not, and its row says unknown. What a client is to send
follows from the seed and its number alone, so that leaving out a fault changes nothing else.
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
from rocketbed.chaos.evidence.history import Outcome as Said
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
"""Before an operation is attempted again."""
ATTEMPTS_MAX: Final = 40
PACE_S: Final = 0.003
"""Operations that are due within such a time begin together, from 667 a second on: timers of an
operating system end a millisecond or two late, and a producer loses that at each of its sleeps.
Below that rate it still does: of 300 a second that were asked for about 190 began."""
TAGS: Final = ("red", "müà", "violet")
"""The first two have one hash, so a broker gives a group both; that of the last is negative."""
KEYS_KEPT: Final = 60
"""Acknowledged values whose keys are asked for at the end."""
OUTAGE_NS: Final = 1_000_000_000
BURST_EVERY_S: Final = 4.0
"""Between two bursts of a producer, on the average."""
LARGE_SHARE: Final = 0.02
"""Of single sends, where there are large ones."""
LATENCIES_MAX: Final = 10_000
"""What half a second brings at the most: a node acknowledges some thousand sends a second."""
ClientFailure = (ClientError, RemotingError, ProtocolError)
"""What a client of ours may raise without being broken; the last for damage that it was served."""


@dataclass(slots=True)
class LoadControl:
    """What all clients of a run share: the tap, the counts, the numbers."""

    producing: bool = True
    consuming: bool = True
    leaving: bool = True
    """Whether clients come and go: while there are faults."""
    topics: list[str] = field(default_factory=list)
    """Those that may be sent to and read by now; late ones are added."""
    known: dict[str, list[str]] = field(default_factory=dict)
    """Reader -> the topics that it has heard of, where they change."""
    sending: dict[str, "Counter[str]"] = field(default_factory=dict)
    """Producer -> its operations that are under way, by topic."""
    counts: "Counter[str]" = field(default_factory=Counter)
    """Messages by outcome: ok, weak, fail, info."""
    latencies_ns: "deque[int]" = field(default_factory=lambda: deque(maxlen=LATENCIES_MAX))
    """Latencies of the last acknowledged sends; whoever draws them takes them out."""
    acknowledged_ns: dict[str, int] = field(default_factory=dict)
    """Producer -> its last acknowledgement."""
    outages: list[tuple[str, int, int]] = field(default_factory=list)
    """Producer, since when it waited for an acknowledgement, and when it came: after a failure, or
    later than `OUTAGE_NS`."""
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
    """Topics that come to be only under load, of all the last ones."""
    names = topic_names(plan)
    return names[len(names) - plan.producers.late :]


def deleted_names(plan: Plan) -> list[str]:
    """Topics that are deleted under load: of those of the beginning the last ones."""
    load = plan.producers
    end = load.topics - load.late
    return topic_names(plan)[end - load.deleted : end]


def lasting_names(plan: Plan) -> list[str]:
    """Topics that are there from the beginning to the end."""
    load = plan.producers
    return topic_names(plan)[: load.topics - load.late - load.deleted]


def batch_queue_names(plan: Plan) -> list[str]:
    """Topics of `queue.type=BatchCQ`."""
    return lasting_names(plan)[: plan.producers.batch_queues]


def stay_s(plan: Plan, random: Random) -> float:
    """How long a client stays this time, seconds."""
    load = plan.producers
    return random.expovariate(1 / load.stay_s) if load.stay_s else math.inf


async def come_and_go(
    reader: Program, plan: Plan, control: LoadControl, name: str, world: World
) -> None:
    """A reader that closes and begins again: when its stay is over, or there is another topic.

    When the faults are over it stays, or it would be late with what it reads again.
    """
    random = Random(f"{plan.seed}/{name}/stay")
    while control.consuming:
        leaves = trio.current_time() + stay_s(plan, random)
        known = control.known[name] = list(control.topics)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, world)
            while control.consuming:
                await trio.sleep(LOOK_S)
                is_over = control.leaving and trio.current_time() >= leaves
                if is_over or control.topics != known:
                    nursery.cancel_scope.cancel()
                    break


class _Item(NamedTuple):
    """One message to be sent: everything but who writes it."""

    size: int
    tag: str
    key: str


class _Operation(NamedTuple):
    """What is sent together, with all its attempts."""

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
        """Topics that get no batches: there one is a single record, and the checks know those of
        one message."""

    async def __call__(self, world: World) -> None:
        """Send at the rate until the tap is closed; then finish what is under way."""
        self._sending = self._control.sending[self._name] = Counter()
        while self._control.producing:
            await self._stay(world)

    async def _stay(self, world: World) -> None:
        """One incarnation of the client, with all that it sends."""
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
        """Of a body of so many that are sent together."""
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
        """One attempt; whether there is to be no other."""
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
            rows[0].finish(Said.INFO)
            self._control.counts["oneway"] += 1
            return True
        order_key = items[0].key if self._load.ordered else None
        if len(messages) > 1:
            outcome = await producer.send_batch(messages, order_key=order_key)
        else:
            outcome = await producer.send(messages[0], order_key=order_key)
        said = finish_sends(outcome, rows)
        self._note(said, rows, topic)
        return said is Said.OK

    def _note(self, said: Said, rows: list[Attempt], topic: str) -> None:
        control = self._control
        control.counts[said.name.lower()] += len(rows)
        now_ns = self._history.now_ns()
        if said is not Said.OK:
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


def finish_sends(outcome: Outcome, rows: list[Attempt]) -> Said:
    """Write how the messages of one send ended; what their sender may rely on."""
    if isinstance(outcome, Sent):
        said = Said.OK if outcome.is_safe else Said.WEAK
        for place, row in enumerate(rows):
            physical = -1
            if place < len(outcome.offset_ids):
                physical = parse_offset_message_id(outcome.offset_ids[place])[2]
            row.finish(
                said,
                status=outcome.status.value,
                queue=outcome.queue.queue_id,
                queue_offset=outcome.queue_offset + place,
                physical_offset=physical,
                node=outcome.queue.broker_name,
            )
        return said
    said = Said.FAIL if isinstance(outcome, Refused) else Said.INFO
    for row in rows:
        row.finish(said, status=-1 if outcome.code is None else outcome.code)
    return said
