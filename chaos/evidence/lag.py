"""How many messages readers have still before them, by the rows of a history as they come.

The live page asks while the run goes on, the report afterwards; both are told the same.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketbed.chaos.evidence.history import FINAL_READER, Function, Outcome, Row

FOLLOWERS: Final = 0
"""In place of a group's number: the follower that pulled last from a queue."""


class Queue(NamedTuple):
    topic: int
    group: int
    """Id of the group of brokers."""
    number: int


class Lag:
    """Of each group of consumers, and of followers, over all queues that it was seen to read."""

    def __init__(self, groups: Mapping[int, int]) -> None:
        """`groups` maps the id of a node to that of its group's name; an id of a group is its own.

        All ids are the history's.
        """
        self._groups = groups
        self._ends: dict[Queue, int] = {}
        self._positions: defaultdict[int, dict[Queue, int]] = defaultdict(dict)
        """Reader -> queue -> the next message that it wants."""
        self._behind: Counter[int] = Counter()
        """Reader -> the sum over its queues."""

    def take(self, row: Row) -> None:
        """Rows of other kinds, and those without an answer, tell nothing."""
        if row.outcome not in (Outcome.OK, Outcome.WEAK):
            return
        queue = Queue(row.topic, self._groups.get(row.node, row.node), row.queue)
        match row.function:
            case Function.SEND:
                self._end(queue, max(self._ends.get(queue, 0), row.queue_offset + 1))
            case Function.BOUNDS:
                self._end(queue, row.value)
            case Function.PULL:
                self._end(queue, row.value)
                if row.process < FINAL_READER:
                    self._stand(FOLLOWERS, queue, row.physical_offset)
            case Function.DELIVER:
                self._stand(row.operation, queue, row.queue_offset + 1)
            case Function.COMMIT_OFFSET | Function.RESET_OFFSET:
                self._stand(row.operation, queue, row.queue_offset)

    def forget(self, topic: int) -> None:
        """The topic is deleted."""
        for queue in [queue for queue in self._ends if queue.topic == topic]:
            self._end(queue, 0)
            del self._ends[queue]
            for positions in self._positions.values():
                positions.pop(queue, None)

    @property
    def messages(self) -> int:
        """Those that the reader which is furthest behind has not got, or not dealt with."""
        return max(self._behind.values(), default=0)

    def _end(self, queue: Queue, end: int) -> None:
        for reader in self._positions:
            self._count(reader, queue, -1)
        self._ends[queue] = end
        for reader in self._positions:
            self._count(reader, queue, +1)

    def _stand(self, reader: int, queue: Queue, position: int) -> None:
        self._count(reader, queue, -1)
        self._positions[reader][queue] = position
        self._count(reader, queue, +1)

    def _count(self, reader: int, queue: Queue, sign: int) -> None:
        position = self._positions[reader].get(queue)
        if position is not None:
            self._behind[reader] += sign * max(0, self._ends.get(queue, 0) - position)
