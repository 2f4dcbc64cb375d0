"""Number of messages that readers still have before them, from the rows of a history in order.

The live page shows it during the run, the report afterwards.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketbed.chaos.evidence.history import FINAL_READER, Function, Outcome, Row

FOLLOWERS: Final = 0
"""Stands for a group's number: the follower that pulled last from a queue."""


class Queue(NamedTuple):
    topic: int
    group: int
    """Id of the broker group."""
    number: int


class Lag:
    """Lag of each consumer group, and of followers, over all queues that they were seen to read."""

    def __init__(self, groups: Mapping[int, int]) -> None:
        """`groups` maps the id of a node to that of its group's name; a group's id stands for
        itself.

        All ids are the history's.
        """
        self._groups = groups
        self._ends: dict[Queue, int] = {}
        self._positions: defaultdict[int, dict[Queue, int]] = defaultdict(dict)
        """Reader -> queue -> the next message that it reads."""
        self._lags: Counter[int] = Counter()
        """Reader -> the sum over its queues."""

    def add(self, row: Row) -> None:
        """Add a row; rows of other kinds, and those without an answer, change nothing."""
        if row.outcome not in (Outcome.OK, Outcome.WEAK):
            return
        queue = Queue(row.topic, self._groups.get(row.node, row.node), row.queue)
        match row.function:
            case Function.SEND:
                self._set_end(queue, max(self._ends.get(queue, 0), row.queue_offset + 1))
            case Function.BOUNDS:
                self._set_end(queue, row.value)
            case Function.PULL:
                self._set_end(queue, row.value)
                if row.process < FINAL_READER:
                    self._move(FOLLOWERS, queue, row.physical_offset)
            case Function.DELIVER:
                self._move(row.operation, queue, row.queue_offset + 1)
            case Function.COMMIT_OFFSET | Function.RESET_OFFSET:
                self._move(row.operation, queue, row.queue_offset)

    def remove_topic(self, topic: int) -> None:
        """Remove a deleted topic."""
        for queue in [queue for queue in self._ends if queue.topic == topic]:
            self._set_end(queue, 0)
            del self._ends[queue]
            for positions in self._positions.values():
                positions.pop(queue, None)

    @property
    def messages(self) -> int:
        """Number of messages that the slowest reader has not received, or not processed."""
        return max(self._lags.values(), default=0)

    def _set_end(self, queue: Queue, end: int) -> None:
        for reader in self._positions:
            self._count(reader, queue, -1)
        self._ends[queue] = end
        for reader in self._positions:
            self._count(reader, queue, +1)

    def _move(self, reader: int, queue: Queue, position: int) -> None:
        self._count(reader, queue, -1)
        self._positions[reader][queue] = position
        self._count(reader, queue, +1)

    def _count(self, reader: int, queue: Queue, sign: int) -> None:
        position = self._positions[reader].get(queue)
        if position is not None:
            self._lags[reader] += sign * max(0, self._ends.get(queue, 0) - position)
