"""Topics that were deleted while the run went on, and perhaps made again: which of two a row means.

A topic that is made again begins anew, so its queues are others than those of the deleted one: the
checks know these as queues of a topic `NAME (deleted)`. A message belongs to it by when it was
sent, and one whose send nobody can date so by where it stands in the log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rocketbed.chaos.evidence.history import Event, Function, Outcome, Row

ENDLESS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Deletion:
    """From the first request for it to when each node said that it knows."""

    topic: str
    begin_ns: int
    end_ns: int = ENDLESS
    """`ENDLESS` for one that was never done."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """By group of brokers the end of its log then."""
    is_again: bool = False
    """Whether the topic was made again, or could have been."""

    @property
    def name(self) -> str:
        """Of the deleted topic, among the queues."""
        return f"{self.topic} (deleted)"

    @property
    def is_done(self) -> bool:
        return self.end_ns != ENDLESS

    @property
    def cause(self) -> str:
        return f"deletion of {self.topic}"


def deletions_of(events: Iterable[Event]) -> dict[str, Deletion]:
    """By topic; each is deleted once at the most."""
    found: dict[str, Deletion] = {}
    again: set[str] = set()
    for event in events:
        if event.function != Function.NODE:
            continue
        topic = str(event.fields.get("topic", ""))
        if event.what == "topic_leaving":
            found[topic] = Deletion(topic, event.time_ns)
        elif event.what == "topic_deleted":
            begin_ns, ends = found[topic].begin_ns, event.fields["ends"]
            found[topic] = Deletion(topic, begin_ns, event.time_ns, ends)
        elif event.what == "topic_again":
            again.add(topic)
    return {
        topic: Deletion(topic, one.begin_ns, one.end_ns, one.ends, topic in again)
        for topic, one in found.items()
    }


class Generations:
    """Says of messages and rows of deleted topics whether they belong to what was deleted."""

    def __init__(self, deletions: Mapping[str, Deletion], groups: Iterable[str]) -> None:
        self.deletions = deletions
        self.by_name = {one.name: one for one in deletions.values()}
        self._groups = list(groups)
        self._is_old: dict[int, bool] = {}
        """By value, as far as that is known."""

    def learn(self, topic: str, row: Row) -> None:
        """Learn of a send or of a message that a reader got, before any log is read: a log that a
        master lost the end of has the offsets of another one (seed 853760)."""
        deletion = self.deletions.get(topic)
        if deletion is None:
            return
        is_send = row.function in (Function.SEND, Function.SEND_ONEWAY)
        if is_send and row.invoked_ns >= deletion.end_ns:
            self._is_old[row.value] = False
        elif row.outcome == Outcome.OK and row.returned_ns < deletion.begin_ns:
            self._is_old[row.value] = True

    def topic_of(self, topic: str, group: int, value: int, physical: int) -> str:
        """The topic of a message in a log of a group of brokers, by name or as a deleted one."""
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
        """The topic that a row means: by its message, or by when it was begun where it is about a
        queue only."""
        deletion = self.deletions.get(topic)
        if deletion is None:
            return topic
        is_old = time_ns < deletion.end_ns
        if value is not None:
            is_old = self._is_old.get(value, is_old)
        return deletion.name if is_old else topic

    def is_deleted(self, value: int) -> bool:
        """Whether a message is known to be one of a deleted topic."""
        return self._is_old.get(value, False)
