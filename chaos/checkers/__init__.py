"""Checks of a finished run, one module for each family of anomalies (chaos.md 2).

`judge_run` judges a run directory. A check takes the `Evidence`, or the `Context` with what several
need, and gives a `CheckResult`.
"""

from rocketbed.chaos.checkers.judgement import Judgement, RunVerdict, judge_run
from rocketbed.chaos.checkers.result import CheckResult, Severity, Verdict, all_passed

__all__ = [
    "CheckResult",
    "Judgement",
    "RunVerdict",
    "Severity",
    "Verdict",
    "all_passed",
    "judge_run",
]
