"""Sending messages, and telling honestly how each send ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType
from typing import Final, Self

import trio

from rocketbed.client.errors import BadMessage, ClientError, NoBroker
from rocketbed.client.messages import BODY_MAX, Message, check_group
from rocketbed.client.outcome import (
    DOUBTFUL_CODES,
    STATUSES,
    Outcome,
    Refused,
    Sent,
    Unknown,
    combined,
    wants_retry,
)
from rocketbed.client.routes import DEFAULT_QUEUES, DEFAULT_TOPIC, Route
from rocketbed.client.select import Choice, QueueSelector, by_hash, make_selector
from rocketbed.client.session import Session
from rocketbed.remoting.errors import NotConnected, RemotingError
from rocketbed.wire.bodies import ConsumerData, MessageQueue, ProducerData
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import LocalProtocolError, ProtocolError
from rocketbed.wire.headers import SendMessageResponse, SendMessageV2Request
from rocketbed.wire.message import BatchItem, encode_batch
from rocketbed.world.api import Address, World

TIMEOUT_S: Final = 3.0
"""For one send with all its attempts (wire.md 1.8)."""
RETRIES: Final = 2
"""Further attempts after the first (wire.md 4.3)."""
PAUSE_S: Final = 0.05
"""Before the second attempt; grows by as much with each further one, up to `PAUSE_MAX_S`."""
PAUSE_MAX_S: Final = 1.0
ATTEMPT_S: Final = 3.0
"""An attempt gets its share of a send's time, but at least this: a slave may take that long."""
NOBODY_TOOK_IT: Final = (None, ResponseCode.SYSTEM_BUSY)
"""No broker was reached, or one was too busy."""
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""A group that every Java client also registers (wire.md 6.2)."""

PickQueue = Callable[[Route, str | None], MessageQueue]
"""Route and the broker that failed last -> queue. Raises `NoBroker`."""


@dataclass(frozen=True, slots=True)
class _Envelope:
    """What stays the same over all attempts of a send."""

    topic: str
    code: RequestCode
    body: bytes
    properties: str
    flag: int
    message_ids: tuple[str, ...]
    born_ms: int


class Producer:
    """Sends messages. `async with Producer(nameservers="host:9876") as producer: ...`

    A send is tried again, with the same message id, where another broker or another moment may
    help: for all of `timeout_s` while no broker takes it, and otherwise in `retries` further
    attempts, each with its share of the time (3 s at least). As with Java's producer that includes
    sends whose outcome is unknown, so a message can be stored twice; with `retry_unknown=False` it
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
    ) -> None:
        """Nothing is connected yet. Raises `BadMessage` for arguments that cannot be used.

        `retry_unsafe`: also try again what was stored but not yet flushed or copied in time
        (`retryAnotherBrokerWhenNotStoreOK`). `select`: how queues are chosen, see `select.py`.
        """
        check_group(group)
        if timeout_s <= 0 or retries < 0:
            raise BadMessage("timeout_s must be positive and retries at least 0")
        self.group = group
        self.timeout_s = timeout_s
        self._attempts = retries + 1
        self._retry_unknown = retry_unknown
        self._retry_unsafe = retry_unsafe
        self._session = Session(world, nameservers, groups=self._groups)
        self._world = self._session.world
        if isinstance(select, str):
            try:
                select = make_selector(select, self._world.random.getrandbits(31))
            except ValueError as exc:
                raise BadMessage(str(exc)) from exc
        self._selector = select

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

        With `queue` it goes there, with `order_key` to the queue of that key; otherwise the
        selector chooses, and an attempt after a failure goes to another broker if there is one.
        Order holds among messages of one queue that are sent one after the other. When this is
        cancelled the outcome is unknown. Raises `BadMessage`.
        """
        message.check()
        envelope = self._envelope(message)
        pick = self._picker(message.topic, queue, order_key)
        return await self._deliver(envelope, pick, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send messages of one topic as one: all are stored, next to each other, or none is.

        Raises `BadMessage`, also when they are over 4 MiB together.
        """
        envelope = self._batch(messages)
        pick = self._picker(envelope.topic, queue, order_key)
        return await self._deliver(envelope, pick, timeout_s)

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> str:
        """Send without an answer; the message's id. Whether it was stored stays unknown.

        Waits while the broker takes less than is sent, up to the client's `timeout_s`. Raises
        `BadMessage`, and `ClientError` or `RemotingError` when there was no one to send to.
        """
        message.check()
        envelope = self._envelope(message)
        route = await self._session.routes.get(message.topic, make=True)
        chosen = self._picker(message.topic, queue, order_key)(route, None)
        link = await self._session.connections.link(_master(route, chosen))
        await link.notify(self._command(envelope, chosen), timeout_s=self.timeout_s)
        return envelope.message_ids[0]

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The topic's queues that take messages now. Raises `ClientError`."""
        return (await self._session.routes.get(topic, make=True)).writable

    # --- what is sent

    def _envelope(self, message: Message) -> _Envelope:
        key = message.message_id or self._session.unique_key()
        return _Envelope(
            message.topic,
            RequestCode.SEND_MESSAGE_V2,
            message.body,
            message.properties_text(key),
            message.flag,
            (key,),
            self._world.clock.wall_ms(),
        )

    def _batch(self, messages: Sequence[Message]) -> _Envelope:
        if not messages or any(message.topic != messages[0].topic for message in messages):
            raise BadMessage("a batch must contain at least one message, all of the same topic")
        items = []
        keys = []
        for message in messages:
            message.check()
            if message.delay_level:
                raise BadMessage("messages of a batch cannot be delayed: send them one by one")
            keys.append(message.message_id or self._session.unique_key())
            properties = message.properties_text(keys[-1]).encode()
            items.append(BatchItem(message.body, message.flag, properties))
        body = encode_batch(items)
        if len(body) > BODY_MAX:
            raise BadMessage(
                f"the batch takes {len(body)} bytes; the limit is {BODY_MAX}: split it"
            )
        whole = Message(messages[0].topic, body)
        return _Envelope(
            whole.topic,
            RequestCode.SEND_BATCH_MESSAGE,
            body,
            whole.properties_text(self._session.unique_key()),
            0,
            tuple(keys),
            self._world.clock.wall_ms(),
        )

    def _command(self, envelope: _Envelope, queue: MessageQueue) -> Command:
        header = SendMessageV2Request(
            a=self.group,
            b=envelope.topic,
            c=DEFAULT_TOPIC,
            d=DEFAULT_QUEUES,
            e=queue.queue_id,
            f=0,
            g=envelope.born_ms,
            h=envelope.flag,
            i=envelope.properties,
            j=0,
            k=False,
            m=envelope.code == RequestCode.SEND_BATCH_MESSAGE,
            n=queue.broker_name,
        )
        return request(envelope.code, header.encode(), envelope.body)

    def _picker(self, topic: str, queue: MessageQueue | None, order_key: str | None) -> PickQueue:
        if queue is not None and order_key is not None:
            raise BadMessage("give a queue or an order key, not both")
        if queue is not None:
            if queue.topic != topic:
                raise BadMessage(
                    f"the queue belongs to topic {queue.topic}, the message to topic {topic}"
                )
            return lambda route, avoid: queue
        if order_key is not None:
            return lambda route, avoid: by_hash(_some(route.ordered, topic), order_key)
        return lambda route, avoid: self._selector.choose(
            _some(route.writable, topic), avoid, trio.current_time()
        )

    # --- attempts

    async def _deliver(
        self, envelope: _Envelope, pick: PickQueue, timeout_s: float | None
    ) -> Outcome:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = trio.current_time() + limit_s
        outcome: Outcome | None = None
        failed_at: str | None = None
        left = self._attempts
        for attempt in count(1):
            now = trio.current_time()
            share_s = max((deadline - now) / left, ATTEMPT_S)
            until = min(now + share_s, deadline)
            latest, broker = await self._attempt(envelope, pick, failed_at, until, attempt)
            outcome = combined(outcome, latest)
            if not wants_retry(
                latest, retry_unknown=self._retry_unknown, retry_unsafe=self._retry_unsafe
            ):
                break
            failed_at = broker
            self._session.routes.distrust(envelope.topic)
            # Nobody took it, so that it may be offered as long as there is time.
            may_go_on = isinstance(latest, Refused) and latest.code in NOBODY_TOOK_IT
            if not may_go_on or self._attempts == 1:
                left -= 1
            pause_s = min(PAUSE_S * attempt, PAUSE_MAX_S)
            if not left or trio.current_time() + pause_s >= deadline:
                break
            await trio.sleep(pause_s)
        assert outcome is not None
        return outcome

    async def _attempt(
        self,
        envelope: _Envelope,
        pick: PickQueue,
        avoid: str | None,
        deadline: float,
        attempt: int,
    ) -> tuple[Outcome, str | None]:
        """One attempt's outcome, and the broker that was asked."""
        ids = envelope.message_ids
        try:
            route = self._session.routes.known(envelope.topic, make=True)
            if route is None:
                with trio.fail_at(deadline):
                    route = await self._session.routes.get(envelope.topic, make=True)
            queue = pick(route, avoid)
            address = _master(route, queue)
        except (ClientError, ProtocolError) as exc:
            code = None if isinstance(exc, NoBroker) else _code_of(exc)
            refused = Refused(reason=str(exc), code=code, message_ids=ids, attempts=attempt)
            return refused, None
        except trio.TooSlowError:
            reason = f"no route for topic {envelope.topic} within the timeout"
            return Refused(reason=reason, code=None, message_ids=ids, attempts=attempt), None
        began = trio.current_time()
        outcome = await self._exchange(envelope, queue, address, deadline - began, attempt)
        if route.is_template:
            self._session.routes.distrust(envelope.topic)
        elif isinstance(outcome, Refused) and outcome.code == ResponseCode.INVALID_PARAMETER:
            # The queue is not there any more: the topic was made again with fewer.
            self._session.routes.distrust(envelope.topic, older_than_s=1.0)
        now = trio.current_time()
        self._selector.record(
            queue.broker_name,
            (now - began) * 1000,
            failed=not isinstance(outcome, Sent),
            now_s=now,
        )
        return outcome, queue.broker_name

    async def _exchange(
        self,
        envelope: _Envelope,
        queue: MessageQueue,
        address: Address,
        left_s: float,
        attempt: int,
    ) -> Outcome:
        ids = envelope.message_ids
        try:
            answer = await self._session.ask(
                address, self._command(envelope, queue), timeout_s=max(left_s, 0.001)
            )
        except (NotConnected, LocalProtocolError) as exc:
            return Refused(reason=str(exc), code=None, message_ids=ids, attempts=attempt)
        except RemotingError as exc:
            return Unknown(reason=str(exc), code=None, message_ids=ids, attempts=attempt)
        if answer.code == ResponseCode.GO_AWAY:
            self._session.connections.close(address)
        return _read(answer, queue, ids, address, attempt)


def _code_of(error: Exception) -> int | None:
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return code
    found = getattr(error, "response_code", None)
    return int(found) if found not in (None, ResponseCode.SYSTEM_ERROR) else None


def _some(queues: Sequence[MessageQueue], topic: str) -> Sequence[MessageQueue]:
    if not queues:
        raise NoBroker(
            f"no broker accepts messages for topic {topic} now: no master, or no write permission"
        )
    return queues


def _master(route: Route, queue: MessageQueue) -> Address:
    address = route.master(queue.broker_name)
    if address is None:
        raise NoBroker(f"broker {queue.broker_name} of topic {route.topic} has no master now")
    return address


def _read(
    answer: Command, queue: MessageQueue, ids: tuple[str, ...], address: Address, attempts: int
) -> Sent | Refused | Unknown:
    """What an answer means."""
    status = STATUSES.get(answer.code)
    peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
    if status is None:
        reason = f"{peer} answered code {answer.code}: {answer.remark or 'no reason given'}"
        kind = Unknown if answer.code in DOUBTFUL_CODES else Refused
        return kind(reason=reason, code=answer.code, message_ids=ids, attempts=attempts)
    try:
        header = SendMessageResponse.decode(answer.raw_fields)
    except ProtocolError as exc:
        reason = f"{peer} stored the message but its response cannot be decoded: {exc}"
        return Unknown(reason=reason, code=answer.code, message_ids=ids, attempts=attempts)
    if header.queueId not in (None, queue.queue_id):
        queue = replace(queue, queue_id=header.queueId)
    return Sent(
        status=status,
        message_ids=ids,
        offset_ids=tuple((header.msgId or "").split(",")) if header.msgId else (),
        queue=queue,
        queue_offset=-1 if header.queueOffset is None else header.queueOffset,
        attempts=attempts,
    )
