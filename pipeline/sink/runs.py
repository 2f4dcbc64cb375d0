"""Sets of messages: queue offsets by queue, stored as runs of consecutive offsets.

The acknowledged messages of a task are such a set. Messages of one request get consecutive
offsets, so a batch of a million messages is a few thousand runs.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self


class Place(NamedTuple):
    """A queue of a topic on a broker."""

    topic: str
    broker: str
    queue_id: int


class Runs:
    def __init__(self) -> None:
        self._runs: dict[Place, list[tuple[int, int]]] = {}

    def add(self, place: Place, first: int, count: int) -> None:
        """Add `count` offsets, beginning with `first`."""
        if count > 0:
            self._runs.setdefault(place, []).append((first, count))

    def update(self, added: "Runs") -> None:
        for place, runs in added._runs.items():
            self._runs.setdefault(place, []).extend(runs)

    def merged(self) -> Self:
        """Return the same set with adjacent runs joined, and runs and queues sorted."""
        result = type(self)()
        for place in sorted(self._runs):
            joined: list[tuple[int, int]] = []
            for first, count in sorted(self._runs[place]):
                if joined and first <= sum(joined[-1]):
                    start = joined[-1][0]
                    joined[-1] = (start, max(sum(joined[-1]), first + count) - start)
                else:
                    joined.append((first, count))
            result._runs[place] = joined
        return result

    def items(self) -> Iterator[tuple[Place, list[tuple[int, int]]]]:
        """Yield each queue with its runs as `(first, count)`."""
        yield from self._runs.items()

    def places(self) -> set[Place]:
        return set(self._runs)

    def count(self) -> int:
        return sum(count for _, runs in self.merged().items() for _, count in runs)

    def ranges(self) -> dict[Place, tuple[int, int]]:
        """Return the first and last offset of each queue."""
        return {place: (runs[0][0], sum(runs[-1]) - 1) for place, runs in self.merged().items()}

    def pieces(self, runs_max: int) -> list["Runs"]:
        """Split into sets of at most `runs_max` runs; at least one set."""
        pieces = [Runs()]
        room = runs_max
        for place, runs in self._runs.items():
            for first, count in runs:
                if room == 0:
                    pieces.append(Runs())
                    room = runs_max
                pieces[-1].add(place, first, count)
                room -= 1
        return pieces

    def as_json(self) -> list[list[Any]]:
        """Return rows of topic, broker, queue id and runs."""
        return [[*place, [list(run) for run in runs]] for place, runs in self._runs.items()]

    @classmethod
    def from_json(cls, rows: Iterable[Any]) -> Self:
        """Rebuild a set from `as_json`. Raises `ValueError`, `TypeError` for other values."""
        result = cls()
        for topic, broker, queue_id, runs in rows:
            place = Place(str(topic), str(broker), int(queue_id))
            for first, count in runs:
                result.add(place, int(first), int(count))
        return result


class Lookup:
    """Index of many sets for fast membership tests."""

    def __init__(self, sets: Mapping[str, Runs]) -> None:
        """Index `sets`, which are by job id."""
        self.jobs = frozenset(sets)
        self._starts: dict[tuple[str, Place], list[int]] = {}
        self._ends: dict[tuple[str, Place], list[int]] = {}
        for job, runs in sets.items():
            for place, pairs in runs.merged().items():
                self._starts[job, place] = [first for first, _ in pairs]
                self._ends[job, place] = [first + count for first, count in pairs]

    def has(self, job: str, place: Place, offset: int) -> bool:
        """Return True if the job's set contains this offset."""
        starts = self._starts.get((job, place))
        if starts is None:
            return False
        number = bisect_right(starts, offset) - 1
        return number >= 0 and offset < self._ends[job, place][number]
