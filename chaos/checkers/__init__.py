"""Checks of a finished run, one module for each family of anomalies (chaos.md 2).

A check takes the evidence and gives a `CheckResult`; `trial` puts those of the trial together.
"""

from chaos.checkers.result import CheckResult, Verdict, all_passed
from chaos.checkers.trial import check_trial

__all__ = ["CheckResult", "Verdict", "all_passed", "check_trial"]
