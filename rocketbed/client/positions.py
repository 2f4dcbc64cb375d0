"""Positions of consumer groups in a whole cluster: names, lag, reset (wire.md 2.3, 2.7, 6.7).

Each broker keeps the positions in its own queues, so each master is asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError, NoRoute, NotFound, reading
from rocketbed.wire.bodies import PERM_READ, ConsumerOffsetTable, MessageQueue
from rocketbed.wire.bodies_admin import ConsumeStats, QueueOffsets
from rocketbed.wire.command import RequestCode
from rocketbed.wire.headers_admin import ConsumeStatsRequest, ResetOffsetRequest

LATEST_MS: Final = -1
"""Time that stands for the end of a queue in a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """A group's position in a queue."""

    queue: MessageQueue
    end: int
    position: int | None
    """Offset of the next message that the group gets; None if it has no position."""
    consumed_ms: int | None
    """Store time of the last message before the position, milliseconds; None if unknown."""

    @property
    def lag(self) -> int | None:
        """Messages that the group has not consumed; None without a position."""
        return None if self.position is None else max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReset:
    """A group's position in a queue, and the one that it is to get."""

    queue: MessageQueue
    position: int | None
    target: int


async def groups_with_topics(admin: Admin) -> dict[str, list[str]]:
    """Return each group that a broker knows, or that has positions, with the topics of these."""
    topics: dict[str, set[str]] = {name: set() for name in await admin.groups()}
    for address in (await admin.masters()).values():
        for key in (await _positions(admin, address)).offset_table:
            topic, _, group = key.rpartition("@")
            topics.setdefault(group, set()).add(topic)
    return {group: sorted(names) for group, names in sorted(topics.items())}


async def group_lag(admin: Admin, group: str, topic: str | None = None) -> list[QueueLag]:
    """Return the lag of a group in each queue of its topics, or of one topic. Raises `NotFound`
    for an unknown group."""
    if group not in await groups_with_topics(admin):
        raise NotFound(f"no broker knows group {group}: `rocketbed group list` shows all")
    header = ConsumeStatsRequest(consumerGroup=group, topic=topic)
    lags = []
    for name, address in (await admin.masters()).items():
        positions = (await _positions(admin, address)).offset_table
        what = f"lag of group {group} at {name}"
        answer = await admin.ask(address, RequestCode.GET_CONSUME_STATS, header, what=what)
        with reading(what, address):
            stats = ConsumeStats.decode(answer.body)
        for queue, offset in stats.offset_table.items():
            position = positions.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)
            is_dated = position is not None and offset.last_timestamp > 0
            lags.append(
                QueueLag(
                    queue=queue,
                    end=offset.broker_offset,
                    position=position,
                    consumed_ms=offset.last_timestamp if is_dated else None,
                )
            )
    return sorted(lags, key=_place)


async def plan_reset(
    admin: Admin, group: str, topic: str, *, time_ms: int = LATEST_MS, offset: int | None = None
) -> list[QueueReset]:
    """Return what a reset would do in each queue of a topic. Changes nothing.

    The target is `offset`, as far as the queue has it, else the first message stored at or after
    `time_ms`: 0 for the first, `LATEST_MS` for the end. Raises `NotFound`, `NoRoute`.
    """
    route = await admin.route(topic)
    if route is None:
        raise NoRoute(f"topic {topic} does not exist: `rocketbed topic list` shows all")
    positions = {row.queue: row.position for row in await group_lag(admin, group, topic)}
    resets = []
    for queues in sorted(route.queue_datas, key=lambda item: item.broker_name):
        for number in range(queues.read_queue_nums if queues.perm & PERM_READ else 0):
            queue = MessageQueue(topic=topic, broker_name=queues.broker_name, queue_id=number)
            first = await admin.offsets.min_offset(queue)
            end = await admin.offsets.max_offset(queue)
            if offset is not None:
                target = min(max(offset, first), end)
            elif time_ms == LATEST_MS:
                target = end
            else:
                target = await admin.offsets.offset_at(queue, time_ms)
            resets.append(QueueReset(queue=queue, position=positions.get(queue), target=target))
    return resets


async def reset_positions(
    admin: Admin, group: str, resets: Iterable[QueueReset], *, time_ms: int = LATEST_MS
) -> None:
    """Give a group its new positions, at the masters; its members need not be stopped.

    Raises `ClientError` if a broker sets another position, as those before RocketMQ 5 may, which
    know only the time.
    """
    masters = await admin.masters()
    for row in resets:
        queue = row.queue
        if queue.broker_name not in masters:
            raise ClientError(f"broker {queue.broker_name} has no master now: reset again later")
        header = ResetOffsetRequest(
            topic=queue.topic,
            group=group,
            timestamp=time_ms,
            isForce=True,
            queueId=queue.queue_id,
            offset=row.target,
        )
        place = f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
        what, code = f"reset of group {group} in {place}", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await admin.ask(masters[queue.broker_name], code, header, what=what)
        with reading(what, masters[queue.broker_name]):
            position = QueueOffsets.decode(answer.body).offset_table.get(queue)
        if position != row.target:
            raise ClientError(f"{what}: the broker set {position} instead of {row.target}")


def _place(row: QueueLag) -> tuple[str, str, int]:
    return row.queue.topic, row.queue.broker_name, row.queue.queue_id


async def _positions(admin: Admin, address: str) -> ConsumerOffsetTable:
    what = "positions of groups"
    answer = await admin.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, what=what)
    with reading(what, address):
        return ConsumerOffsetTable.decode(answer.body)
