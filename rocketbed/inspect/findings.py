"""What a check has found: the rule, how bad it is, where, and what to do.

A missing queue can break a rule a million times, so findings of one rule in one file are kept up to
a few examples and counted beyond.
"""

import enum
from dataclasses import dataclass, replace

EXAMPLES_MAX = 8


class Severity(enum.IntEnum):
    """How bad; also the exit status of `rocketbed store fsck`."""

    NOTE = 0
    """Worth knowing, nothing is wrong."""
    TAIL = 1
    """What an unclean stop leaves behind and the next start mends by itself."""
    DAMAGE = 2
    """Something that was there is gone, wrong, or will mislead the broker."""


RULES: dict[str, str] = {
    "S1": "segments and records tile the log",
    "S2": "checksums hold",
    "S3": "nothing refers to what lies beyond the log's end",
    "S4": "queue entries point to their records",
    "S5": "every queued record has its queue entry",
    "S6": "entry n of a queue is the record with queue offset n",
    "S7": "queue entries carry the record's tag code",
    "S8": "index entries, chains and headers are true",
    "S9": "no damage within the log",
    "S10": "every key is indexed once",
    "S11": "the checkpoint claims nothing that the files do not prove",
    "S12": "the abort file tells how the store was left",
    "S13": "the log ends with a whole record",
    "S15": "configuration files can be read",
    "S16": "queue bounds fit the log's",
    "S18": "one process holds a store",
    "sizes": "files have the sizes that the broker expects",
    "topics": "the topic table knows every topic of the log",
}
"""Rules by id: chaos.md 2.7 (what one directory can show), and those of store.md 1 and 17."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `offset` is in bytes of the file or log, or a slot of a queue (`what` says)."""

    rule: str
    severity: Severity
    file: str
    offset: int | None
    what: str
    advice: str
    count: int = 1
    """How many findings like this one; examples beyond the first few are only counted."""

    def as_row(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "severity": self.severity.name.lower(),
            "file": self.file,
            "offset": self.offset,
            "what": self.what,
            "advice": self.advice,
            "count": self.count,
        }


class Findings:
    """Collects findings and counts repetitions."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, Severity, str, str], list[Finding]] = {}
        self._beyond: dict[tuple[str, Severity, str, str], int] = {}

    def add(
        self,
        rule: str,
        severity: Severity,
        file: str,
        what: str,
        *,
        offset: int | None = None,
        advice: str = "",
        count: int = 1,
    ) -> None:
        """Note a finding; beyond a few of one kind (rule, file, advice) only count it."""
        assert rule in RULES, rule
        kind = (rule, severity, file, advice)
        group = self._groups.setdefault(kind, [])
        if len(group) < EXAMPLES_MAX:
            group.append(Finding(rule, severity, file, offset, what, advice, count))
        else:
            self._beyond[kind] = self._beyond.get(kind, 0) + count

    def all(self) -> tuple[Finding, ...]:
        """Findings, the worst first; the last example of a kind carries the uncounted rest."""
        found: list[Finding] = []
        for kind, group in self._groups.items():
            beyond = self._beyond.get(kind, 0)
            if beyond:
                last = group[-1]
                what = f"{last.what} (and {beyond} more like it in this file)"
                group = [*group[:-1], replace(last, what=what, count=last.count + beyond)]
            found += group
        return tuple(sorted(found, key=lambda finding: -finding.severity))

    def worst(self) -> Severity:
        """The gravest severity found; NOTE when there is nothing."""
        return max((kind[1] for kind in self._groups), default=Severity.NOTE)
