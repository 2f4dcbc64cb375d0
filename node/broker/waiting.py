"""Messages that wait in `SCHEDULE_TOPIC_XXXX`: their properties, and storing one once more
(store.md 12.1)."""

from typing import Final

from rocketbed.node.broker.topics import topic_name_problem
from rocketbed.node.store.errors import MessageRejected
from rocketbed.node.store.run import Run
from rocketbed.node.store.status import PutStatus
from rocketbed.wire.message import (
    BORN_IPV6,
    INNER_BATCH,
    STORE_IPV6,
    StoredMessage,
    pack_host,
)
from rocketbed.wire.properties import (
    CLUSTER,
    DELAY,
    KEYS,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    index_keys,
)

DISPENSABLE: Final = frozenset({"MSG_REGION", "TRACE_ON", CLUSTER, WAIT, ORIGIN_MESSAGE_ID})
"""Properties that are left out where a copy's own ones do not fit beside the producer's: brokers
add the first three, the next counts while a message is sent, and UNIQ_KEY names the message too."""


def target_of(message: StoredMessage) -> tuple[str, int]:
    """Return topic and queue of a waiting message. Raises `ValueError`."""
    properties = message.properties
    topic, queue_text = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE, "")
    is_number = queue_text.isdecimal() and queue_text.isascii() and len(queue_text) < 10
    if topic_name_problem(topic) is not None or not is_number:
        raise ValueError(
            f"no place to deliver it to: {REAL_TOPIC} {topic!r}, {REAL_QUEUE} {queue_text!r}"
        )
    return topic, int(queue_text)


def is_deleted(message: StoredMessage, topic: str, deleted: dict[str, int]) -> bool:
    """True if a message's topic was deleted after the message was stored."""
    return message.physical_offset < deleted.get(topic, 0)


def add_again(
    run: Run,
    message: StoredMessage,
    topic: str,
    queue_id: int,
    *,
    text: str | None = None,
    reconsume_times: int | None = None,
    delay_ms: int | None = None,
) -> None:
    """Add a stored message to a run once more, perhaps with other properties. Raises
    `MessageRejected`, also for several messages in one record: nothing says which one is meant."""
    if message.sys_flag & INNER_BATCH:
        raise MessageRejected(
            PutStatus.MESSAGE_ILLEGAL,
            f"the record at {message.physical_offset} is a batch of messages: send the one that is"
            " to come again by itself",
        )
    text = message.properties_text if text is None else text
    text = shortened(text, run.properties_max)
    properties = decode_properties(text)
    run.add(
        topic,
        queue_id,
        message.body,
        text.encode(),
        flag=message.flag,
        sys_flag=message.sys_flag & ~(BORN_IPV6 | STORE_IPV6),
        born_ms=message.born_timestamp,
        born_host=pack_host(*message.born_host),
        reconsume_times=message.reconsume_times if reconsume_times is None else reconsume_times,
        tag=properties.get(TAGS),
        keys=index_keys(properties.get(UNIQUE_KEY), properties.get(KEYS)),
        delay_ms=delay_ms,
        is_limited=False,
    )


def shortened(text: str, limit: int) -> str:
    """Return a property string, without what no consumer of a copy needs if it takes more bytes
    than `limit`; that may still be too much."""
    if len(text.encode()) <= limit:
        return text
    pairs = decode_properties(text).items()
    return encode_properties((name, value) for name, value in pairs if name not in DISPENSABLE)


def properties_to_wait(properties: dict[str, str], topic: str, queue_id: int, level: int) -> str:
    """Return the properties of a message that has to wait; without timers, which do the same."""
    waiting_properties = {
        name: value for name, value in properties.items() if not name.startswith("TIMER_")
    }
    waiting_properties |= {DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    return encode_properties(waiting_properties)
