"""Queues as small numbers, and a place in a queue as one integer.

The same topic and queue id on two broker groups are two queues, so a queue's name has three parts.
The key of a place is `queue number << 44 | offset`, which fits 64 bits and sorts by queue, then
offset (chaos.md 2.9).
"""

from typing import NamedTuple

OFFSET_BITS = 44
OFFSET_MASK = (1 << OFFSET_BITS) - 1
QUEUES_MAX = 1 << 19
"""Limit beyond which a key would not fit 63 bits."""


class QueueName(NamedTuple):
    group: int
    """Number of the broker group; -1 if unknown."""
    topic: str
    queue: int


class TooManyQueues(Exception):
    """More queues exist than a key has room for."""


class Queues:
    """Numbers of queues, assigned at first use."""

    def __init__(self) -> None:
        self._numbers: dict[QueueName, int] = {}
        self.names: list[QueueName] = []
        """Names by number."""

    def number(self, group: int, topic: str, queue: int) -> int:
        """Return the queue's number. Raises `TooManyQueues`."""
        name = QueueName(group, topic, queue)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            if number >= QUEUES_MAX:
                raise TooManyQueues(f"the checks have room for {QUEUES_MAX} queues")
        return number

    def place(self, key: int) -> tuple[QueueName, int]:
        return self.names[key >> OFFSET_BITS], key & OFFSET_MASK

    def show(self, key: int) -> str:
        """Return a key for people: `Topic/3 offset 17`."""
        if key < 0:
            return "an unknown place"
        name, offset = self.place(key)
        return f"{name.topic}/{name.queue} offset {offset}"


def pack(queue: int, offset: int) -> int:
    """Return the key of a place; -1 if either part is negative, or the offset too large."""
    return -1 if queue < 0 or not 0 <= offset <= OFFSET_MASK else queue << OFFSET_BITS | offset
