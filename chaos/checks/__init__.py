"""Checks of a finished run, one module for each family of anomalies (chaos.md 2).

`judge_run` judges a run directory. What a check is: `check`; all of them, in order: `registry`.
"""
