"""Pulls: 11 and 361 (wire.md 5.1 to 5.6)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from rocketbed.node.broker.clients import BROADCASTING, Clients
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.long_polling import LongPoll, LongPolls
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.subscriptions import BadExpression, is_tag_type, parse_tags
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.picker import GetResult
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import PERM_READ, SubscriptionGroupConfig, TopicConfig
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.frame import encode_head
from rocketbed.wire.headers import PullMessageRequest

COMMIT_OFFSET: Final = 0x1
SUSPEND: Final = 0x2
SUBSCRIPTION: Final = 0x4
WAIT_MAX_MS: Final = 120_000
"""Longest wait a client may ask for; idle connections are closed after that."""
MASTER_ID: Final = 0
ALL: Final = 1 << 31
"""More messages than any client asks for."""

PULL_CODES: Final[dict[GetStatus, ResponseCode]] = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
"""The last two are PULL_NOT_FOUND when offset 0 was requested."""
BEYOND: Final = (
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
    GetStatus.NO_MESSAGE_IN_QUEUE,
)


class _Refused(RocketbedError):
    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A pull that passed the checks."""

    topic: TopicConfig
    group: SubscriptionGroupConfig
    tag_codes: frozenset[int] | None


class Puller:
    def __init__(
        self,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self.polls = LongPolls(
            limit=config.long_polls_max, queue_max=store.queue_max, execute=self._execute_again
        )
        store.on_arrival.append(self.polls.on_arrival)
        topics.on_change.append(self._changed)
        self.is_master_alive: Callable[[], bool] = lambda: False
        """On a slave: True if a master serves the group, so that readers should go there."""
        self.elsewhere: Callable[[], str] = str
        """Returns why positions are not accepted now; empty if they are."""
        self.gate: Callable[[], str] = str
        """Returns why nothing can be read now, in a group with failover; empty if it can."""
        self.served = 0
        """Messages sent to readers since the start."""
        self.missed = 0
        """Pulls that found nothing since the start."""

    def handle(self, command: Command, connection: Connection) -> Command | None:
        """Answer a pull, or let it wait. Raises `HeaderError`."""
        if command.is_oneway:
            return None
        return self._execute(command, connection, may_wait=True)

    def _execute_again(self, pull: LongPoll) -> None:
        command, connection = pull.command, pull.connection
        try:
            response = self._execute(command, connection, may_wait=False, outlived=pull.outlived)
        except Exception as exc:
            response = connection.failure(command, exc)
        connection.reply(command, response)

    def _execute(
        self,
        command: Command,
        connection: Connection,
        *,
        may_wait: bool,
        most: int = ALL,
        outlived: bool = False,
    ) -> Command | None:
        header = PullMessageRequest.decode(command.raw_fields)
        if refusal := self.gate():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        try:
            allowed = self._check(command, header)
        except _Refused as exc:
            return answer(command, exc.code, str(exc))
        place = header.consumerGroup, header.topic, header.queueId
        target = self._offsets.reset_of(*place, header.queueOffset)
        if target is None and outlived and header.queueOffset and not self._config.is_slave:
            # All messages of the queue came after the deletion: the reader would skip them.
            target = self._store.queue_min(*place[1:])
        if target is not None:
            moved = GetResult(
                status=GetStatus.OFFSET_RESET,
                next_offset=target,
                min_offset=self._store.queue_min(*place[1:]),
                max_offset=self._store.queue_max(*place[1:]),
            )
            return _response(command, ResponseCode.PULL_OFFSET_MOVED, MASTER_ID, moved, allowed)
        result = self._store.get_messages(
            header.topic,
            header.queueId,
            header.queueOffset,
            min(max(header.maxMsgNums, 1), most),
            max_bytes=header.maxMsgBytes if (header.maxMsgBytes or 0) > 0 else None,
            tag_codes=allowed.tag_codes,
        )
        if self._is_not_visible_yet(header, result):
            result = replace(
                result, status=GetStatus.OFFSET_OVERFLOW_ONE, next_offset=header.queueOffset
            )
        commits = may_wait and header.sysFlag & COMMIT_OFFSET and not self._config.is_slave
        if commits and not self.elsewhere():
            self._offsets.commit(*place, header.commitOffset)
        self._offsets.pull(*place, header.queueOffset)
        code, suggested = self._outcome(header, result, allowed.group)
        if code == ResponseCode.PULL_NOT_FOUND and may_wait and header.sysFlag & SUSPEND:
            pull = self._long_poll(command, connection, header, allowed)
            if self.polls.add(header.topic, header.queueId, pull):
                return None
        if code == ResponseCode.SUCCESS and connection.is_full:
            # Many long polls of a peer that does not read, woken at once: it can ask again.
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            result = replace(
                result, status=GetStatus.NO_MATCHED_MESSAGE, next_offset=header.queueOffset
            )
            return _response(command, code, suggested, result, allowed)
        response = _response(command, code, suggested, result, allowed)
        if code != ResponseCode.SUCCESS:
            self.missed += 1
            return response
        return self._send_records(response, connection, result, command)

    def _changed(self, topics: list[str]) -> None:
        if self._config.is_slave:  # the ends of a lagging copy say nothing
            return
        for name in topics:
            if (config := self._topics.get(name)) is None:
                self.polls.topic_deleted(name)
            else:
                self.polls.topic_recreated(name, config.read_queue_nums)

    # --- checks

    def _check(self, command: Command, header: PullMessageRequest) -> _Allowed:
        """Make RocketMQ's checks in its order (wire.md 5.2)."""
        config, topic_name = self._config, header.topic
        if not config.broker_permission & PERM_READ:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{config.ip1}] pulling message is forbidden"
            )
        if command.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull:
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.ip1}] for lite pull consumer is forbidden",
            )
        group = self._groups.find_or_create(header.consumerGroup)
        if group is None:
            raise _Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumerGroup}] does not exist",
            )
        if not group.consume_enable:
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumerGroup}",
            )
        topic = self._topics.get(topic_name)
        if topic is None:
            raise _Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic_name}] not exist, apply first please!"
            )
        if not topic.perm & PERM_READ:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] pulling message is forbidden"
            )
        if not 0 <= header.queueId < topic.read_queue_nums:
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queueId}] is illegal, topic:[{topic_name}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        if header.sysFlag & SUBSCRIPTION:
            codes = self._own_filter(header)
        else:
            codes = self._group_filter(header, group)
        return _Allowed(topic, group, codes)

    def _own_filter(self, header: PullMessageRequest) -> frozenset[int] | None:
        """Return the filter of a pull that carries its expression."""
        self._check_type(header.expressionType)
        try:
            return parse_tags(header.subscription)
        except BadExpression as exc:
            raise _Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {exc}",
            ) from exc

    def _group_filter(
        self, header: PullMessageRequest, config: SubscriptionGroupConfig
    ) -> frozenset[int] | None:
        """Return the filter of a pull whose expression came with the group's heartbeat."""
        group = self._clients.consumers.get(header.consumerGroup)
        if group is None:
            raise _Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if not config.consume_broadcast_enable and group.message_model == BROADCASTING:
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumerGroup}] can not consume by broadcast way",
            )
        if self._groups.is_read_forbidden(header.consumerGroup, header.topic):
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumerGroup}] is forbidden for"
                f" topic[{header.topic}]",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise _Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if subscription.sub_version < header.subVersion:
            raise _Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        self._check_type(subscription.expression_type)
        return group.tag_codes[header.topic]

    def _check_type(self, expression_type: str | None) -> None:
        if not is_tag_type(expression_type):
            raise _Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}",
            )

    def _is_not_visible_yet(self, header: PullMessageRequest, result: GetResult) -> bool:
        """True if a position beyond the queue's end comes from a former leader: its messages are in
        our log, and will become visible."""
        if not self._config.replica or result.status not in BEYOND:
            return False
        topic, queue_id = header.topic, header.queueId
        return header.queueOffset <= self._store.queue_max(topic, queue_id, committed=False)

    # --- outcomes

    def _outcome(
        self, header: PullMessageRequest, result: GetResult, group: SubscriptionGroupConfig
    ) -> tuple[ResponseCode, int]:
        """Return the response code, and the broker id to ask next (wire.md 5.3, 5.4)."""
        config = self._config
        code = PULL_CODES[result.status]
        empty = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
        if result.status in empty and header.queueOffset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        suggested = MASTER_ID
        if config.slave_reads:
            slow = result.suggest_slave
            suggested = group.which_broker_when_consume_slowly if slow else group.broker_id
        if config.is_slave:
            if self.is_master_alive() and not result.suggest_slave:
                suggested = MASTER_ID
                if code != ResponseCode.SUCCESS:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
            if code == ResponseCode.PULL_OFFSET_MOVED and not config.store.offset_check_in_slave:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
                suggested = group.broker_id
        return code, suggested

    def _long_poll(
        self,
        command: Command,
        connection: Connection,
        header: PullMessageRequest,
        allowed: _Allowed,
    ) -> LongPoll:
        config = self._config
        wait_ms = header.suspendTimeoutMillis if config.long_polling else config.short_polling_ms
        wait_s = min(max(wait_ms, 0), WAIT_MAX_MS) / 1000
        return LongPoll(
            command,
            connection,
            header.queueOffset,
            allowed.tag_codes,
            trio.current_time() + wait_s,
        )

    def _send_records(
        self, response: Command, connection: Connection, result: GetResult, command: Command
    ) -> Command | None:
        """Send records that the page cache holds; else read them in a separate task."""
        # A read from the device would block the loop, and with it every connection.
        try:
            records = self._store.read_cached(result.ranges)
        except CorruptRecord:  # alone, each message before the damaged one is served
            if len(result.ranges) == 1:
                raise
            return self._execute(command, connection, may_wait=False, most=1)
        if records is not None:
            self._send(response, connection, records, result)
            return None

        async def read_cold(_command: Command, _connection: Connection) -> Command | None:
            try:
                cold = await self._store.read(result.ranges)
            except CorruptRecord:
                if len(result.ranges) == 1:
                    raise
                return self._execute(command, connection, may_wait=False, most=1)
            if not cold:
                response.code = ResponseCode.PULL_RETRY_IMMEDIATELY
                response.remark = GetStatus.MESSAGE_WAS_REMOVING.name
                return response
            self._send(response, connection, cold, result)
            return None

        connection.spawn(read_cold, command)
        return None

    def _send(
        self, response: Command, connection: Connection, records: bytes, result: GetResult
    ) -> None:
        self.served += len(result.ranges)
        connection.send_parts([encode_head(response, len(records)), records])


def _response(
    command: Command,
    code: ResponseCode,
    suggested: int,
    result: GetResult,
    allowed: _Allowed,
) -> Command:
    fields = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
        "topicSysFlag": str(allowed.topic.topic_sys_flag),
        "groupSysFlag": str(allowed.group.group_sys_flag),
    }
    return answer(command, code, result.status.name, fields)
