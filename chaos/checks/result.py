"""Result of one check. It is never `ok` by default.

A check that had nothing to examine has shown nothing: `did-not-run`, like one that lacked evidence.
Only if the nature of the run leaves a check nothing to examine (no consumer group, so no group's
positions) it is `not-applicable`, with the reason, and does not prevent a pass.
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
    """Meaning of a violation for the run (chaos.md 2.4)."""

    SAFETY = "S"
    """Fails the run."""
    WARNING = "W"
    """Shown, without failing the run."""
    METRIC = "M"
    """A figure; never violated."""
    LIVENESS = "L"
    """The run stalled."""
    CRASH = "C"
    """A process ended on its own."""


@dataclass(frozen=True, slots=True)
class Excuse:
    """Reason that allows a finding: something done to the cluster, and the time in which it
    counts."""

    cause: str
    """Such as `power cut of b1, which came back as master`."""
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Excused:
    """A line of the ledger: what one excuse covers in one check."""

    excuse: Excuse
    count: int
    """Number of findings."""
    values: tuple[int, ...]
    """The messages among them; at most 32."""


@dataclass(slots=True)
class Example:
    """Finding of a check: the sentence, and the place it belongs to as far as that is known."""

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
    """Distance from the expected state, in the check's own measure; the largest are shown."""
    around: list[str] = field(default_factory=list)
    """Messages at the neighbouring offsets."""
    roles: dict[str, str] = field(default_factory=dict)
    """Role of each node at that time: `master`, `slave`, `down`."""
    faults: list[str] = field(default_factory=list)
    """Steps that were active at that time."""
    excuse: Excuse | None = None
    """Reason that allows it."""

    def as_row(self) -> dict[str, object]:
        """Return the fields that are set, as JSON fields."""
        empty: tuple[object, ...] = (None, "", [], {})
        return {name: value for name, value in asdict(self).items() if value not in empty}


Finding = str | Example


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check, made by `judged`, `not_run` or `not_applicable`."""

    id: str
    """Id of the check, such as `lost-write`."""
    verdict: Verdict
    examined: int
    """Number of things examined; `unit` names them."""
    unit: str
    examples: tuple[Example, ...] = ()
    """At most 32: the first ones and those with the largest distance."""
    found: int = 0
    """Number of findings in all."""
    note: str = ""
    """A figure or a reason, for the report."""
    severity: Severity = Severity.SAFETY
    allowed: tuple[Example, ...] = ()
    """Findings that the configuration and the faults allow; at most 32."""
    allowed_found: int = 0
    excused: tuple[Excused, ...] = ()
    """All allowed findings, by excuse."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Numbers of a metric by name, which ends with the unit."""

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(example.text for example in self.examples)

    @property
    def passed(self) -> bool:
        """True if the check ran, examined something, and held."""
        return self.verdict is Verdict.OK

    @property
    def harmless(self) -> bool:
        """True if a run with this result may pass."""
        if self.verdict is Verdict.VIOLATED:
            return self.severity in (Severity.WARNING, Severity.METRIC)
        return self.verdict is not Verdict.DID_NOT_RUN

    def as_row(self) -> dict[str, object]:
        return {
            **asdict(self),
            "findings": list(self.findings),
            "examples": [example.as_row() for example in self.examples],
            "allowed": [example.as_row() for example in self.allowed],
        }


def judged(
    id: str,
    examined: int,
    unit: str,
    findings: Sequence[Finding],
    note: str = "",
    *,
    severity: Severity = Severity.SAFETY,
    allowed: Sequence[Example] = (),
    figures: dict[str, Any] | None = None,
) -> CheckResult:
    """Return the result of a check that ran: `ok` only if it examined something and found
    nothing."""
    if findings:
        verdict = Verdict.VIOLATED
    elif examined > 0:
        verdict = Verdict.OK
    else:
        verdict = Verdict.DID_NOT_RUN
        note = note or f"there were no {unit} to examine"
    return CheckResult(
        id,
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
    id: str, unit: str, reason: str, *, severity: Severity = Severity.SAFETY
) -> CheckResult:
    """Return the result of a check that could not run."""
    return CheckResult(id, Verdict.DID_NOT_RUN, 0, unit, note=reason, severity=severity)


def not_applicable(
    id: str, unit: str, reason: str, *, severity: Severity = Severity.SAFETY
) -> CheckResult:
    """Return the result of a check that this run has nothing for."""
    return CheckResult(id, Verdict.NOT_APPLICABLE, 0, unit, note=reason, severity=severity)


def _ledger(allowed: Iterable[Example]) -> tuple[Excused, ...]:
    by_excuse: dict[Excuse, list[Example]] = {}
    for example in allowed:
        assert example.excuse is not None, "an allowed finding says what allows it"
        by_excuse.setdefault(example.excuse, []).append(example)
    lines = []
    for excuse, examples in by_excuse.items():
        values = sorted({example.value for example in examples if example.value is not None})
        lines.append(Excused(excuse, len(examples), tuple(values[:EXAMPLES_MAX])))
    return tuple(lines)


def _select(findings: Sequence[Finding]) -> list[Example]:
    """Return the first half by order, and the other half by distance."""
    examples = [Example(finding) if isinstance(finding, str) else finding for finding in findings]
    if len(examples) <= EXAMPLES_MAX:
        return examples
    half = EXAMPLES_MAX // 2
    farthest = sorted(examples[half:], key=lambda example: -example.distance)
    return examples[:half] + farthest[: EXAMPLES_MAX - half]
