"""Clients of a run: what they send and read, and the row they write of every attempt.

A send is one attempt of the client, never retried inside it: each attempt has a body of its own, so
that a second copy is seen as what it is. What was refused or is unknown is attempted again with a
new value. What a client is to send follows from the seed and its number alone, so that leaving out
a fault changes nothing else.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

import trio

from rocketbed.chaos.history import Attempt, Function, HistoryWriter
from rocketbed.chaos.history import Outcome as Said
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.trial.latency import Latencies
from rocketbed.chaos.workload import BODY_SIZE_MIN, Writer, body_crc, encode_body
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
PAUSE_S: Final = 0.1
"""Before an operation is attempted again."""
ATTEMPTS_MAX: Final = 40
PACE_S: Final = 0.003
"""Operations that are due within such a time begin together, from 667 a second on: timers of an
operating system end a millisecond or two late, and a producer loses that at each of its sleeps.
Below that rate it still does: of 300 a second that were asked for about 190 began."""
TAGS: Final = ("red", "green", "blue")
KEYS_KEPT: Final = 60
"""Acknowledged values whose keys are asked for at the end."""


@dataclass(slots=True)
class LoadControl:
    """What all clients of a run share: the tap, the counts, the numbers."""

    producing: bool = True
    consuming: bool = True
    counts: "Counter[str]" = field(default_factory=Counter)
    """Messages by outcome: ok, weak, fail, info."""
    latencies: Latencies = field(default_factory=Latencies)
    """Latencies of acknowledged sends."""
    acknowledged_ns: dict[str, int] = field(default_factory=dict)
    """Producer -> its last acknowledgement."""
    outages: list[tuple[str, int, int]] = field(default_factory=list)
    """Producer, its first failure and its next acknowledgement after that."""
    keys: list[tuple[str, str, int]] = field(default_factory=list)
    """Topic, key and value of some acknowledged messages."""
    next_value: int = 0
    next_operation: int = 0
    next_process: int = 0

    def value(self) -> int:
        """A number that no other attempt has."""
        self.next_value += 1
        return self.next_value

    def operation(self) -> int:
        """A number for a send with all its attempts."""
        self.next_operation += 1
        return self.next_operation

    def process(self) -> int:
        """A number for an incarnation of a client."""
        self.next_process += 1
        return self.next_process


def topic_names(plan: Plan) -> list[str]:
    return [f"{plan.producers.prefix}-{number + 1}" for number in range(plan.producers.topics)]


class _Item(NamedTuple):
    """One message to be sent: everything but who writes it."""

    size: int
    tag: str
    key: str


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

    async def __call__(self, world: World) -> None:
        """Send at the rate until the tap is closed; then finish what is under way."""
        self._process = self._control.process()
        self._incarnation += 1
        random = Random(f"{self._plan.seed}/{self._name}/{self._incarnation}")
        limit = trio.CapacityLimiter(self._load.in_flight)
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
            while self._control.producing:
                pauses = [random.expovariate(self._load.rate) for _ in range(together)]
                await trio.sleep(min(sum(pauses), 2.0))
                for _ in range(together):
                    if limit.available_tokens >= 1:
                        await self._begin(nursery, limit, producer, random)

    async def _begin(
        self, nursery: trio.Nursery, limit: trio.CapacityLimiter, producer: Producer, random: Random
    ) -> None:
        load = self._load
        topic = random.choice(topic_names(self._plan))
        count = random.randint(2, BATCH_MAX) if random.random() < load.batch else 1
        key = f"k{random.randrange(load.keys)}"
        items = [
            _Item(max(BODY_SIZE_MIN, random.randint(*load.body)), random.choice(TAGS), key)
            for _ in range(count)
        ]
        self._sequence += 1
        if load.ordered:
            await self._deliver(limit, producer, topic, items, self._sequence)
        else:
            nursery.start_soon(self._deliver, limit, producer, topic, items, self._sequence)

    async def _deliver(
        self,
        limit: trio.CapacityLimiter,
        producer: Producer,
        topic: str,
        items: list[_Item],
        sequence: int,
    ) -> None:
        operation = self._control.operation()
        async with limit:
            for attempt in range(ATTEMPTS_MAX):
                sent = await self._attempt(producer, topic, items, sequence, operation, attempt)
                if sent or not self._control.producing:
                    return
                await trio.sleep(PAUSE_S * (1 + min(attempt, 9)))

    async def _attempt(
        self,
        producer: Producer,
        topic: str,
        items: list[_Item],
        sequence: int,
        operation: int,
        attempt: int,
    ) -> bool:
        """One attempt; whether it was acknowledged."""
        messages: list[Message] = []
        rows: list[Attempt] = []
        for place, item in enumerate(items):
            value = self._control.value()
            writer = Writer(value, operation, self._process, sequence * SEQUENCES + place)
            body = encode_body(writer, item.size)
            keys = (item.key, f"v{value}")
            messages.append(Message(topic, body, tag=item.tag, keys=keys))
            rows.append(begin_send(self._history, topic, writer, body, attempt))
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
        control.latencies.note(now_ns - rows[0].row.invoked_ns)
        control.acknowledged_ns[self._name] = now_ns
        if self._failed_ns is not None:
            control.outages.append((self._name, self._failed_ns, now_ns))
            self._failed_ns = None
        if len(control.keys) < KEYS_KEPT or rows[0].row.value % 64 == 0:
            value = rows[-1].row.value
            control.keys.append((topic, f"v{value}", value))


def begin_send(
    history: HistoryWriter, topic: str, writer: Writer, body: bytes, attempt: int
) -> Attempt:
    return history.begin(
        Function.SEND,
        process=writer.producer,
        topic=topic,
        value=writer.value,
        operation=writer.operation,
        attempt=min(attempt, 255),
        length=len(body),
        body_crc=body_crc(body),
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


ClientFailure = (ClientError, RemotingError, ProtocolError)
"""What a client of ours may raise without being broken; the last for damage that it was served."""
