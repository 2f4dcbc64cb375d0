"""The target cluster of `replay`: checks that it is not the source, and maps queues to its queues.

Each queue of the source is mapped to exactly one queue of the target, which preserves its order: to
the queue with the same broker name and number if it exists, else to the next queue in turn.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from rocketbed.client.admin import Admin
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.routes import Route, route_of
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.sink.markers import TOPIC_PREFIX
from rocketbed.pipeline.wire.log import WireLog
from rocketbed.pipeline.wire.questions import describe
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.message import decode_messages

T = TypeVar("T")

SYSTEM_TOPICS: Final = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_",
    "rmq_sys_",
    "%RETRY%",
    "%DLQ%",
    "TBW102",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "SELF_TEST_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    TOPIC_PREFIX,
)
"""Prefixes of topics that belong to a cluster: their content means nothing in another cluster.
Markers of exactly-once jobs are among them, since they name places of their own cluster."""
LOOK_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceQueue:
    """Replayed range of a queue. Offsets in messages, times in milliseconds since 1970."""

    broker: str
    topic: str
    queue_id: int
    messages: int
    bytes: int
    first_offset: int
    last_offset: int
    first_ms: int
    last_ms: int
    last_position: int
    """Physical offset of the last message."""
    last_stored_ms: int
    """Store time of that message; less than `last_ms` if a clock was set back."""


def live_topics(endpoints: str) -> list[str]:
    """Return the user topics of a cluster. Raises `PipelineError`."""

    async def ask(admin: Admin) -> list[str]:
        info = await admin.cluster()
        own = {*info.cluster_addr_table, *info.broker_addr_table}
        own |= {f"{cluster}_REPLY_TOPIC" for cluster in info.cluster_addr_table}
        topics = await admin.topics()
        return [
            topic for topic in topics if topic not in own and not topic.startswith(SYSTEM_TOPICS)
        ]

    return _with_admin(endpoints, ask)


def refuse_same_brokers(source: str, target: str) -> None:
    """Raise `WrongUsage` if two clusters share a broker, by its address."""

    async def ask(admin: Admin) -> set[str]:
        brokers = (await admin.cluster()).broker_addr_table.values()
        return {address for broker in brokers for address in broker.broker_addrs.values()}

    if shared := _with_admin(source, ask) & _with_admin(target, ask):
        raise WrongUsage(
            f"the target {target} is the source: both have the broker at {min(shared)};"
            " replay into a different cluster"
        )


def prepare_topics(
    target: str, queues: Sequence[SourceQueue], *, create: bool
) -> dict[str, tuple[MessageQueue, ...]]:
    """Return the target's writable queues by topic; `create` missing topics.

    Raises `WrongUsage` for missing topics, and if the target is the source itself;
    `PipelineError` for a topic that accepts no messages.
    """
    needed: dict[str, int] = {}
    for queue in queues:
        needed[queue.topic] = max(needed.get(queue.topic, 0), queue.queue_id + 1)
    routes = _with_admin(target, lambda admin: _routes(admin, needed))
    _refuse_same_messages(target, queues, routes)
    if missing := sorted(needed.keys() - routes):
        if not create:
            raise WrongUsage(
                f"the target {target} has no topic {', '.join(missing)}: create them with"
                " --create-topics, with as many queues as in the source"
            )

        async def make(admin: Admin) -> None:
            for topic in missing:
                await admin.create_topic(topic, queues=needed[topic])

        _with_admin(target, make)
        routes |= _with_admin(target, lambda admin: _routes(admin, missing))
    for topic in needed:
        if topic not in routes or not routes[topic].writable:
            raise PipelineError(
                f"topic {topic} of {target} accepts no messages now: see `rocketbed topic route`"
            )
    return {topic: routes[topic].writable for topic in needed}


def matched(
    queues: Sequence[SourceQueue], writable: Mapping[str, Sequence[MessageQueue]]
) -> list[MessageQueue]:
    """Return the target's queue for each queue of the source."""
    targets: list[MessageQueue] = []
    dealt: dict[str, int] = {}
    for queue in queues:
        choice = sorted(
            writable[queue.topic], key=lambda target: (target.queue_id, target.broker_name)
        )
        alike = [
            candidate
            for candidate in choice
            if (candidate.broker_name, candidate.queue_id) == (queue.broker, queue.queue_id)
        ]
        if not alike:
            number = dealt[queue.topic] = dealt.get(queue.topic, -1) + 1
            alike = [choice[number % len(choice)]]
        targets.append(alike[0])
    return targets


async def _routes(admin: Admin, topics: Iterable[str]) -> dict[str, Route]:
    routes: dict[str, Route] = {}
    for topic in topics:
        data = await admin.route(topic)
        if data is not None and data.queue_datas:
            routes[topic] = route_of(topic, data)
    return routes


def _refuse_same_messages(
    target: str, queues: Sequence[SourceQueue], routes: Mapping[str, Route]
) -> None:
    """Raise `WrongUsage` if the target has the source's last message at the same place."""
    last = {
        candidate.topic: candidate
        for candidate in sorted(queues, key=lambda queue: queue.last_offset)
    }

    async def look() -> tuple[MessageQueue, int] | None:
        async with WireLog(target, limit_s=LOOK_S) as log:
            for topic, queue in last.items():
                alike = [
                    candidate
                    for candidate in (routes[topic].readable if topic in routes else ())
                    if candidate.queue_id == queue.queue_id
                ]
                for candidate in alike:
                    if await _has_last_message(log, candidate, queue):
                        return candidate, queue.last_offset
        return None

    if match := trio.run(look):
        queue, offset = match
        raise WrongUsage(
            f"the target {target} is the source, or a copy of it: {describe(queue)} has the same"
            f" message at offset {offset}; replay into a different cluster"
        )


async def _has_last_message(log: WireLog, queue: MessageQueue, source: SourceQueue) -> bool:
    bounds = await log.bounds(queue)
    if not bounds.first <= source.last_offset < bounds.longest:
        return False
    pulled = await log.pull(queue, source.last_offset, count=1)
    try:
        messages = decode_messages(pulled.records)
    except ProtocolError as error:
        raise PipelineError(f"{queue.topic} at {queue.broker_name}: {error}") from error
    place = source.last_offset, source.last_position, source.last_stored_ms
    return any(
        (message.queue_offset, message.physical_offset, message.store_timestamp) == place
        for message in messages
    )


def _with_admin(endpoints: str, ask: Callable[[Admin], Awaitable[T]]) -> T:
    """Query a cluster. Raises `PipelineError`, `WrongUsage` for malformed addresses."""

    async def run() -> T:
        async with Admin(nameservers=endpoints) as admin:
            return await ask(admin)

    try:
        return trio.run(run)
    except BadMessage as error:
        raise WrongUsage(str(error)) from error
    except (ClientError, RemotingError) as error:
        raise PipelineError(f"the cluster at {endpoints}: {error}") from error
