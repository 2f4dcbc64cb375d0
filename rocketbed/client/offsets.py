"""Queries of a queue's offsets: 14, 15, 29, 30, 31 (wire.md 2.1, 6.5)."""

from typing import Final

import trio

from rocketbed.client.arguments import check_offset, check_queue, check_time
from rocketbed.client.errors import NoBroker, RequestRefused, reading
from rocketbed.client.pulls import describe
from rocketbed.client.routes import MASTER_ID
from rocketbed.client.session import Session
from rocketbed.remoting.errors import ConnectionLost, NotConnected, RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.headers import (
    MaxOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from rocketbed.world.api import Address

TIMEOUT_S: Final = 3.0
AGAIN_S: Final = 0.2
"""Pause before a query is repeated at a broker that could not be asked, seconds."""


class QueueOffsets:
    """Queries the broker of a queue, preferably its master."""

    def __init__(self, session: Session, *, timeout_s: float = TIMEOUT_S) -> None:
        self._session = session
        self.answered: dict[MessageQueue, Address] = {}
        """Address that answered the last query of each queue."""
        self._timeout_s = timeout_s

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset of a queue; None when it never committed.

        Raises `ClientError`, `RemotingError`, as all methods here.
        """
        check_queue(queue)
        header = QueryConsumerOffsetRequest(
            consumerGroup=group,
            topic=queue.topic,
            queueId=queue.queue_id,
            setZeroIfNotFound=False,
            bname=queue.broker_name,
        )
        command = request(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
        answer = await self._ask(queue, command, "committed offset")
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        with reading("committed offset", queue.broker_name):
            offset = OffsetResponse.decode(answer.raw_fields).offset
        return offset if offset >= 0 else None

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit a group's offset of a queue. Raises `NoBroker` without a master, `BadMessage`."""
        check_offset(offset)
        check_queue(queue)
        header = UpdateConsumerOffsetRequest(
            consumerGroup=group,
            topic=queue.topic,
            queueId=queue.queue_id,
            commitOffset=offset,
            bname=queue.broker_name,
        )
        command = request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
        await self._ask(queue, command, "commit", master_only=True)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that the queue still has; brokers answer -1 for an empty batch
        queue."""
        check_queue(queue)
        header = QueueRequest(topic=queue.topic, queueId=queue.queue_id, bname=queue.broker_name)
        command = request(RequestCode.GET_MIN_OFFSET, header.encode())
        return max(await self._offset(queue, command, "first offset"), 0)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message gets."""
        check_queue(queue)
        header = MaxOffsetRequest(
            topic=queue.topic, queueId=queue.queue_id, bname=queue.broker_name
        )
        return await self._offset(
            queue, request(RequestCode.GET_MAX_OFFSET, header.encode()), "end"
        )

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at or after a wall time in milliseconds.
        Raises also `BadMessage`."""
        check_time(time_ms)
        check_queue(queue)
        header = SearchOffsetRequest(
            topic=queue.topic,
            queueId=queue.queue_id,
            timestamp=time_ms,
            boundaryType="LOWER",
            bname=queue.broker_name,
        )
        command = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
        return await self._offset(queue, command, "offset of a time")

    async def _offset(self, queue: MessageQueue, command: Command, action: str) -> int:
        answer = await self._ask(queue, command, action)
        with reading(action, queue.broker_name):
            return OffsetResponse.decode(answer.raw_fields).offset

    async def _ask(
        self, queue: MessageQueue, command: Command, action: str, *, master_only: bool = False
    ) -> Command:
        """Send a query, which is repeated when the connection breaks or the broker no longer leads;
        all queries here may be sent twice."""
        deadline = trio.current_time() + self._timeout_s
        while True:
            moved = self._session.routes.moved
            try:
                return await self._ask_once(queue, command, action, master_only=master_only)
            except (NoBroker, NotConnected, ConnectionLost, RequestRefused) as exc:
                refused = getattr(exc, "code", ResponseCode.SERVICE_NOT_AVAILABLE)
                if refused != ResponseCode.SERVICE_NOT_AVAILABLE:
                    raise
                if trio.current_time() + AGAIN_S > deadline:
                    raise
            with trio.move_on_after(AGAIN_S):
                await moved.wait()

    async def _ask_once(
        self, queue: MessageQueue, command: Command, action: str, *, master_only: bool
    ) -> Command:
        route = await self._session.routes.get(queue.topic)
        member = route.member(queue.broker_name, MASTER_ID)
        if member is None or (master_only and member[0] != MASTER_ID):
            self._session.routes.distrust(queue.topic)
            kind = "master" if master_only else "broker"
            raise NoBroker(f"{action} of {describe(queue)}: no {kind} serves it now")
        address = member[1]
        try:
            answer = await self._session.ask(address, command, timeout_s=self._timeout_s)
        except RemotingError:
            self._session.routes.distrust(queue.topic)
            raise
        self.answered[queue] = address
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._session.routes.distrust(queue.topic)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
            raise RequestRefused(f"{action} of {describe(queue)}", peer, answer.code, answer.remark)
        return answer
