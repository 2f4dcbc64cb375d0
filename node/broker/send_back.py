"""Messages that a consumer failed to process: 36, `%RETRY%` and `%DLQ%` topics (wire.md 4.9)."""

from typing import Final

import trio

from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.delays import Delays
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.put_codes import UNCONFIRMED
from rocketbed.node.broker.send import Sender
from rocketbed.node.broker.send_checks import INT_MAX, MAX_RECONSUME_VERSION
from rocketbed.node.broker.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    Topics,
    topic_name_problem,
)
from rocketbed.node.broker.waiting import add_again, properties_to_wait, shortened
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.release import ReleaseQueue
from rocketbed.node.store.errors import MessageRejected, PutFailed
from rocketbed.node.store.status import PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import PERM_WRITE, QUEUES_MAX
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.message import StoredMessage, decode_message
from rocketbed.wire.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
)
from rocketbed.world.api import World

FIRST_LEVEL: Final = 3
"""Delay level of the first repetition if the consumer asks for none; each repetition adds one."""


class SendBack:
    """Stores a message again, for later, for one group."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        sender: Sender,
        delays: Delays,
        releases: ReleaseQueue,
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._sender = sender
        self._delays = delays
        self._releases = releases

    async def handle(self, command: Command, connection: Connection) -> Command:
        """36: send a message back. The answer waits until the message is as safe as a sent one,
        since its consumer moves on then; RocketMQ's does not wait. If disk or slave take too long,
        it is success nevertheless, with that as its remark: at an error Java's consumer sends
        another copy.

        Raises `HeaderError`, `CorruptRecord`.
        """
        header = SendBackRequest.decode(command.raw_fields)
        if problem := topic_name_problem(RETRY_PREFIX + header.group):
            return answer(command, ResponseCode.INVALID_PARAMETER, problem)
        group = self._groups.find_or_create(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group}"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not self._config.broker_permission & PERM_WRITE:
            remark = f"the broker[{self._config.ip1}] sending message is forbidden"
            return answer(command, ResponseCode.NO_PERMISSION, remark)
        if group.retry_queue_nums <= 0:
            return answer(command, ResponseCode.SUCCESS, None, {})
        if (refusal := self._sender.refusal(command)) is not None:
            return refusal
        self._store.refuse_damaged(header.offset)
        record = await self._store.record_at(header.offset)
        if record is None:
            remark = f"look message by offset failed, {header.offset}"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        message = decode_message(record)
        if message.topic == SCHEDULE_TOPIC:
            remark = f"the message at {header.offset} waits itself, and was given to nobody"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        if header.originMsgId and header.originMsgId not in _ids(message):
            remark = f"the message at {header.offset} is not {header.originMsgId} here: send a copy"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        limit = group.retry_max_times
        if command.version >= MAX_RECONSUME_VERSION and header.maxReconsumeTimes is not None:
            limit = header.maxReconsumeTimes
        is_dead = message.reconsume_times >= limit or header.delayLevel < 0
        level = self._delays.level(header.delayLevel or FIRST_LEVEL + message.reconsume_times)
        if not is_dead and self._properties(message, RETRY_PREFIX + header.group, level) is None:
            self._world.log.warning("send_back.too_long", group=header.group, offset=header.offset)
            is_dead = True
        topic = (DLQ_PREFIX if is_dead else RETRY_PREFIX) + header.group
        queues = 1 if is_dead else group.retry_queue_nums
        self._topics.create_absent(topic, queues)
        try:
            await self._topics.save()
        except ConfigFileError as exc:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(exc))
        queue_id = self._world.random.randrange(min(queues, QUEUES_MAX))
        if (refusal := self._sender.refusal(command)) is not None:
            return refusal  # this node no longer leads
        try:
            end = self._put(message, topic, queue_id, 0 if is_dead else level)
        except (MessageRejected, PutFailed) as exc:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(exc))
        status = await self._wait_until_safe(end)
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, UNCONFIRMED)
        late = None if status is PutStatus.PUT_OK else status.name
        return answer(command, ResponseCode.SUCCESS, late, {})

    def _put(self, message: StoredMessage, topic: str, queue_id: int, level: int) -> int:
        """Store the message once more; return the end of the log. Raises `MessageRejected`,
        `PutFailed`."""
        text = self._properties(message, topic, level, queue_id)
        run = self._store.begin()
        add_again(
            run,
            message,
            SCHEDULE_TOPIC if level else topic,
            level - 1 if level else queue_id,
            text=text,
            reconsume_times=min(message.reconsume_times + 1, INT_MAX),
            delay_ms=self._delays.delay_ms(level) if level else None,
        )
        self._store.commit(run)
        return run.end

    def _properties(
        self, message: StoredMessage, topic: str, level: int, queue_id: int = QUEUES_MAX
    ) -> str | None:
        """Return the properties of the copy; None if they do not fit beside those of the message.

        Those of a dead letter are the message's own then.
        """
        properties = message.properties | {WAIT: "false", DELAY: str(level)}
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties.setdefault(UNIQUE_KEY, message.offset_message_id)
        text = (
            properties_to_wait(properties, topic, queue_id, level)
            if level
            else encode_properties(properties)
        )
        limit = self._store.log.tail.properties_max
        return text if len(shortened(text, limit).encode()) <= limit else None

    async def _wait_until_safe(self, end: int) -> PutStatus:
        outcome = PutStatus.PUT_OK
        is_released = trio.Event()

        def release(status: PutStatus) -> None:
            nonlocal outcome
            outcome = status
            is_released.set()

        self._releases.add(end, release)
        await is_released.wait()
        return outcome


def _ids(message: StoredMessage) -> tuple[str | None, ...]:
    """Return the ids by which consumers may know a message: another master may have delivered
    it."""
    properties = message.properties
    return properties.get(UNIQUE_KEY), properties.get(ORIGIN_MESSAGE_ID), message.offset_message_id
