"""Queues as small numbers, and a place in a queue as one integer.

The same topic and queue id on two broker groups are two queues, so a queue is named by three parts.
A key is `queue number << 44 | offset`, which fits 64 bits and sorts by queue, then offset (chaos.md
2.9).
"""

from typing import NamedTuple

OFFSET_BITS = 44
OFFSET_MASK = (1 << OFFSET_BITS) - 1
QUEUES_MAX = 1 << 19
"""Beyond it a key would not fit 63 bits."""


class QueueName(NamedTuple):
    group: int
    """Number of the broker group; -1 for one that is not known."""
    topic: str
    queue: int


class TooManyQueues(Exception):
    """More queues than a key has room for."""


class Queues:
    """Numbers for queues, given as they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[QueueName, int] = {}
        self.names: list[QueueName] = []
        """By number."""

    def number(self, group: int, topic: str, queue: int) -> int:
        """The queue's number. Raises `TooManyQueues`."""
        name = QueueName(group, topic, queue)
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = len(self.names)
            self.names.append(name)
            if known >= QUEUES_MAX:
                raise TooManyQueues(f"the checks have room for {QUEUES_MAX} queues")
        return known

    def place(self, key: int) -> tuple[QueueName, int]:
        return self.names[key >> OFFSET_BITS], key & OFFSET_MASK

    def show(self, key: int) -> str:
        """A key for people: `Topic/3 offset 17`."""
        if key < 0:
            return "an unknown place"
        name, offset = self.place(key)
        return f"{name.topic}/{name.queue} offset {offset}"


def pack(queue: int, offset: int) -> int:
    """The key of a place; -1 where either part is negative, or the offset too large."""
    return -1 if queue < 0 or not 0 <= offset <= OFFSET_MASK else queue << OFFSET_BITS | offset
