"""Attempts of a send: choice of the queue, time for each attempt, retries, and the meaning of
answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

import trio

from rocketbed.client.envelope import Envelope
from rocketbed.client.errors import BadMessage, ClientError, NoBroker
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
from rocketbed.client.routes import Route
from rocketbed.client.select import QueueSelector, by_hash
from rocketbed.client.session import Session
from rocketbed.remoting.errors import NotConnected, RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command, ResponseCode
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.headers import SendMessageResponse
from rocketbed.world.api import Address

PAUSE_S: Final = 0.05
"""Pause before the second attempt, seconds; it grows by as much with each further one, up to
`PAUSE_MAX_S`."""
PAUSE_MAX_S: Final = 1.0
ATTEMPT_S: Final = 3.0
"""Shortest time of an attempt, seconds: it gets its share of the send's time, but a slave may take
this long to acknowledge."""
NOBODY_TOOK_IT: Final = (None, ResponseCode.SYSTEM_BUSY, *DOUBTFUL_CODES)
"""Codes of refusals where no broker was reached, or the broker was too busy, no longer leads, or
does not lead yet."""
NOT_STORED: Final = "rbNotStored"
"""Property of an answer, rocketbed's own: the message is not stored, although the code leaves that
open."""

PickQueue = Callable[[Route, str | None], MessageQueue]
"""Chooses a queue by the route and the broker that failed last. Raises `NoBroker`."""


class Attempts:
    """Makes the attempts of one producer's sends."""

    def __init__(
        self,
        session: Session,
        group: str,
        selector: QueueSelector,
        *,
        limit: int,
        retry_unknown: bool,
        retry_unsafe: bool,
    ) -> None:
        """`limit`: most attempts of one send that a broker may have accepted."""
        self._session = session
        self._group = group
        self._selector = selector
        self._limit = limit
        self._retry_unknown = retry_unknown
        self._retry_unsafe = retry_unsafe

    def picker(self, topic: str, queue: MessageQueue | None, order_key: str | None) -> PickQueue:
        """Return the function that chooses the queue at each attempt. Raises `BadMessage`."""
        if queue is not None and order_key is not None:
            raise BadMessage("give a queue or an order key, not both")
        if queue is not None:
            if queue.topic != topic:
                raise BadMessage(
                    f"the queue belongs to topic {queue.topic}, the message to topic {topic}"
                )
            return lambda route, avoid: queue
        if order_key is not None:
            if not isinstance(order_key, str):
                raise BadMessage(f"an order key is text, not {order_key!r}")
            return lambda route, avoid: by_hash(_some(route.ordered, topic), order_key)
        return lambda route, avoid: self._selector.choose(
            _some(route.writable, topic), avoid, trio.current_time()
        )

    async def run(self, pick: PickQueue, envelope: Envelope, deadline: float) -> Outcome:
        """Make attempts, at least one, until the outcome is final or the deadline has passed."""
        outcome: Outcome | None = None
        failed_at: str | None = None
        remaining = self._limit
        for attempt in count(1):
            now = trio.current_time()
            share_s = max((deadline - now) / remaining, ATTEMPT_S)
            until = min(now + share_s, deadline)
            latest, broker = await self._try(envelope, pick, failed_at, until, attempt)
            outcome = combined(outcome, latest)
            if self._session.is_closed or not (
                wants_retry(
                    latest, retry_unknown=self._retry_unknown, retry_unsafe=self._retry_unsafe
                )
                or self._is_withdrawn(latest, envelope.topic)
            ):
                break
            failed_at = broker
            self._session.routes.distrust(envelope.topic)
            # No broker accepted it, so it may be offered as long as there is time.
            may_go_on = isinstance(latest, Refused) and latest.code in NOBODY_TOOK_IT
            if not may_go_on or self._limit == 1:
                remaining -= 1
            pause_s = min(PAUSE_S * attempt, PAUSE_MAX_S)
            if not remaining or trio.current_time() + pause_s >= deadline:
                break
            moved = self._session.routes.moved
            with trio.move_on_after(pause_s):
                await moved.wait()
        assert outcome is not None
        return outcome

    def _is_withdrawn(self, outcome: Outcome, topic: str) -> bool:
        """True if the queue may no longer exist, which a newer route tells: the topic may have
        fewer by now."""
        is_illegal = isinstance(outcome, Refused) and outcome.code == ResponseCode.INVALID_PARAMETER
        return is_illegal and self._session.routes.distrust(topic, older_than_s=1.0)

    async def _try(
        self,
        envelope: Envelope,
        pick: PickQueue,
        avoid: str | None,
        deadline: float,
        attempt: int,
    ) -> tuple[Outcome, str | None]:
        """Return an attempt's outcome, and the broker that was asked."""
        ids = envelope.message_ids
        try:
            route = self._session.routes.cached(envelope.topic, make=True)
            if route is None:
                with trio.fail_at(deadline):
                    route = await self._session.routes.get(envelope.topic, make=True)
            queue = pick(route, avoid)
            address = master_of(route, queue)
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
        envelope: Envelope,
        queue: MessageQueue,
        address: Address,
        left_s: float,
        attempt: int,
    ) -> Outcome:
        ids = envelope.message_ids
        try:
            answer = await self._session.ask(
                address, envelope.command(self._group, queue), timeout_s=max(left_s, 0.001)
            )
        except (NotConnected, BadMessage) as exc:
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
    code = getattr(error, "response_code", None)
    return int(code) if code not in (None, ResponseCode.SYSTEM_ERROR) else None


def _some(queues: Sequence[MessageQueue], topic: str) -> Sequence[MessageQueue]:
    if not queues:
        raise NoBroker(
            f"no broker accepts messages for topic {topic} now: no master, or no write permission"
        )
    return queues


def master_of(route: Route, queue: MessageQueue) -> Address:
    """Return the address of the broker that accepts messages for a queue. Raises `NoBroker`."""
    address = route.master(queue.broker_name)
    if address is None:
        raise NoBroker(f"broker {queue.broker_name} of topic {route.topic} has no master now")
    return address


def _read(
    answer: Command, queue: MessageQueue, ids: tuple[str, ...], address: Address, attempts: int
) -> Sent | Refused | Unknown:
    """Return the outcome that an answer means."""
    status = STATUSES.get(answer.code)
    peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
    if status is None:
        reason = f"{peer} answered code {answer.code}: {answer.remark or 'no reason given'}"
        is_doubtful = answer.code in DOUBTFUL_CODES and NOT_STORED not in answer.raw_fields
        kind = Unknown if is_doubtful else Refused
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
