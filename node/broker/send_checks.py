"""Checks of a message before it is accepted, in RocketMQ's order (wire.md 4.2, 4.7).

They only decide: nothing is written here but new topics. A feature that this node lacks (timers,
transactions) is refused with a remark that names it; such a message is never stored as a plain one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketbed.node.broker.delays import Delays
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.topics import (
    DLQ_PREFIX,
    NOT_SENDABLE,
    RETRY_PREFIX,
    Topics,
    topic_name_problem,
)
from rocketbed.node.broker.waiting import properties_to_wait
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.batch_queue import MESSAGES_MAX
from rocketbed.wire.bodies import PERM_WRITE, TopicConfig
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.errors import RemoteProtocolError, RocketbedError
from rocketbed.wire.headers import SendMessageRequest, SendMessageV2Request
from rocketbed.wire.message import (
    INNER_BATCH,
    MULTI_TAGS,
    NEEDS_UNWRAP,
    TRANSACTION_MASK,
    BatchItem,
    decode_batch,
)
from rocketbed.wire.properties import (
    DELAY,
    INNER_NUM,
    KEYS,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)
from rocketbed.world.api import World

TIMERS = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY")
REFUSED_FEATURES: Final = {
    "REPLY_TO_CLIENT": "request and reply",
    "__LITE_TOPIC": "lite topics",
}
"""Properties of messages whose sender waits for more than their storage."""
IGNORED_FEATURES: Final = {
    "_SYS_MSG_PRIORITY_": "priority",
    "INNER_MULTI_DISPATCH": "multi-dispatch",
}
"""Properties that a RocketMQ 5.5.0 with default settings stores and ignores as well."""
IGNORED_MAX: Final = 256
"""Most topics and properties of which the log says so."""
POP_RECEIPT = "POP_CK"
PREPARED = "TRAN_MSG"
MAX_RECONSUME_VERSION = 121
"""Peers from this release on may set `maxReconsumeTimes` (3.4.9)."""
INT_MAX = 2**31 - 1


class Refused(RocketbedError):
    """A message that is refused; the remark says why."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A message that is accepted, ready to be added to a run."""

    header: SendMessageRequest
    topic: str
    queue_id: int
    sys_flag: int
    properties: bytes
    """Property string, ended, without the broker's own additions."""
    unique_key: str
    keys: str | None
    tag: str | None
    waits: bool
    items: list[BatchItem] | None = None
    """Messages of a batch."""
    inner_batch: int = 0
    """Number of messages if the batch becomes one record."""
    level: int = 0
    """Delay level: the message waits in the delay topic, and `topic` is its destination."""


class SendChecks:
    """Decides about one send at a time."""

    def __init__(
        self, world: World, config: NodeConfig, topics: Topics, groups: Groups, delays: Delays
    ) -> None:
        self._world = world
        self._config = config
        self._topics = topics
        self._groups = groups
        self._delays = delays
        self._ignored: set[tuple[str, str]] = set()
        """Topics and properties of which the log has said that they are ignored."""

    def decide(self, command: Command) -> Decision:
        """Return how to store a send. Raises `Refused`, `HeaderError`."""
        header = _header(command)
        topic_config = self._checked_topic(header)
        properties = decode_properties(header.properties or "")
        topic, queue_id = header.topic, self._queue(header, topic_config)
        level = _delay_level(properties)
        if self._is_dead(header, command.version):
            topic, queue_id, level = self._dead_letters(topic), 0, 0
        self._check_features(header, properties, level)
        if not command.body:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the message has no body")
        is_batch_queue = self._topics.is_batch_queue(header.topic)
        unique_key = properties.get(UNIQUE_KEY)
        text = header.properties or ""
        if POP_RECEIPT in properties or (text and not text.endswith("\x02")):
            properties.pop(POP_RECEIPT, None)
            text = encode_properties(properties)
        if unique_key is None:
            unique_key = f"{self._world.random.getrandbits(128):032X}"
            text += f"{UNIQUE_KEY}\x01{unique_key}\x02"
        items = self._batch_items(header, command.body) if header.batch else None
        level = self._delays.level(level)
        if level:
            text = properties_to_wait(decode_properties(text), topic, queue_id, level)
        sys_flag = header.sysFlag & ~0x30
        if topic_config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MULTI_TAGS
        return Decision(
            header=header,
            topic=topic,
            queue_id=queue_id,
            sys_flag=sys_flag,
            properties=text.encode(),
            unique_key=unique_key,
            keys=properties.get(KEYS),
            tag=properties.get(TAGS),
            waits=properties.get(WAIT, "true").lower() == "true",
            items=items,
            inner_batch=self._inner_batch(items) if is_batch_queue else 0,
            level=level,
        )

    @staticmethod
    def _inner_batch(items: list[BatchItem] | None) -> int:
        """Return the number of messages that become one record; 0 for a single message."""
        if items is not None and len(items) > MESSAGES_MAX:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch of {len(items)} messages for a topic with batch queues, which take"
                f" {MESSAGES_MAX} at once",
            )
        return len(items or ())

    def _checked_topic(self, header: SendMessageRequest) -> TopicConfig:
        config, topic = self._config, header.topic
        topic_config = self._topics.get(topic)
        if (
            not config.broker_permission & PERM_WRITE
            and topic_config is not None
            and topic_config.order
        ):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.ip1}] sending message is forbidden",
            )
        problem = topic_name_problem(topic)
        if problem is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        if topic in NOT_SENDABLE:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if topic_config is None:
            topic_config = self._topics.create_for_send(
                topic, header.defaultTopic, header.defaultTopicQueueNums
            )
        if topic_config is None and topic.startswith(RETRY_PREFIX):
            self._topics.create_retry(topic.removeprefix(RETRY_PREFIX), 1)
            topic_config = self._topics.get(topic)
        if topic_config is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        queues = topic_config.queue_nums
        if header.queueId >= queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queueId}] is illegal, topic[{topic}] has {queues}",
            )
        return topic_config

    def _queue(self, header: SendMessageRequest, topic: TopicConfig) -> int:
        if header.queueId >= 0:
            return header.queueId
        if topic.write_queue_nums < 1:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"topic[{header.topic}] has no queue to write to"
            )
        return self._world.random.randrange(topic.write_queue_nums)

    def _is_dead(self, header: SendMessageRequest, version: int) -> bool:
        """True if a consumer sends back a message once too often."""
        if not header.topic.startswith(RETRY_PREFIX):
            return False
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find_or_create(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        limit = group.retry_max_times
        if version >= MAX_RECONSUME_VERSION and header.maxReconsumeTimes is not None:
            limit = header.maxReconsumeTimes
        return (header.reconsumeTimes or 0) > limit

    def _dead_letters(self, topic: str) -> str:
        """Return the dead letter topic of a retry topic, creating it."""
        name = DLQ_PREFIX + topic.removeprefix(RETRY_PREFIX)
        self._topics.create_absent(name, 1)
        return name

    def _check_features(
        self, header: SendMessageRequest, properties: Mapping[str, str], level: int
    ) -> None:
        """Refuse messages that need a feature which this node does not have."""
        prepared = properties.get(PREPARED, "false").lower() == "true"
        if header.sysFlag & TRANSACTION_MASK or prepared:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.ip1}] sending transaction message is forbidden:"
                " transactions are not supported",
            )
        if level <= 0 and any(name in properties for name in TIMERS):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false:"
                " timer messages are not supported",
            )
        for name, feature in REFUSED_FEATURES.items():
            # A consumer sends a message that it got elsewhere to its retry topic as it is.
            if name in properties and not header.topic.startswith(RETRY_PREFIX):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"{feature} ({name}): not supported")
        for name in properties.keys() & IGNORED_FEATURES.keys():
            self._say_ignored(header.topic, name)
        if level > 0 and header.batch:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be delayed (DELAY)")
        if INNER_NUM in properties or header.sysFlag & (INNER_BATCH | NEEDS_UNWRAP):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message claims to be an inner batch; send a batch (320) to a topic with"
                " queue.type=BatchCQ instead",
            )

    def _say_ignored(self, topic: str, name: str) -> None:
        if (topic, name) not in self._ignored and len(self._ignored) < IGNORED_MAX:
            self._ignored.add((topic, name))
            self._world.log.warning(
                "send.feature_ignored", topic=topic, property=name, feature=IGNORED_FEATURES[name]
            )

    def _batch_items(self, header: SendMessageRequest, body: bytes) -> list[BatchItem]:
        """Return the messages of a batch request, each checked for what a batch may not contain."""
        if header.topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic")
        if len(body) > self._config.store.max_message_size:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch takes {len(body)} bytes, maxMessageSize is"
                f" {self._config.store.max_message_size}",
            )
        try:
            items = decode_batch(body)
            for item in items:
                properties = decode_properties(item.properties.decode())
                self._check_features(header, properties, _delay_level(properties))
        except (RemoteProtocolError, UnicodeDecodeError) as exc:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL, f"batch body cannot be read: {exc}"
            ) from exc
        if not items:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        return items


def _header(command: Command) -> SendMessageRequest:
    if command.code == RequestCode.SEND_MESSAGE:
        return SendMessageRequest.decode(command.fields)
    return SendMessageV2Request.decode(command.fields).plain()


def _delay_level(properties: Mapping[str, str]) -> int:
    """Return the level that a message asks for; 0 or below: no delay. Raises `Refused`."""
    text = properties.get(DELAY, "0")
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text, re.ASCII):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"DELAY is no number: {text[:20]!r}")
    return int(text)
