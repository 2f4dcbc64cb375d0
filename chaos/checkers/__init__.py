"""Checks of a finished run, one module for each family of anomalies (chaos.md 2).

`judge_run` judges a run directory; `check_trial` is the demo's shorter form. A check takes the
`Evidence`, or the `Context` with what several need, and gives a `CheckResult`.
"""

from chaos.checkers.judgement import Judgement, RunVerdict, judge_run
from chaos.checkers.result import CheckResult, Severity, Verdict, all_passed
from chaos.checkers.trial import check_trial

__all__ = [
    "CheckResult",
    "Judgement",
    "RunVerdict",
    "Severity",
    "Verdict",
    "all_passed",
    "check_trial",
    "judge_run",
]
