"""Checks of a finished run, one module for each family of anomalies (chaos.md 2).

`judge_run` judges a run directory. What a check is: `check`; all of them, in order: `registry`.
"""

from rocketbed.chaos.checkers.judgement import Judgement, RunVerdict, judge_run
from rocketbed.chaos.checkers.result import CheckResult, Severity, Verdict

__all__ = ["CheckResult", "Judgement", "RunVerdict", "Severity", "Verdict", "judge_run"]
