"""Programs that have a function called for each message, and the producer that sends to them.

They have a topic of their own, so that messages that pass the log twice (delayed or refused ones)
are not mixed with the other load. Two groups listen: one concurrently, one in order, under the
broker's locks. The function's behaviour follows from the seed, the message and its number of
deliveries. Source: chaos.md 2.5.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.chaos.evidence.history import FINAL_READER, Attempt, Function, HistoryWriter, Outcome
from rocketbed.chaos.evidence.workload import (
    Writer,
    body_crc,
    decode_body,
    encode_body,
    label_crc,
    note_of,
)
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import listener_names
from rocketbed.chaos.run.api import Program
from rocketbed.chaos.run.load import ClientFailure, LoadControl, finish_sends, stay_s
from rocketbed.chaos.run.reading import HOLD_S, RETRY_S
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import NoRoute
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome as Answer
from rocketbed.client.producer import Producer
from rocketbed.inspect.properties import DELAY_LEVELS_DEFAULT, delay_levels
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.properties import RETRY_TOPIC
from rocketbed.world.api import World

TOPIC: Final = "told"
GROUPS: Final = {"listener": 101, "ordered": 102}
"""Numbers in the history; those of other groups are small."""
ORDERED: Final = "ordered"
TAGS: Final = (None, "a", "b")
RETRIES: Final = 2
"""Redeliveries of a message before it is a dead letter."""
LEVELS: Final = 4
"""Number of delay levels in use, from the first one."""
IN_FLIGHT: Final = 4
BODY: Final = (64, 200)
ALWAYS: Final = 1_000
SLOW_SHARE: Final = 0.05
SLOW_S: Final = 2.0
LOOK_S: Final = 0.5
QUIET_S: Final = 40.0
"""Longer than any delay in use, a lock's life in a client, and a half-open time-out."""


class Refused(Exception):
    """Raised by the function for a message that is to be delivered again."""


def levels_text(plan: Plan) -> str:
    """Return `messageDelayLevel` of a plan's nodes."""
    return plan.shape.settings.get("messageDelayLevel", DELAY_LEVELS_DEFAULT)


@dataclass(slots=True)
class Hearing:
    """State that all listeners share."""

    plan: Plan
    control: LoadControl
    history: HistoryWriter
    nameservers: str
    acknowledged: set[int] = field(default_factory=set)
    """Values that were acknowledged."""
    open: dict[str, dict[int, int]] = field(default_factory=dict)
    """Group -> values that it refused and has not accepted since -> redeliveries at the last
    refusal."""
    accepted: dict[str, set[int]] = field(default_factory=dict)
    last_call_ns: int = 0
    """Time of the last call of a function."""

    def programs(self) -> dict[str, Program]:
        """Return the programs by the names of their machines."""
        programs: dict[str, Program] = {}
        for name in listener_names(self.plan):
            group = name.rpartition("-")[0]
            programs[name] = partial(self.listen, name, group) if group else self.tell
        return programs

    async def tell(self, world: World) -> None:
        """Send at the planned rate until the load ends."""
        process, load = next(self.control.processes), self.plan.listeners
        random = Random(f"{self.plan.seed}/tell/{process}")
        limit = trio.CapacityLimiter(IN_FLIGHT)
        levels = min(LEVELS, len(delay_levels(levels_text(self.plan))))
        async with (
            Producer(
                world,
                nameservers=self.nameservers,
                group="teller",
                timeout_s=self.plan.producers.timeout_s,
                retries=0,
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            while self.control.producing:
                await trio.sleep(random.expovariate(load.rate))
                level = random.randint(1, levels) if random.random() < load.delayed else 0
                size = random.randint(*BODY)
                if limit.available_tokens >= 1:
                    nursery.start_soon(self._send, limit, producer, process, level, size)

    async def _send(
        self,
        limit: trio.CapacityLimiter,
        producer: Producer,
        process: int,
        level: int,
        size: int,
    ) -> None:
        async with limit:
            value = next(self.control.values)
            body = encode_body(Writer(value, value, process, value), size)
            tag = TAGS[value % len(TAGS)]
            message = Message(
                TOPIC,
                body,
                tag=tag,
                keys=[f"v{value}"],
                delay_level=level,
                properties=note_of(value) if self.plan.producers.properties else {},
            )
            row = self.history.begin(
                Function.TELL,
                process=process,
                topic=TOPIC,
                value=value,
                operation=level,
                length=size,
                body_crc=body_crc(body),
                label_crc=label_crc(message.tag, message.keys, message.properties),
            )
            answer: Answer = await producer.send(message)
            if finish_sends(answer, [row]) is Outcome.OK:
                self.acknowledged.add(value)

    async def listen(self, name: str, group: str, world: World) -> None:
        """Have each message handled; start over when the client gives up or its stay is over."""
        control, lives = self.control, 0
        random = Random(f"{self.plan.seed}/{name}/stay")
        greedy = Random(f"{self.plan.seed}/{name}/greedy")
        while control.consuming:
            lives += 1
            process = next(control.processes)
            leaves = trio.current_time() + stay_s(self.plan, random)
            is_greedy = group == ORDERED and greedy.random() < self.plan.listeners.greedy
            try:
                async with (
                    Consumer(
                        world,
                        nameservers=self.nameservers,
                        group=group,
                        hold_s=HOLD_S,
                        ordered=group == ORDERED,
                        allocation=_everything if is_greedy else "average",
                    ) as consumer,
                    trio.open_nursery() as nursery,
                ):
                    await consumer.subscribe(TOPIC, start="first")
                    nursery.start_soon(self._stop_in_time, consumer, leaves)
                    await consumer.listen(partial(self._hear, group, process), max_retries=RETRIES)
                    nursery.cancel_scope.cancel()
            except* ClientFailure:
                await trio.sleep(RETRY_S)

    async def _stop_in_time(self, consumer: Consumer, leaves: float) -> None:
        control = self.control
        while control.consuming and not (control.leaving and trio.current_time() >= leaves):
            await trio.sleep(LOOK_S)
        consumer.stop_listening()

    async def _hear(self, group: str, process: int, message: Received) -> None:
        value = _value(message)
        times = message.reconsume_times
        random = Random(f"{self.plan.seed}/{group}/{value}")
        refusals = 0
        if random.random() < self.plan.listeners.refused:
            refusals = random.choice((1, RETRIES, ALWAYS))
        with self._recorded(group, process, message, value):
            is_slow = random.random() < SLOW_SHARE
            await trio.sleep(SLOW_S if is_slow else random.uniform(0, 0.05))
            if times < refusals:
                self.open.setdefault(group, {})[value] = times
                raise Refused(f"value {value} is refused {refusals} times")
        self.open.get(group, {}).pop(value, None)
        self.accepted.setdefault(group, set()).add(value)

    @contextmanager
    def _recorded(self, group: str, process: int, message: Received, value: int) -> Iterator[None]:
        row = _begin(self.history, Function.HEAR, GROUPS[group], process, message, value)
        self.last_call_ns = self.history.now_ns()
        outcome = Outcome.INFO
        try:
            yield
            outcome = Outcome.OK
        except Refused:
            outcome = Outcome.FAIL
            raise
        finally:
            row.finish(
                outcome,
                queue_offset=message.queue_offset,
                physical_offset=message.physical_offset,
            )

    def missing(self) -> str:
        """Return what some group still lacks; empty if nothing."""
        for group in GROUPS:
            accepted, refused = self.accepted.get(group, set()), self.open.get(group, {})
            dead = {value for value, times in refused.items() if times >= RETRIES}
            if missing := self.acknowledged - accepted - dead:
                return f"{group} lacks {len(missing)} messages, value {min(missing)} among them"
        return ""

    def is_quiet(self) -> bool:
        """Return whether no call has come for so long that none will."""
        return self.history.now_ns() - self.last_call_ns > QUIET_S * 1e9

    async def read_dead_letters(self, world: World) -> None:
        """Record all dead letters of both groups. Raises `ClientError`."""
        for group, number in GROUPS.items():
            topic = f"%DLQ%{group}"
            async with Consumer(
                world, nameservers=self.nameservers, group="undertaker"
            ) as consumer:
                try:
                    queues = await consumer.queues(topic)
                except NoRoute:
                    continue  # nothing has died
                for queue in queues:
                    offset = await consumer.offsets.min_offset(queue)
                    while True:
                        pulled = await consumer.pull(queue, offset)
                        for message in pulled.messages:
                            value = _value(message)
                            _begin(
                                self.history, Function.DEAD, number, FINAL_READER, message, value
                            ).finish(
                                Outcome.OK,
                                queue_offset=message.queue_offset,
                                physical_offset=message.physical_offset,
                            )
                        if pulled.next_offset <= offset:
                            break
                        offset = pulled.next_offset


def _begin(
    history: HistoryWriter,
    function: Function,
    group: int,
    process: int,
    message: Received,
    value: int,
) -> Attempt:
    origin = message.properties.get(RETRY_TOPIC, message.topic)
    return history.begin(
        function,
        process=process,
        topic=message.queue.topic,
        queue=message.queue.queue_id,
        value=value,
        operation=group,
        attempt=min(message.reconsume_times, 255),
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        length=len(message.body),
        body_crc=body_crc(message.body),
        # A redelivered message names its original topic; sends are told apart by their labels.
        label_crc=label_crc(
            message.tag, message.keys if origin == TOPIC else (origin,), message.properties
        ),
        node=message.queue.broker_name,
    )


def _everything(
    me: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Allocate all queues to every member, in conflict with the others."""
    return list(queues)


def _value(message: Received) -> int:
    writer = decode_body(message.body)
    return -1 if writer is None else writer.value
