"""Messages as a program sends and receives them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from rocketbed.client.errors import BadMessage, MissingLibrary
from rocketbed.inspect.bodies import MissingCodec, unpack_body, unpack_inner_batch
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.message import COMPRESSED, INNER_BATCH, StoredMessage
from rocketbed.wire.properties import (
    DELAY,
    KEYS,
    NAME_END,
    PAIR_END,
    PROPERTIES_MAX,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
    split_keys,
    trimmed,
)

BODY_MAX = 4 * 1024 * 1024
"""Largest body, bytes, that brokers accept by default (`maxMessageSize`)."""
TOPIC_LENGTH_MAX = 127
LONG_TOPIC_LENGTH_MAX = 255
"""Longest topic name, for `%RETRY%` and `%DLQ%` topics."""
GROUP_LENGTH_MAX = 120
OWN_PROPERTIES = frozenset((DELAY, KEYS, TAGS, WAIT, UNIQUE_KEY))
"""Properties that the client writes itself."""
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Message:
    """Message to be sent by a producer."""

    topic: str
    body: bytes
    _: KW_ONLY
    tag: str | None = None
    """Tag by which consumers filter."""
    keys: Sequence[str] = ()
    """Keys for look-ups of the message, without blanks."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Further names and texts, stored with the message."""
    flag: int = 0
    """A 32-bit number for the program's use."""
    delay_level: int = 0
    """0: deliver at once. From 1 on, deliver later by the broker's `messageDelayLevel`: 1 s, 5, 10,
    30 s, 1 to 10 min, 20, 30 min, 1 h, 2 h (18). Brokers take a higher level for the last."""
    message_id: str | None = None
    """Unique id (UNIQ_KEY) of a message that the program itself may send again; None makes a new
    one. Readers can recognize copies by it; brokers do not."""

    def properties_text(self, unique_key: str) -> str:
        """Return the property string with the client's own entries. Raises `BadMessage`."""
        text = encode_properties(
            {
                KEYS: " ".join(self.keys) or None,
                UNIQUE_KEY: unique_key,
                WAIT: "true",
                TAGS: self.tag or None,
                DELAY: str(self.delay_level) if self.delay_level else None,
                **self.properties,
            }
        )
        size = len(text.encode())
        if size > PROPERTIES_MAX:
            raise BadMessage(f"properties take {size} bytes; the limit is {PROPERTIES_MAX}")
        return text

    def check(self) -> None:
        """Raise `BadMessage` for a message that no broker accepts."""
        check_topic(self.topic)
        if type(self.body) is not bytes or not self.body:
            raise BadMessage("the body must be non-empty bytes")
        if len(self.body) > BODY_MAX:
            raise BadMessage(f"the body takes {len(self.body)} bytes; the limit is {BODY_MAX}")
        if type(self.flag) is not int or not -(2**31) <= self.flag < 2**31:
            raise BadMessage(f"flag {self.flag!r} must be a number of 32 bits")
        if type(self.delay_level) is not int or not 0 <= self.delay_level < 2**31:
            raise BadMessage(f"delay level {self.delay_level!r} must be a number from 0 on")
        tag = "" if self.tag is None else self.tag
        _check_texts(*self.keys, tag, "" if self.message_id is None else self.message_id)
        if isinstance(self.keys, str) or not all(self.keys) or " " in "".join(self.keys):
            raise BadMessage("keys must be a sequence of non-empty strings without spaces")
        if self.message_id is not None and not re.fullmatch(r"\S+", self.message_id):
            raise BadMessage(
                f"message id {self.message_id!r} must be non-empty, without white space"
            )
        if "||" in tag or tag != trimmed(tag):
            raise BadMessage(
                f"tag {tag!r} must be without '||' and white space at its ends: no"
                " subscription could ask for it"
            )
        if self.properties:
            self._check_properties()

    def _check_properties(self) -> None:
        reserved = OWN_PROPERTIES.intersection(self.properties)
        if reserved:
            raise BadMessage(
                f"reserved properties, set by the client: {', '.join(sorted(reserved))}"
            )
        _check_texts(*self.properties, *self.properties.values())
        if not all(self.properties) or not all(self.properties.values()):
            raise BadMessage("a property needs a name and a value")


def _check_texts(*texts: str) -> None:
    for text in texts:
        if type(text) is not str:
            raise BadMessage(f"tags, keys and properties must be text, not {text!r}")
    together = "".join(texts)
    if NAME_END in together or PAIR_END in together:
        raise BadMessage(
            "tags, keys and properties must not contain the characters U+0001 and U+0002"
        )
    check_text("tags, keys and properties", together)


def check_text(name: str, text: str) -> None:
    """Raise `BadMessage` for a text that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        half = text[exc.start : exc.end]
        raise BadMessage(f"{name} must be whole characters: {half!a} is half of one") from exc


def check_topic(topic: str) -> None:
    """Raise `BadMessage` for an invalid topic name (RocketMQ: `TopicValidator`)."""
    if type(topic) is not str or not _NAME.fullmatch(topic):
        raise BadMessage(f"topic name {topic!r} may contain only letters, digits and % | _ -")
    long = topic.startswith(("%RETRY%", "%DLQ%"))
    limit = LONG_TOPIC_LENGTH_MAX if long else TOPIC_LENGTH_MAX
    if len(topic) > limit:
        raise BadMessage(f"topic name has {len(topic)} characters; the limit is {limit}")


def check_group(group: str) -> None:
    """Raise `BadMessage` for an invalid group name (RocketMQ: `Validators`)."""
    if type(group) is not str or not _NAME.fullmatch(group):
        raise BadMessage(f"group name {group!r} may contain only letters, digits and % | _ -")
    if len(group) > GROUP_LENGTH_MAX:
        raise BadMessage(f"group name is too long; the limit is {GROUP_LENGTH_MAX} characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Message received by a consumer."""

    queue: MessageQueue
    """Topic, broker name and queue id."""
    queue_offset: int
    """Offset in the queue, counted in messages."""
    message_id: str
    """Unique id of the producer (UNIQ_KEY), or the offset id if the producer set none."""
    offset_id: str
    """Broker's id: its address and the physical offset, in hex."""
    body: bytes
    """Body as the producer gave it; still compressed if it cannot be unpacked (`is_packed`)."""
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    """All properties, including those of the client and the broker."""
    flag: int
    is_packed: bool
    born_ms: int
    """Producer's wall clock, milliseconds."""
    born_host: tuple[str, int]
    stored_ms: int
    """Broker's wall clock, milliseconds."""
    physical_offset: int
    """Start of the record in the commit log, bytes."""
    size: int
    """Size of the stored record, bytes."""
    reconsume_times: int

    @property
    def topic(self) -> str:
        """Topic of the queue."""
        return self.queue.topic

    @classmethod
    def of(cls, stored: StoredMessage, broker_name: str) -> "Received":
        """Return the message of a record that the broker of this name sent."""
        try:
            body = unpack_body(stored.body, stored.sys_flag)
        except MissingCodec as exc:
            raise MissingLibrary(f"{stored.topic} at {stored.queue_offset}: {exc}") from exc
        offset_id = stored.offset_message_id
        return cls(
            queue=MessageQueue(
                topic=stored.topic, broker_name=broker_name, queue_id=stored.queue_id
            ),
            queue_offset=stored.queue_offset,
            message_id=stored.unique_key or offset_id,
            offset_id=offset_id,
            body=stored.body if body is None else body,
            tag=stored.tags,
            keys=split_keys(stored.properties.get(KEYS)),
            properties=stored.properties,
            flag=stored.flag,
            is_packed=body is None and bool(stored.sys_flag & COMPRESSED),
            born_ms=stored.born_timestamp,
            born_host=stored.born_host,
            stored_ms=stored.store_timestamp,
            physical_offset=stored.physical_offset,
            size=stored.size,
            reconsume_times=stored.reconsume_times,
        )

    @classmethod
    def all_of(cls, stored: StoredMessage, broker_name: str) -> list["Received"]:
        """Return the messages of a record: itself, or those of an inner batch
        (`queue.type=BatchCQ`)."""
        whole = cls.of(stored, broker_name)
        items = None
        if stored.sys_flag & INNER_BATCH and not whole.is_packed:
            items = unpack_inner_batch(whole.body)
        if items is None:
            return [whole]
        return [
            replace(
                whole,
                queue_offset=whole.queue_offset + item.number,
                message_id=item.properties.get(UNIQUE_KEY) or whole.message_id,
                body=item.body,
                tag=item.properties.get(TAGS),
                keys=split_keys(item.properties.get(KEYS)),
                properties=item.properties,
                flag=item.flag,
            )
            for item in items
        ]
