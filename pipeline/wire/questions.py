"""Requests to brokers for the bounds of queues, for many queues at once."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import trio

from rocketbed.client.errors import NoBroker, RequestRefused
from rocketbed.client.routes import MASTER_ID, Route
from rocketbed.client.session import Session
from rocketbed.pipeline.wire.troubles import reading, send_request
from rocketbed.remoting.errors import RemotingError, RequestTimeout
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.bodies_admin import TopicStatsTable
from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.command import Command, RequestCode, request
from rocketbed.wire.headers import MaxOffsetRequest, OffsetResponse, QueueRequest
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.world.api import Address

T = TypeVar("T")

SHARED: Final = "%LMQ%"
"""Prefix of topics whose queues hold records of other topics."""
AT_ONCE: Final = 16
"""Concurrent requests to a cluster."""


class QueueBounds(NamedTuple):
    """Offsets of a queue, in messages."""

    first: int
    """First offset not deleted."""
    end: int
    """Offset after the last message that all answering members have."""
    longest: int
    """Offset after the last message that any of them has."""
    members: int = 1
    """Number of members that answered."""
    silent: tuple[str, ...] = ()
    """Addresses of members on the route that did not answer, and `a master` if none is on it."""
    shortest: str = ""
    """Address of a member that ends at `end`, if not all do."""


async def bounds_now(
    session: Session,
    route: Route,
    queues: Sequence[MessageQueue],
    *,
    others_s: float,
    silent: set[Address],
) -> dict[MessageQueue, QueueBounds]:
    """Return the bounds of queues of one topic at one broker.

    Asks all members at once. After the first answer it waits `others_s` for the others; members
    that hang are added to `silent`, and silent members are skipped while there are others. Raises
    `RequestRefused`, `RemotingError`, `NoBroker` if no member answers.
    """
    answers: dict[Address, dict[MessageQueue, tuple[int, int]]] = {}
    failure: Exception | None = None
    of_broker = route.brokers.get(queues[0].broker_name, {})
    members = list(of_broker.values())
    targets = [one for one in members if one not in silent] or members
    waiting = set(targets)

    async def ask(address: Address) -> None:
        nonlocal failure
        try:
            answers[address] = await _extents(session, queues, address)
            enough.deadline = min(enough.deadline, trio.current_time() + others_s)
        except RequestTimeout as exc:
            failure = exc
            return
        except (RemotingError, RequestRefused) as exc:
            failure = exc
        waiting.discard(address)

    with trio.CancelScope() as enough:
        await together(ask, targets)
    silent.update(waiting)
    if not answers:
        raise failure or NoBroker(f"no broker serves {describe(queues[0])} now")
    missing = tuple(_text(one) for one in members if one not in answers)
    missing += () if MASTER_ID in of_broker else ("a master",)
    bounds = {}
    for queue in queues:
        ends = {address: extents[queue][1] for address, extents in answers.items()}
        first = min(extents[queue][0] for extents in answers.values())
        longest, least = max(ends.values()), min(ends, key=lambda name: ends[name])
        shortest = _text(least) if ends[least] < longest else ""
        bounds[queue] = QueueBounds(first, ends[least], longest, len(ends), missing, shortest)
    return bounds


async def number(session: Session, queue: MessageQueue, address: Address, command: Command) -> int:
    """Send a request and return the offset in the answer. Raises `RequestRefused`,
    `RemotingError`."""
    answer = await send_request(session, address, command)
    if answer.code != ResponseCode.SUCCESS:
        peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
        raise RequestRefused(describe(queue), peer, answer.code, answer.remark)
    with reading(address):
        return OffsetResponse.decode(answer.raw_fields).offset


async def together(
    ask: Callable[[T], Awaitable[object]], items: Iterable[T], *, at_once: int = AT_ONCE
) -> None:
    """Call `ask` for each item, `at_once` of them concurrently. Raises the first error
    unwrapped."""
    limiter = trio.CapacityLimiter(at_once)

    async def run(item: T) -> None:
        async with limiter:
            await ask(item)

    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            for item in items:
                nursery.start_soon(run, item)
    except BaseExceptionGroup as group:
        failure = group.exceptions[0]
    if failure is not None:
        raise failure


def describe(queue: MessageQueue) -> str:
    """Name a queue for people: `queue 3 of topic T at broker-a`."""
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


async def _extents(
    session: Session, queues: Sequence[MessageQueue], address: Address
) -> dict[MessageQueue, tuple[int, int]]:
    """Return (first, end) of queues at one member. The first queue has a request of its own, which
    a member that must not serve readers refuses; the others are in the topic's table."""
    extents = {queues[0]: await _extent(session, queues[0], address)}
    if len(queues) > 1:
        command = request(
            RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=queues[0].topic).encode()
        )
        answer = await send_request(session, address, command)
        if answer.code == ResponseCode.SUCCESS:
            with reading(address):
                table = TopicStatsTable.decode(answer.body).offset_table
            extents |= {
                queue: (max(table[queue].min_offset, 0), max(table[queue].max_offset, 0))
                for queue in queues[1:]
                if queue in table
            }
    for queue in queues:
        if queue not in extents:  # not writable, or the member does not know the topic yet
            extents[queue] = await _extent(session, queue, address)
    return extents


async def _extent(session: Session, queue: MessageQueue, address: Address) -> tuple[int, int]:
    topic, number_, broker = queue.topic, queue.queue_id, queue.broker_name
    least = QueueRequest(topic=topic, queueId=number_, bname=broker).encode()
    most = MaxOffsetRequest(topic=topic, queueId=number_, bname=broker).encode()
    first = await number(session, queue, address, request(RequestCode.GET_MIN_OFFSET, least))
    last = await number(session, queue, address, request(RequestCode.GET_MAX_OFFSET, most))
    return max(first, 0), max(last, 0)
