"""Producers of a trial: they write until every message is acknowledged, whatever happens.

A send is one attempt of the client, never retried inside it: each attempt has a body of its own, so
that a second copy is seen as what it is. What was refused or is unknown is attempted again with a
new value, since only an acknowledgement ends an operation. Everything goes into the history.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from chaos.demo.plan import DemoPlan, Operation, operations
from chaos.history import Attempt, Function, HistoryWriter
from chaos.history import Outcome as Said
from chaos.workload import Writer, body_crc, encode_body
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Refused, Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.message import parse_offset_message_id
from rocketbed.world.api import World

PAUSE_S: Final = 0.05
"""Before an operation is attempted again."""
KEYS_KEPT: Final = 40
"""Keys of acknowledged messages that are kept to be looked for later."""
TIMEOUT_S: Final = 5.0
"""For one attempt: longer than a node takes to come back, so that few end unknown by time."""


@dataclass(slots=True)
class Counts:
    """Messages by how their attempts ended, so far."""

    begun: int = 0
    """Messages that were attempted at least once."""
    acknowledged: int = 0
    weak: int = 0
    refused: int = 0
    unknown: int = 0
    physical: int = -1
    """Highest physical offset that was acknowledged."""
    in_flight: dict[int, int] = field(default_factory=dict)
    """Messages of attempts that have not returned, by number of the attempt."""

    @property
    def under_way(self) -> int:
        """Messages in flight now."""
        return sum(self.in_flight.values())


class Load:
    """All producers of one trial."""

    def __init__(
        self, world: World, plan: DemoPlan, history: HistoryWriter, nameservers: str
    ) -> None:
        self.counts = Counts()
        self.keys: list[tuple[str, str]] = []
        """Topic and key of some acknowledged messages, from all of the run."""
        self.holds: list[tuple[float, float]] = []
        """When producers waited so that the writing outlasts the kills; trio's time."""
        self._world = world
        self._plan = plan
        self._history = history
        self._nameservers = nameservers
        self._limit = plan.messages
        self._held_since: float | None = None
        self._next_value = self._next_operation = 0
        self._changed = trio.Event()
        """Replaced whenever a count or the limit has changed."""

    def limit(self, messages: int) -> None:
        """Let no more than so many messages begin."""
        self._limit = messages
        if self._held_since is not None:
            self.holds.append((self._held_since, trio.current_time()))
            self._held_since = None
        self._touch()

    async def wait_acknowledged(self, messages: int) -> None:
        """Wait until so many messages are acknowledged."""
        while self.counts.acknowledged < messages:
            await self._changed.wait()

    async def wait_writing(self, messages: int) -> None:
        """Wait until so many messages are acknowledged and others are in flight."""
        await self.wait_acknowledged(messages)
        while not self.counts.under_way:
            await self._changed.wait()

    async def run(self) -> None:
        """Write everything; returns when all of it is acknowledged."""
        async with trio.open_nursery() as nursery:
            for number in range(self._plan.producers):
                nursery.start_soon(self._produce, number)

    def _touch(self) -> None:
        if self._changed.statistics().tasks_waiting:
            self._changed.set()
            self._changed = trio.Event()

    async def _produce(self, number: int) -> None:
        source = enumerate(operations(self._plan, number))
        async with (
            Producer(
                self._world,
                nameservers=self._nameservers,
                group=f"demo-{number}",
                timeout_s=TIMEOUT_S,
                retries=0,
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(self._plan.in_flight):
                nursery.start_soon(self._work, producer, number, source)

    async def _work(self, producer: Producer, number: int, source: "enumerate[Operation]") -> None:
        """Take operations from the producer's source, one after the other."""
        while True:
            await self._wait_allowed()
            taken = next(source, None)
            if taken is None:
                return
            sequence, operation = taken
            self.counts.begun += len(operation.items)
            name = self._next_operation
            self._next_operation += 1
            attempt = 0
            while not await self._attempt(producer, number, sequence, operation, name, attempt):
                attempt += 1
                await trio.sleep(PAUSE_S)

    async def _wait_allowed(self) -> None:
        while self.counts.begun >= self._limit < self._plan.messages:
            if self._held_since is None:
                self._held_since = trio.current_time()
            await self._changed.wait()

    async def _attempt(
        self,
        producer: Producer,
        number: int,
        sequence: int,
        operation: Operation,
        name: int,
        attempt: int,
    ) -> bool:
        """One attempt of an operation; whether it was acknowledged."""
        messages: list[Message] = []
        rows: list[Attempt] = []
        for place, item in enumerate(operation.items):
            self._next_value += 1
            value = self._next_value
            writer = Writer(value, name, number, sequence * 64 + place)
            body = encode_body(writer, item.size)
            messages.append(Message(operation.topic, body, tag=item.tag, keys=(item.key,)))
            rows.append(
                self._history.begin(
                    Function.SEND,
                    process=number,
                    topic=operation.topic,
                    value=value,
                    operation=name,
                    attempt=min(attempt, 255),
                    length=len(body),
                    body_crc=body_crc(body),
                )
            )
        self.counts.in_flight[rows[0].row.number] = len(rows)
        self._touch()
        try:
            if operation.is_batch:
                outcome = await producer.send_batch(messages)
            else:
                outcome = await producer.send(messages[0])
        finally:
            del self.counts.in_flight[rows[0].row.number]
        acknowledged = self._take(outcome, rows)
        if acknowledged:
            self._keep_key(operation)
        return acknowledged

    def _keep_key(self, operation: Operation) -> None:
        due = self._plan.messages * len(self.keys) // KEYS_KEPT
        if due < self.counts.acknowledged and len(self.keys) < KEYS_KEPT:
            self.keys.append((operation.topic, operation.items[-1].key))

    def _take(self, outcome: Outcome, rows: Sequence[Attempt]) -> bool:
        """Note how an attempt ended; whether it is acknowledged."""
        counts = self.counts
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
                )
                if said is Said.OK:
                    counts.physical = max(counts.physical, physical)
            if said is Said.OK:
                counts.acknowledged += len(rows)
            else:
                counts.weak += len(rows)
            self._touch()
            return said is Said.OK
        said = Said.FAIL if isinstance(outcome, Refused) else Said.INFO
        for row in rows:
            row.finish(said, status=-1 if outcome.code is None else outcome.code)
        if said is Said.FAIL:
            counts.refused += len(rows)
        else:
            counts.unknown += len(rows)
        return False
