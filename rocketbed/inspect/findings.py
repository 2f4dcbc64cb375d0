"""Findings of a check: rule, severity, place and advice.

A missing queue can break a rule a million times, so only a few findings of one rule in one file are
kept as examples; further ones are counted.
"""

import enum
from bisect import bisect_right
from dataclasses import dataclass, replace

EXAMPLES_MAX = 8
EVERYTHING = 1 << 63
"""An offset beyond every log."""
HEAL = "copy the missing bytes from a replica: rocketbed store heal"
REBUILD = "rebuild queues and index from the log: rocketbed store rebuild"
FULL_RECOVERY = (
    "with the broker stopped, create abort and delete checkpoint: recovery then reads the whole log"
)
NEXT_START = "nothing to do: the next start of the broker repairs it"


class Severity(enum.IntEnum):
    """Severity of a finding, also the exit status of `rocketbed store fsck`."""

    NOTE = 0
    """Worth knowing; nothing is wrong."""
    TAIL = 1
    """Left by an unclean stop; the next start repairs it."""
    DAMAGE = 2
    """Data is lost, wrong, or will mislead the broker."""


RULES: dict[str, str] = {
    "log-files-tile": "segments and records tile the log",
    "record-checksums": "checksums hold",
    "nothing-beyond-log": "nothing refers to what lies beyond the log's end",
    "queue-entries-match-log": "queue entries point to their records",
    "queue-entries-complete": "every queued record has its queue entry",
    "queue-entry-places": "entry n of a queue is the record with queue offset n",
    "queue-tag-codes": "queue entries carry the record's tag code",
    "index-matches-log": "index entries, chains and headers are true",
    "no-silent-damage": "no damage within the log",
    "index-complete": "every key is indexed once",
    "checkpoint-not-ahead": "the checkpoint claims nothing that the files do not prove",
    "abort-file": "the abort file tells how the store was left",
    "log-end": "the log ends with a whole record",
    "tables-readable": "configuration files can be read",
    "queue-bounds": "queue bounds fit the log's",
    "one-store-owner": "one process holds a store",
    "sizes": "files have the sizes that the broker expects",
    "topics": "the topic table knows every topic of the log",
}
"""Descriptions of the rules by id: chaos.md 2.7 (as far as one directory shows them), store.md 1
and 17."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. `offset` is in bytes of the file or log, or a slot of a queue, as `text`
    says."""

    rule: str
    severity: Severity
    file: str
    offset: int | None
    text: str
    advice: str
    count: int = 1
    """Number of findings like this one; beyond the first few they are only counted."""
    cause: int | None = None
    """Log offset of the damage that this finding follows from; None if it stands for itself."""

    def as_row(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "severity": self.severity.name.lower(),
            "file": self.file,
            "offset": self.offset,
            "what": self.text,
            "advice": self.advice,
            "count": self.count,
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages of a queue that the log no longer has: a range of queue offsets, both inclusive."""

    topic: str
    queue_id: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.last - self.first + 1

    def as_row(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "queueId": self.queue_id,
            "first": self.first,
            "last": self.last,
            "count": self.count,
        }


_Kind = tuple[str, Severity, str, str, int | None]
"""Rule, severity, file, advice and cause."""


class Findings:
    """Collects findings, damaged ranges of the log and lost messages, and counts repetitions."""

    def __init__(self) -> None:
        self._groups: dict[_Kind, list[Finding]] = {}
        self._beyond: dict[_Kind, int] = {}
        self._losses: dict[str, list[tuple[int, int]]] = {}
        self._damaged: list[tuple[int, int]] = []
        """Damaged ranges of the log, in its order."""

    def add_damage(self, start: int, end: int = EVERYTHING) -> None:
        """Record that the log has no records between two offsets; findings in between follow from
        that."""
        self._damaged.append((start, end))

    def cause_at(self, offset: int) -> int | None:
        """Return the start of the damaged range around a log offset, or None."""
        number = bisect_right(self._damaged, (offset, EVERYTHING)) - 1
        if number < 0 or offset >= self._damaged[number][1]:
            return None
        return self._damaged[number][0]

    def cause_before(self, offset: int) -> int | None:
        """Return the start of the last damaged range before a log offset, or None."""
        number = bisect_right(self._damaged, (offset, -1)) - 1
        return self._damaged[number][0] if number >= 0 else None

    def add_loss(self, queue: str, first: int, last: int) -> None:
        """Record that messages of a queue, given as `TOPIC/ID`, are lost: a range of queue
        offsets."""
        ranges = self._losses.setdefault(queue, [])
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = ranges[-1][0], last
        else:
            ranges.append((first, last))

    def losses(self) -> tuple[Loss, ...]:
        """Return the lost messages by queue."""
        return tuple(
            Loss(queue.rpartition("/")[0], int(queue.rpartition("/")[2]), first, last)
            for queue, ranges in sorted(self._losses.items())
            for first, last in ranges
        )

    def add(
        self,
        rule: str,
        severity: Severity,
        file: str,
        text: str,
        *,
        offset: int | None = None,
        advice: str = "",
        count: int = 1,
        cause: int | None = None,
    ) -> None:
        """Record a finding; beyond a few of one kind (rule, file, advice, cause) only count it."""
        assert rule in RULES, rule
        if severity is Severity.TAIL:
            advice = NEXT_START
        kind = (rule, severity, file, advice, cause)
        group = self._groups.setdefault(kind, [])
        if len(group) < EXAMPLES_MAX:
            group.append(Finding(rule, severity, file, offset, text, advice, count, cause))
        else:
            self._beyond[kind] = self._beyond.get(kind, 0) + count

    def all(self) -> tuple[Finding, ...]:
        """Return the findings, the most severe first; the last example of a kind carries the count
        of those not kept."""
        collected: list[Finding] = []
        for kind, group in self._groups.items():
            beyond = self._beyond.get(kind, 0)
            if beyond:
                last = group[-1]
                text = f"{last.text} (and {beyond} more like it in this file)"
                group = [*group[:-1], replace(last, text=text, count=last.count + beyond)]
            collected += group
        return tuple(sorted(collected, key=lambda finding: -finding.severity))

    def worst(self) -> Severity:
        """Return the highest severity; NOTE without findings."""
        return max((kind[1] for kind in self._groups), default=Severity.NOTE)
