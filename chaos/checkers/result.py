"""The answer of one check. It is never good by default.

A check that had nothing to look at has shown nothing: `did-not-run`, like one that could not look.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

FINDINGS_MAX = 32


class Verdict(enum.StrEnum):
    """What a check can say."""

    OK = "ok"
    VIOLATED = "violated"
    DID_NOT_RUN = "did-not-run"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's answer. Made by `judged` or `not_run`."""

    name: str
    verdict: Verdict
    examined: int
    """How many things were looked at; `unit` says what."""
    unit: str
    findings: tuple[str, ...] = ()
    """At most 32, the first ones."""
    found: int = 0
    """How many there are in all."""
    note: str = ""
    """A figure or a reason, for the report."""

    @property
    def passed(self) -> bool:
        """Whether the check ran, on something, and held."""
        return self.verdict is Verdict.OK

    def as_row(self) -> dict[str, object]:
        """The result as JSON fields."""
        return {
            "name": self.name,
            "verdict": str(self.verdict),
            "examined": self.examined,
            "unit": self.unit,
            "found": self.found,
            "findings": list(self.findings),
            "note": self.note,
        }


def judged(
    name: str, examined: int, unit: str, findings: Sequence[str], note: str = ""
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
        name, verdict, examined, unit, tuple(findings[:FINDINGS_MAX]), len(findings), note
    )


def not_run(name: str, unit: str, reason: str) -> CheckResult:
    """The result of a check that could not run."""
    return CheckResult(name, Verdict.DID_NOT_RUN, 0, unit, note=reason)


def all_passed(results: Sequence[CheckResult]) -> bool:
    """Whether there were checks, and every one of them passed."""
    return bool(results) and all(result.passed for result in results)
