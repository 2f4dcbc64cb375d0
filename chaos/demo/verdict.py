"""What a trial amounts to: one word, one exit code, and everything behind it as JSON.

A trial passes only if every check held and every check ran. Order of severity and codes: chaos.md
2.10 and 4.9.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from chaos.checkers.result import CheckResult, Verdict, all_passed


class Result(StrEnum):
    """The one word."""

    PASS = "pass"
    ANOMALY = "anomaly"
    CRASHED = "crashed"
    STALLED = "stalled"
    UNKNOWN = "unknown"
    HARNESS_ERROR = "harness-error"


EXIT_CODES: Final = {
    Result.PASS: 0,
    Result.ANOMALY: 1,
    Result.STALLED: 2,
    Result.CRASHED: 3,
    Result.HARNESS_ERROR: 4,
    Result.UNKNOWN: 6,
}
CRASH_CHECK: Final = "D5 no node ended by itself"
LIVENESS_CHECKS: Final = frozenset({"D4 back after every kill", "D6 slaves caught up"})


@dataclass(slots=True, kw_only=True)
class DemoVerdict:
    """The outcome of one trial, for people and as JSON."""

    seed: int
    checks: list[CheckResult] = field(default_factory=list)
    stalled: str = ""
    """Why the trial did not come to its end; empty when it did."""
    error: str = ""
    """What the harness itself failed at."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Everything that the report shows beside the checks."""

    @property
    def result(self) -> Result:
        """The worst of what was found."""
        return judge(self.checks, stalled=bool(self.stalled), failed=bool(self.error))

    @property
    def exit_code(self) -> int:
        """For the shell."""
        return EXIT_CODES[self.result]

    def as_row(self) -> dict[str, Any]:
        """As JSON fields."""
        return {
            "result": str(self.result),
            "exit_code": self.exit_code,
            "seed": self.seed,
            "stalled": self.stalled,
            "error": self.error,
            "checks": [check.as_row() for check in self.checks],
            **self.facts,
        }


def judge(checks: Sequence[CheckResult], *, stalled: bool, failed: bool) -> Result:
    """The worst of all; a pass needs checks, and every one of them to have run and held."""
    violated = {check.title for check in checks if check.verdict is Verdict.VIOLATED}
    if violated - LIVENESS_CHECKS - {CRASH_CHECK}:
        return Result.ANOMALY
    if CRASH_CHECK in violated:
        return Result.CRASHED
    if stalled or violated:
        return Result.STALLED
    if failed:
        return Result.HARNESS_ERROR
    return Result.PASS if all_passed(checks) else Result.UNKNOWN
