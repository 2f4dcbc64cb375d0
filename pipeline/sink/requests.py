"""Rows grouped into requests, so that many small messages are sent at once.

A request holds messages of one topic that go to the same queue. Messages whose row names a queue
keep the order of the rows in that queue; the order of all others does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocketbed.pipeline.sink.rows import Outgoing

COUNT_MAX: Final = 1000
"""Messages in one request."""
RETRY_PREFIX: Final = "%RETRY%"
"""Prefix of topics for which brokers accept no batches."""
OVERHEAD: Final = 160
"""Bytes of a message besides its body, properties and keys; an upper bound in the usual case."""
LANES: Final = 4
"""Concurrent requests of rows without a queue, for each topic."""

Lane = tuple[str, str | None, int]
"""Topic, broker and queue id; or for rows without a queue, topic, None and minus a number."""


@dataclass(slots=True)
class Request:
    """A batch of messages, or a single message."""

    topic: str
    queue_id: int | None
    broker: str | None
    rows: list[Outgoing] = field(default_factory=list)
    size: int = 0
    """Approximate bytes on the wire."""

    @property
    def is_single(self) -> bool:
        """True for one message, which is sent without a batch."""
        return len(self.rows) == 1


def make_requests(rows: Iterable[Outgoing], bytes_max: int) -> dict[Lane, list[Request]]:
    """Group rows into requests by lane; those of one lane are sent one after the other.

    A request has up to `bytes_max` bytes, or a single larger message.
    """
    lanes: dict[Lane, list[Request]] = {}
    filling: dict[tuple[str, str | None, int | None], Request] = {}
    lane_counts: dict[str, int] = {}
    for row in rows:
        message = row.message
        size = len(message.body) + OVERHEAD + _text_size(row)
        key = message.topic, row.broker, row.queue_id
        current = filling.get(key)
        is_alone = message.delay_level > 0 or message.topic.startswith(RETRY_PREFIX)
        is_full = current is None or (
            current.size + size > bytes_max or len(current.rows) >= COUNT_MAX
        )
        if is_full or is_alone:
            current = filling[key] = Request(message.topic, row.queue_id, row.broker)
            lanes.setdefault(_lane(key, lane_counts), []).append(current)
        assert current is not None
        current.rows.append(row)
        current.size += size
        if is_alone:
            del filling[key]
    return lanes


def _lane(key: tuple[str, str | None, int | None], lane_counts: dict[str, int]) -> Lane:
    topic, broker, queue_id = key
    if queue_id is not None:
        return topic, broker, queue_id
    number = lane_counts[topic] = lane_counts.get(topic, -1) + 1
    return topic, broker, -1 - number % LANES


def _text_size(row: Outgoing) -> int:
    message = row.message
    texts = (*message.keys, message.tag or "", *message.properties, *message.properties.values())
    return sum(len(text.encode()) + 2 for text in texts)
