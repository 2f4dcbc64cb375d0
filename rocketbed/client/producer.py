"""Sending messages, with an exact outcome of each send."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

import trio

from rocketbed.client.arguments import check_method, check_timeout
from rocketbed.client.attempts import Attempts, PickQueue, master_of
from rocketbed.client.envelope import Envelope, Envelopes, with_properties
from rocketbed.client.errors import BadMessage
from rocketbed.client.linger import BATCH_BYTES, Linger, Place
from rocketbed.client.memory import Memory
from rocketbed.client.messages import BODY_MAX, Message, check_group
from rocketbed.client.outcome import Outcome, Refused
from rocketbed.client.packing import ABOVE, Codec
from rocketbed.client.select import Choice, QueueSelector, make_selector
from rocketbed.client.session import Session
from rocketbed.client.tracing import Tracing
from rocketbed.wire.bodies import ConsumerData, MessageQueue, ProducerData
from rocketbed.world.api import World

TIMEOUT_S: Final = 3.0
"""Time for one send with all its attempts, seconds (wire.md 1.8)."""
RETRIES: Final = 2
"""Further attempts after the first (wire.md 4.3)."""
MEMORY_MAX: Final = 32 << 20
"""Most bytes of bodies under way; the limit of RocketMQ's accumulator."""
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""A group that every Java client also registers (wire.md 6.2)."""


class Producer:
    """Sends messages. `async with Producer(nameservers="host:9876") as producer: ...`

    A send is retried with the same message id if another broker, or a later time, may help: for all
    of `timeout_s` seconds while no broker accepts it, and otherwise in `retries` further attempts,
    each with its share of the time (at least 3 s). As with Java's producer that includes sends
    whose outcome is unknown, so a message can be stored twice. With `retry_unknown=False` it
    cannot, and the program decides what to do with an `Unknown`. `retries=0` is one attempt.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        nameservers: str | Sequence[str],
        group: str = "rocketbed_producer",
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        retry_unknown: bool = True,
        retry_unsafe: bool = False,
        select: Choice | QueueSelector = "round_robin",
        compress: Codec | None = None,
        compress_above: int = ABOVE,
        linger_s: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        memory_max: int = MEMORY_MAX,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare the client; nothing is connected yet. Raises `BadMessage` for unusable arguments,
        `MissingLibrary` for a codec that is not installed.

        `retry_unsafe`: retry also messages that were stored but not flushed or copied in time
        (`retryAnotherBrokerWhenNotStoreOK`). `select`: choice of queues, see `select.py`.
        `compress`: compress bodies of at least `compress_above` bytes; batches are never
        compressed. `linger_s`: a send waits up to this many seconds for others to the same topic,
        queue or order key, and goes with them as one batch of at most `batch_bytes`; larger,
        compressed and delayed messages go alone. `memory_max`: most bytes of bodies under way at
        once; further sends wait, except one-way sends, which have their connection's limit.
        `tracing`: observer of sends other than one-way, see `tracing.py`, `rocketbed.otel`.
        """
        check_group(group)
        check_timeout(timeout_s)
        if timeout_s <= 0 or retries < 0:
            raise BadMessage("timeout_s must be positive and retries at least 0")
        self.group = group
        self.timeout_s = timeout_s
        self._session = Session(world, nameservers, groups=self._groups)
        self._world = self._session.world
        if isinstance(select, str):
            try:
                select = make_selector(select, self._world.random.getrandbits(31))
            except ValueError as exc:
                raise BadMessage(str(exc)) from exc
        self._attempts = Attempts(
            self._session,
            group,
            select,
            limit=retries + 1,
            retry_unknown=retry_unknown,
            retry_unsafe=retry_unsafe,
        )
        self._envelopes = Envelopes(self._session, compress, compress_above)
        check_method("tracing", tracing, "sending")
        if not 0 <= linger_s <= timeout_s / 2:
            raise BadMessage(f"linger_s must be from 0 to half of timeout_s: {linger_s}")
        if not 1 <= batch_bytes <= BODY_MAX or memory_max < 1:
            raise BadMessage(f"batch_bytes must be from 1 to {BODY_MAX}, and memory_max at least 1")
        self._linger = None
        if linger_s:
            self._linger = Linger(self._envelopes, linger_s=linger_s, batch_bytes=batch_bytes)
        self._memory = Memory(memory_max)
        self._tracing = tracing

    def _groups(self) -> tuple[list[ProducerData], list[ConsumerData]]:
        return [ProducerData(group_name=self.group), ProducerData(group_name=INNER_GROUP)], []

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._linger is not None:
                await self._linger.flush()
        finally:
            await self._session.__aexit__(kind, error, traceback)

    # --- sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send one message and wait for its outcome.

        It goes to `queue` if given, or to the queue of `order_key`. Otherwise the selector chooses,
        and an attempt after a failure goes to another broker if there is one. Order is kept among
        messages of one queue that are sent one after the other. If this is cancelled the outcome is
        unknown. Raises `BadMessage`.
        """
        message.check()
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        place = message.topic, queue, order_key, limit_s
        pick = self._attempts.picker(message.topic, queue, order_key)
        if self._tracing is None:
            return await self._send_one(message, place, pick)
        with self._tracing.sending((message,), self.group) as sending:
            message = with_properties(message, sending.properties)
            outcome = await self._send_one(message, place, pick)
            sending.ended(outcome)
            return outcome

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send messages of one topic as one batch: all are stored, next to each other, or none is.

        Raises `BadMessage`, also when they are over 4 MiB together.
        """
        envelope = self._envelopes.of_batch(messages)
        pick = self._attempts.picker(envelope.topic, queue, order_key)
        if self._tracing is None:
            return await self._send_whole(envelope, pick, timeout_s)
        with self._tracing.sending(messages, self.group) as sending:
            messages = [with_properties(message, sending.properties) for message in messages]
            envelope = self._envelopes.of_batch(messages)
            outcome = await self._send_whole(envelope, pick, timeout_s)
            sending.ended(outcome)
            return outcome

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> str:
        """Send without waiting for an answer and return the message's id; the outcome is unknown.

        Waits while the broker reads more slowly than messages are sent, up to the client's
        `timeout_s`. Raises `BadMessage`, and `ClientError` or `RemotingError` when no broker
        could be reached.
        """
        self._session.check_entered()
        message.check()
        envelope = self._envelopes.of_one(message)
        route = await self._session.routes.get(message.topic, make=True)
        chosen = self._attempts.picker(message.topic, queue, order_key)(route, None)
        link = await self._session.connections.link(master_of(route, chosen))
        await link.notify(envelope.command(self.group, chosen), timeout_s=self.timeout_s)
        return envelope.message_ids[0]

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the topic's queues that accept messages now. Raises `ClientError`."""
        self._session.check_entered()
        await trio.lowlevel.checkpoint()  # the route may be at hand
        return (await self._session.routes.get(topic, make=True)).writable

    # --- attempts

    async def _send_one(self, message: Message, place: Place, pick: PickQueue) -> Outcome:
        limit_s = place[-1]
        ids = (message.message_id or self._session.unique_key(),)
        message = replace(message, message_id=ids[0])

        async def send(deadline: float) -> Outcome:
            linger = None if self._session.is_closed else self._linger
            if linger is not None and linger.takes(message, deadline - trio.current_time()):
                assert self._session.nursery is not None, "entered"
                deliver = partial(self._attempts.run, pick)
                return await linger.send(
                    message, place, deliver, deadline=deadline, nursery=self._session.nursery
                )
            return await self._attempts.run(pick, self._envelopes.of_one(message), deadline)

        return await self._bounded(len(message.body), ids, limit_s, send)

    async def _send_whole(
        self, envelope: Envelope, pick: PickQueue, timeout_s: float | None
    ) -> Outcome:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        send = partial(self._attempts.run, pick, envelope)
        return await self._bounded(len(envelope.body), envelope.message_ids, limit_s, send)

    async def _bounded(
        self,
        size: int,
        ids: tuple[str, ...],
        limit_s: float,
        send: Callable[[float], Awaitable[Outcome]],
    ) -> Outcome:
        """Send once memory is available, until a deadline."""
        self._session.check_entered()
        deadline = trio.current_time() + limit_s
        granted = None
        with trio.move_on_at(deadline):
            granted = await self._memory.take(size)
        if granted is None:
            reason = f"{self._memory.limit} bytes (memory_max) of other messages were under way for"
            reason += f" {limit_s:g} s"
            return Refused(reason=reason, code=None, message_ids=ids, attempts=0)
        try:
            return await send(deadline)
        finally:
            self._memory.give(granted)
