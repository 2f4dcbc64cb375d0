"""Checks of a finished run, one module for each family of anomalies (chaos.md 2).

`judge_run` judges a run directory. `check` defines a check; `registry` lists all of them in
order.
"""
