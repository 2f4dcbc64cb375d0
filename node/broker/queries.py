"""Questions about offsets and single messages: 12, 14, 15, 29 to 33 (wire.md 2.1, 6.5)."""

from collections.abc import Callable
from typing import Final

from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.headers import (
    EarliestStoreTimeResponse,
    MaxOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueryMessageRequest,
    QueryMessageResponse,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
    ViewMessageRequest,
)
from rocketbed.wire.properties import tag_key

UNIQUE_KEY_MAX: Final = 32
"""Most messages in the answer to a query by unique key."""
QUERY_MAX: Final = 64
"""Messages in one answer to a query by key."""
TAG_INDEX: Final = "T"
"""`indexType` of a query by tag; the other types, `K` and `U`, query what is indexed as a key."""
ANSWER_MAX: Final = 8 * 1024 * 1024
"""Bytes of records in one answer to a query; a frame holds 16 MiB."""


def _offset(command: Command, offset: int) -> Command:
    return answer(command, ResponseCode.SUCCESS, None, OffsetResponse(offset=offset).encode())


class Queries:
    """Answers from the store and the table of consumer offsets."""

    def __init__(
        self,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self.gate: Callable[[], str] = str
        """Returns why this node may not answer for positions; empty if it may. As the next two,
        only in a group with failover."""
        self.commits: Callable[[], str] = str
        """Returns why positions are not accepted now; empty if they are."""
        self.reads: Callable[[], str] = str
        """Returns why nothing can be read now; empty if it can."""

    # --- consumer offsets

    def consumer_offset(self, command: Command, connection: Connection) -> Command:
        """14: position of a group in a queue. Raises `HeaderError`."""
        if elsewhere := self.gate():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, elsewhere)
        header = QueryConsumerOffsetRequest.decode(command.raw_fields)
        topic, queue_id = header.topic, header.queueId
        stored = self._offsets.get(header.consumerGroup, topic, queue_id)
        if stored >= 0:
            return _offset(command, stored)
        if header.setZeroIfNotFound is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
        elif self._starts_in_memory(topic, queue_id):
            return _offset(command, 0)
        else:
            remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return answer(command, ResponseCode.QUERY_NOT_FOUND, remark)

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        """True if the queue still has its very first message, and that among the recent ones.

        A new group then starts at 0 whatever it prefers, as upstream.
        """
        try:
            result = self._store.get_messages(topic, queue_id, 0, 1)
        except CorruptRecord:
            return False
        if result.status is not GetStatus.FOUND or result.min_offset > 0:
            return False
        near = self._config.store.memory_bytes
        return not near or self._store.max_offset - result.ranges[0][0] <= near

    def commit_offset(self, command: Command, connection: Connection) -> Command:
        """15: store a group's position. Raises `HeaderError`."""
        if elsewhere := self.commits():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, elsewhere)
        header = UpdateConsumerOffsetRequest.decode(command.raw_fields)
        if self._groups.get(header.consumerGroup) is None:
            remark = f"Group {header.consumerGroup} not exist!"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if self._topics.get(header.topic) is None:
            remark = f"Topic {header.topic} not exist!"
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        if header.queueId < 0:
            remark = f"queueId[{header.queueId}] is illegal"
            return answer(command, ResponseCode.INVALID_PARAMETER, remark)
        self._offsets.commit(
            header.consumerGroup, header.topic, header.queueId, header.commitOffset
        )
        return answer(command, ResponseCode.SUCCESS, None, {})

    # --- bounds

    def max_offset(self, command: Command, connection: Connection) -> Command:
        """30: the next offset of a queue, 0 for an unknown one. Raises `HeaderError`."""
        header = MaxOffsetRequest.decode(command.raw_fields)
        if refusal := self.reads():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        offset = self._store.queue_max(header.topic, header.queueId, committed=header.committed)
        return _offset(command, offset)

    def min_offset(self, command: Command, connection: Connection) -> Command:
        """31: the first offset that is still in a queue; -1 for a batch queue that never had a
        message.

        Raises `HeaderError`.
        """
        header = QueueRequest.decode(command.raw_fields)
        if refusal := self.reads():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        place = header.topic, header.queueId
        is_batch = self._topics.is_batch_queue(header.topic)
        if is_batch and not self._store.queue_max(*place, committed=False):
            return _offset(command, -1)
        return _offset(command, self._store.queue_min(*place))

    async def offset_by_time(self, command: Command, connection: Connection) -> Command:
        """29: a queue offset by store time. Raises `HeaderError`."""
        header = SearchOffsetRequest.decode(command.raw_fields)
        if refusal := self.reads():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        upper = (header.boundaryType or "lower").lower() == "upper"
        offset = await self._store.offset_by_time(
            header.topic, header.queueId, header.timestamp, upper=upper
        )
        return _offset(command, offset)

    async def earliest_time(self, command: Command, connection: Connection) -> Command:
        """32: store time of a queue's first message, -1 when it is empty. Raises `HeaderError`."""
        header = QueueRequest.decode(command.raw_fields)
        time_ms = await self._store.stored_ms(header.topic, header.queueId)
        fields = EarliestStoreTimeResponse(timestamp=time_ms).encode()
        return answer(command, ResponseCode.SUCCESS, None, fields)

    # --- messages

    async def message_by_id(self, command: Command, connection: Connection) -> Command:
        """33: the record at a physical offset. Raises `HeaderError`, `CorruptRecord`."""
        header = ViewMessageRequest.decode(command.raw_fields)
        self._store.refuse_damaged(header.offset)
        hidden = self._config.replica and header.offset >= self._store.dispatched.value
        record = None if hidden or self.reads() else await self._store.record_at(header.offset)
        if record is None:
            remark = f"can not find message by the offset, {header.offset}"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        return answer(command, ResponseCode.SUCCESS, None, None, record)

    async def by_key(self, command: Command, connection: Connection) -> Command:
        """12: records with a key or tag, by topic and time. Raises `HeaderError`."""
        header = QueryMessageRequest.decode(command.raw_fields)
        if refusal := self.reads():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        limit = UNIQUE_KEY_MAX if header.uniqueKeyQuery else QUERY_MAX
        count = max(0, min(header.maxNum, limit))
        is_tag = header.indexType == TAG_INDEX and not header.uniqueKeyQuery
        key = tag_key(header.key) if is_tag else header.key
        result = await self._store.query(
            header.topic, key, count, header.beginTimestamp, header.endTimestamp
        )
        records: list[bytes] = []
        size = 0
        for record in result.records:
            size += len(record)
            if size > ANSWER_MAX and records:
                break
            records.append(record)
        fields = QueryMessageResponse(
            indexLastUpdateTimestamp=result.last_update_ms,
            indexLastUpdatePhyoffset=result.last_update_offset,
        ).encode()
        if not records:
            remark = "can not find message, maybe time range not correct"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return answer(command, ResponseCode.SUCCESS, None, fields, b"".join(records))
