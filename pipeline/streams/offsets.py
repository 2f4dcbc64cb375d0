"""Offsets of a stream, which Spark keeps in the checkpoint as JSON.

There are two kinds. `physical`, of store directories: for each broker group one position in its log
in bytes, valid for every replica, since the part that all of them hold is the same. `queue`, of a
live cluster: for each queue the number of the next message. Each has a checksum of the bytes just
before it, by which a later run recognizes the log: it may be another cluster's, or truncated and
rewritten. Spark compares the texts, so keys are sorted and numbers are integers.

    {"v":1,"kind":"physical","brokers":{"broker-a":{"crc":377401,"epoch":0,"pos":10636254}}}
    {"v":1,"kind":"queue","queues":{"broker-a|T|3":{"crc":7,"off":120031,"time":1795173432000}}}

`time` is when the message before it was stored, if that is known. `epoch` is 0 in classic clusters,
where masterships have no number. A physical offset may have `topics` or `topicsPattern` too:
messages of other topics that the stream has passed are never read again.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rocketbed.pipeline.errors import Condition, PipelineError

FORMAT: Final = 1
PHYSICAL: Final = "physical"
QUEUE: Final = "queue"
KINDS: Final = (PHYSICAL, QUEUE)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NEWEST: Final = -1
"""Value in an option for the end of a log or a queue, as in Kafka."""
OLDEST: Final = -2
"""Value in an option for its beginning."""


class StreamError(PipelineError):
    """A stream cannot go on, or must not: the text says why, and what can be done."""

    condition = Condition.ILLEGAL_OFFSET


class DataLoss(StreamError):
    """Messages that the stream has still to read are lost."""

    condition = Condition.DATA_LOSS


class Mark(NamedTuple):
    """A position and the checksum of the bytes before it."""

    at: int
    """Bytes of the log, or number of a message in its queue."""
    crc: int = 0
    """Checksum; 0 if there was nothing to compare with."""
    time_ms: int = 0
    """Store time of the message before it, of queues only; 0 if unknown."""


class Topics(NamedTuple):
    """Topics that a stream over path reads out of the logs; all if neither is set."""

    names: frozenset[str] | None = None
    pattern: str | None = None

    def has_all_of(self, topics: "Topics") -> bool:
        """True if a stream of these topics reads all of `topics`. Two patterns count only if they
        are equal."""
        if self == topics or self == Topics():
            return True
        if topics.names is None:
            return False
        return all(map(self._takes, topics.names))

    def _takes(self, name: str) -> bool:
        if self.names is not None:
            return name in self.names
        return self.pattern is not None and re.fullmatch(self.pattern, name) is not None

    def __str__(self) -> str:
        if self.names is not None:
            return f"topics={','.join(sorted(self.names))}"
        return "all topics" if self.pattern is None else f"topicsPattern={self.pattern}"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Position of a stream: a mark for each broker group or each queue, by name."""

    kind: str
    marks: Mapping[str, Mark]
    topics: Topics | None = None
    """Topics read up to a physical offset, if that is known."""

    def as_json(self) -> dict[str, Any]:
        outer, inner = _NAMES[self.kind]
        rows = {
            name: {
                "crc": mark.crc,
                **({"epoch": 0} if self.kind == PHYSICAL else {}),
                inner: mark.at,
                **({"time": mark.time_ms} if mark.time_ms else {}),
            }
            for name, mark in sorted(self.marks.items())
        }
        row: dict[str, Any] = {"v": FORMAT, "kind": self.kind, outer: rows}
        if self.topics is not None:
            names = self.topics.names
            row["topics"] = None if names is None else sorted(names)
            if self.topics.pattern is not None:
                row["topicsPattern"] = self.topics.pattern
        return row

    @classmethod
    def parse(cls, value: Any, kind: str, *, where: str = "the checkpoint") -> "StreamOffset":
        """Parse a value that `as_json` gave, of the expected kind. Raises `StreamError`."""
        outer, inner = _NAMES[kind]
        try:
            if value["v"] != FORMAT:
                raise ValueError(f"format {value['v']}, this version knows {FORMAT}")
            if value["kind"] != kind:
                raise StreamError(
                    f"{where} has offsets of kind {value['kind']}, this stream needs {kind}: "
                    f"a stream over path cannot continue over endpoints, or vice versa"
                )
            marks = {
                str(name): Mark(*map(_whole, (row[inner], row.get("crc", 0), row.get("time", 0))))
                for name, row in value[outer].items()
            }
            topics = None
            if "topics" in value:
                names = value["topics"]
                names = None if names is None else frozenset(map(_text, names))
                pattern = value.get("topicsPattern")
                topics = Topics(names, pattern and re.compile(_text(pattern)).pattern)
        except (re.error, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise StreamError(
                f"{where} does not contain a rocketbed offset: {exc!r} in {value!r}"
            ) from exc
        return cls(kind, marks, topics)


_NAMED: Final = {
    PHYSICAL: 'broker, as {"broker-a": 4096}',
    QUEUE: 'queue, as {"broker-a|T|3": 17}',
}
"""Names of places in an option, for error messages."""
_NAMES: Final = {PHYSICAL: ("brokers", "pos"), QUEUE: ("queues", "off")}


def parse_offsets(text: str, kind: str, option: str = "startingOffsets") -> str | StreamOffset:
    """Parse the option `startingOffsets` or `endingOffsets`: `earliest`, `latest`, or JSON.

    JSON is an offset as in a checkpoint, or just names and numbers
    (`{"broker-a": 4096}`, `{"broker-a|T|3": 17}`), also `NEWEST` and `OLDEST`. Raises
    `StreamError`.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    source = f"option {option}"
    try:
        value = json.loads(text, object_pairs_hook=_names_once)
    except ValueError as exc:
        raise StreamError(
            f"{source} must be earliest, latest or JSON, not {text!r}: {exc}"
        ) from None
    if isinstance(value, dict) and "v" not in value:
        wrong = [f"{name!r}: {at!r}" for name, at in value.items() if type(at) is not int]
        if wrong:
            raise StreamError(
                f"{source} does not contain a rocketbed offset: {wrong[0]} in it; expected a whole"
                f" number for each {_NAMED[kind]}"
            )
    if isinstance(value, dict) and all(type(at) is int for at in value.values()):
        return StreamOffset(kind, {name: Mark(_place(at, source)) for name, at in value.items()})
    return StreamOffset.parse(value, kind, where=source)


def check_order(starting: str | StreamOffset, ending: str | StreamOffset) -> None:
    """Refuse a range of a queue that would end before it begins. Raises `StreamError`."""
    if isinstance(starting, str) or isinstance(ending, str):
        return
    for name, mark in starting.marks.items():
        end = ending.marks.get(name, mark).at
        if 0 <= end < mark.at:
            raise StreamError(f"startingOffsets {mark.at} of {name} is after endingOffsets {end}")


def check_names(marks: Mapping[str, Mark], present: set[str], source: str, advice: str) -> None:
    """Refuse offsets of brokers that the stream does not read. Raises `StreamError`."""
    foreign = sorted(set(marks) - present)
    if foreign:
        raise StreamError(
            f"{source} has offsets of {', '.join(foreign)}, but this stream reads "
            f"{', '.join(sorted(present)) or 'nothing'}: {advice}"
        )


def check_topics(passed: Topics | None, topics: Topics) -> None:
    """Refuse topics whose messages the checkpoint has already passed. Raises `StreamError`."""
    if passed is not None and not passed.has_all_of(topics):
        raise StreamError(
            f"the checkpoint is of a stream that took {passed}, this one takes {topics}: what was"
            " passed of other topics would never come; go on with those topics, or give this"
            " stream its own checkpointLocation"
        )


def shares(backlog: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide a limit by backlog (bytes or messages): the whole backlog if it fits, else `dealt`."""
    waiting = {name: size for name, size in backlog.items() if size > 0}
    return waiting if sum(waiting.values()) <= limit else dealt(waiting, limit)


def dealt(weights: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide a limit in proportion to weights, each at least 1.

    Each share is at least 1, so that none starves. The sum is the limit, or the number of weights
    if that is more.
    """
    spare = max(limit - len(weights), 0)
    total = max(sum(weights.values()) - len(weights), 1)
    dealt_out: dict[str, int] = {}
    passed = dealt_before = 0
    for name, weight in weights.items():
        passed += weight - 1
        up_to = passed * spare // total
        dealt_out[name] = 1 + up_to - dealt_before
        dealt_before = up_to
    return dealt_out


def lags(at: StreamOffset, newest: StreamOffset) -> dict[str, int]:
    """Return the distance by broker (bytes) or queue (messages); a new queue counts from 0."""
    begins = at.marks
    return {
        name: max(mark.at - (begins[name].at if name in begins else 0), 0)
        for name, mark in newest.marks.items()
    }


def queue_name(broker: str, topic: str, queue_id: int) -> str:
    return f"{broker}|{topic}|{queue_id}"


def topic_of(name: str) -> str:
    """Return the topic in a queue's name; a topic may have a bar in it, as a retry topic has."""
    return name.partition("|")[2].rpartition("|")[0]


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict. Raises `ValueError` for a name that occurs twice, which is ambiguous."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice = next(name for name, _ in pairs if sum(name == each for each, _ in pairs) > 1)
        raise ValueError(f"{twice!r} stands twice")
    return unique


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not an integer")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return value


def _place(value: int, source: str) -> int:
    if value < OLDEST:
        raise StreamError(f"{source}: {value} is no offset; {NEWEST} is latest, {OLDEST} earliest")
    return value
