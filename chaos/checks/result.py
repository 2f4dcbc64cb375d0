"""The answer of one check. It is never good by default.

A check that had nothing to look at has shown nothing: `did-not-run`, like one that could not look.
Only where the run by its nature has nothing for a check (no consumer group, so no group's
positions) it is `not-applicable`, with the reason, and takes nothing from a pass.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

EXAMPLES_MAX = 32


class Verdict(enum.StrEnum):
    OK = "ok"
    VIOLATED = "violated"
    DID_NOT_RUN = "did-not-run"
    NOT_APPLICABLE = "not-applicable"


class Severity(enum.StrEnum):
    """What a violation means for the run (chaos.md 2.4)."""

    SAFETY = "S"
    """Fails the run."""
    WARNING = "W"
    """Is shown."""
    METRIC = "M"
    """Is a figure; never violated."""
    LIVENESS = "L"
    """The run stalled."""
    CRASH = "C"
    """A process ended by itself."""


@dataclass(frozen=True, slots=True)
class Excuse:
    """What allows a finding: something that was done to the cluster, and when it counts."""

    cause: str
    """`power cut of b1, which came back as master`."""
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Excused:
    """A line of the ledger: what one excuse covers in one check."""

    excuse: Excuse
    count: int
    """Findings."""
    values: tuple[int, ...]
    """The messages among them; at most 32."""


@dataclass(slots=True)
class Example:
    """One finding: the sentence, and where it belongs, as far as that is known."""

    text: str
    value: int | None = None
    operation: int | None = None
    node: str = ""
    topic: str = ""
    queue: int | None = None
    offset: int | None = None
    """Queue offset."""
    physical: int | None = None
    """Log offset, bytes."""
    time_ns: int | None = None
    distance: int = 0
    """How far it is from what should be, in the check's own measure; the farthest are shown."""
    around: list[str] = field(default_factory=list)
    """Messages at the neighbouring offsets."""
    roles: dict[str, str] = field(default_factory=dict)
    """What each node was at that time: `master`, `slave`, `down`."""
    faults: list[str] = field(default_factory=list)
    """Steps that were active at that time."""
    excuse: Excuse | None = None
    """What allows it."""

    def as_row(self) -> dict[str, object]:
        """Only what is known, as JSON fields."""
        empty: tuple[object, ...] = (None, "", [], {})
        return {name: value for name, value in asdict(self).items() if value not in empty}


Finding = str | Example


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's answer. Made by `judged`, `not_run`, `not_applicable`."""

    title: str
    """Id and name: `A1 lost write`."""
    verdict: Verdict
    examined: int
    """How many things were looked at; `unit` says what."""
    unit: str
    examples: tuple[Example, ...] = ()
    """At most 32: the first ones and the farthest ones."""
    found: int = 0
    """How many there are in all."""
    note: str = ""
    """A figure or a reason, for the report."""
    severity: Severity = Severity.SAFETY
    allowed: tuple[Example, ...] = ()
    """Findings that the configuration and the faults allow; at most 32."""
    allowed_found: int = 0
    excused: tuple[Excused, ...] = ()
    """All that was allowed, by what allowed it."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Numbers of a metric by name, units last."""

    @property
    def id(self) -> str:
        """`A1`."""
        return self.title.partition(" ")[0]

    @property
    def name(self) -> str:
        return self.title.partition(" ")[2] or self.title

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(example.text for example in self.examples)

    @property
    def passed(self) -> bool:
        """Whether the check ran, on something, and held."""
        return self.verdict is Verdict.OK

    @property
    def harmless(self) -> bool:
        """Whether a run with this result may pass."""
        if self.verdict is Verdict.VIOLATED:
            return self.severity in (Severity.WARNING, Severity.METRIC)
        return self.verdict is not Verdict.DID_NOT_RUN

    def as_row(self) -> dict[str, object]:
        return {
            "id": self.id,
            "name": self.name,
            **asdict(self),
            "findings": list(self.findings),
            "examples": [example.as_row() for example in self.examples],
            "allowed": [example.as_row() for example in self.allowed],
        }


def judged(
    title: str,
    examined: int,
    unit: str,
    findings: Sequence[Finding],
    note: str = "",
    *,
    severity: Severity = Severity.SAFETY,
    allowed: Sequence[Example] = (),
    figures: dict[str, Any] | None = None,
) -> CheckResult:
    """The result of a check that ran: `ok` only if it examined something and found nothing."""
    if findings:
        verdict = Verdict.VIOLATED
    elif examined > 0:
        verdict = Verdict.OK
    else:
        verdict = Verdict.DID_NOT_RUN
        note = note or f"there were no {unit} to examine"
    return CheckResult(
        title,
        verdict,
        examined,
        unit,
        tuple(_select(findings)),
        len(findings),
        note,
        severity,
        tuple(_select(allowed)),
        len(allowed),
        _ledger(allowed),
        figures or {},
    )


def not_run(
    title: str, unit: str, reason: str, *, severity: Severity = Severity.SAFETY
) -> CheckResult:
    """The result of a check that could not run."""
    return CheckResult(title, Verdict.DID_NOT_RUN, 0, unit, note=reason, severity=severity)


def not_applicable(
    title: str, unit: str, reason: str, *, severity: Severity = Severity.SAFETY
) -> CheckResult:
    """The result of a check that this run, by what it did, has nothing for."""
    return CheckResult(title, Verdict.NOT_APPLICABLE, 0, unit, note=reason, severity=severity)


def _ledger(allowed: Iterable[Example]) -> tuple[Excused, ...]:
    by_excuse: dict[Excuse, list[Example]] = {}
    for example in allowed:
        assert example.excuse is not None, "an allowed finding says what allows it"
        by_excuse.setdefault(example.excuse, []).append(example)
    lines = []
    for excuse, examples in by_excuse.items():
        values = sorted({one.value for one in examples if one.value is not None})
        lines.append(Excused(excuse, len(examples), tuple(values[:EXAMPLES_MAX])))
    return tuple(lines)


def _select(findings: Sequence[Finding]) -> list[Example]:
    """The first half by order, the other half by distance."""
    examples = [Example(found) if isinstance(found, str) else found for found in findings]
    if len(examples) <= EXAMPLES_MAX:
        return examples
    half = EXAMPLES_MAX // 2
    rest = sorted(examples[half:], key=lambda example: -example.distance)
    return examples[:half] + rest[: EXAMPLES_MAX - half]
