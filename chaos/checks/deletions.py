"""Topics that were deleted during the run and perhaps recreated: which generation a row refers to.

A recreated topic starts empty, so its queues are different from those of the deleted one: the
checks know the latter as queues of a topic `NAME (deleted)`. A message belongs to a generation by
the time of its send, or if that is unknown, by its place in the log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rocketbed.chaos.evidence.history import Event, Function, Outcome, Row

ENDLESS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion, from its first request until every node has reported it."""

    topic: str
    begin_ns: int
    end_ns: int = ENDLESS
    """`ENDLESS` for a deletion that was never completed."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """End of the log at that time, by broker group."""
    is_again: bool = False
    """True if the topic was recreated, or could have been."""

    @property
    def name(self) -> str:
        """Name of the deleted topic among the queues."""
        return f"{self.topic} (deleted)"

    @property
    def is_done(self) -> bool:
        return self.end_ns != ENDLESS

    @property
    def cause(self) -> str:
        return f"deletion of {self.topic}"


def deletions_of(events: Iterable[Event]) -> dict[str, Deletion]:
    """Return the deletions by topic; each topic is deleted at most once."""
    deletions: dict[str, Deletion] = {}
    recreated: set[str] = set()
    for event in events:
        if event.function != Function.NODE:
            continue
        topic = str(event.fields.get("topic", ""))
        if event.kind == "topic_leaving":
            deletions[topic] = Deletion(topic, event.time_ns)
        elif event.kind == "topic_deleted":
            begin_ns, ends = deletions[topic].begin_ns, event.fields["ends"]
            deletions[topic] = Deletion(topic, begin_ns, event.time_ns, ends)
        elif event.kind == "topic_again":
            recreated.add(topic)
    return {
        topic: Deletion(
            topic, deletion.begin_ns, deletion.end_ns, deletion.ends, topic in recreated
        )
        for topic, deletion in deletions.items()
    }


class Generations:
    """Decides which messages and rows belong to a deleted topic and not to its successor."""

    def __init__(self, deletions: Mapping[str, Deletion], groups: Iterable[str]) -> None:
        self.deletions = deletions
        self.by_name = {deletion.name: deletion for deletion in deletions.values()}
        self._groups = list(groups)
        self._is_old: dict[int, bool] = {}
        """True for messages of the deleted topic, by value; unknown ones are not in it."""

    def learn(self, topic: str, row: Row) -> None:
        """Learn from a send or a delivered message, before any log is read.

        A log that lost its end to a new master has the offsets of a different one.
        """
        deletion = self.deletions.get(topic)
        if deletion is None:
            return
        is_send = row.function in (Function.SEND, Function.SEND_ONEWAY)
        if is_send and row.invoked_ns >= deletion.end_ns:
            self._is_old[row.value] = False
        elif row.outcome == Outcome.OK and row.returned_ns < deletion.begin_ns:
            self._is_old[row.value] = True

    def topic_of(self, topic: str, group: int, value: int, physical: int) -> str:
        """Return the topic of a message in a group's log, by name or as a deleted one."""
        deletion = self.deletions.get(topic)
        if deletion is None:
            return topic
        is_old = self._is_old.get(value)
        if is_old is None:
            ends = deletion.ends
            is_old = not deletion.is_done or physical < ends.get(self._groups[group], 0)
            if value >= 0:
                self._is_old[value] = is_old
        return deletion.name if is_old else topic

    def topic_of_row(self, topic: str, time_ns: int, value: int | None = None) -> str:
        """Return the topic of a row: by its message, or for a row about a queue only by its
        begin."""
        deletion = self.deletions.get(topic)
        if deletion is None:
            return topic
        is_old = time_ns < deletion.end_ns
        if value is not None:
            is_old = self._is_old.get(value, is_old)
        return deletion.name if is_old else topic

    def is_deleted(self, value: int) -> bool:
        """True if a message is known to belong to a deleted topic."""
        return self._is_old.get(value, False)
