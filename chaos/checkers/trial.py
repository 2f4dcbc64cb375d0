"""All checks of the trial: kills of processes, under load, with synchronous replication.

`check_trial` never raises for what it finds wrong: a check that cannot run says so, and the trial
passes only if every one of them ran and held.
"""

import os
from collections.abc import Callable, Mapping

from chaos.checkers.evidence import Evidence, gather
from chaos.checkers.loss import allowed_loss
from chaos.checkers.messages import (
    dense_queues,
    duplicates,
    inconsistent_offsets,
    lost_writes,
    moved_writes,
    phantom_writes,
    unknown_values,
)
from chaos.checkers.replicas import equal_logs
from chaos.checkers.result import CheckResult, judged, not_run
from chaos.checkers.stores import store_checks
from chaos.history import History, Outcome, read_history
from rocketbed.inspect import NotAStore, Settings

Check = Callable[[Evidence], CheckResult]

HISTORY_CHECKS: tuple[tuple[str, Check], ...] = (
    ("A1 lost write", lost_writes),
    ("A3 phantom", phantom_writes),
    ("A4 unknown value", unknown_values),
    ("A5 duplicate", duplicates),
    ("A7 inconsistent offset", inconsistent_offsets),
    ("A8 moved write", moved_writes),
    ("2.3 allowed loss", allowed_loss),
)
"""Checks that need a whole history."""
LOG_CHECKS: tuple[tuple[str, Check], ...] = (
    ("S6 dense queues", dense_queues),
    ("R1 logs byte-equal", equal_logs),
)
"""Checks of the directories alone."""


def check_trial(
    history_path: str | os.PathLike[str],
    directories: Mapping[str, str],
    leader: str,
    *,
    settings: Settings | None = None,
    stopped_cleanly: bool = True,
) -> list[CheckResult]:
    """Check a finished trial.

    `directories` are the nodes' store directories by name, all stopped; `leader` is the node that
    was master at the end. With `stopped_cleanly` nothing may be unfinished in any of them.
    """
    try:
        history = read_history(history_path)
    except OSError as error:
        history = History(cut=f"it cannot be read: {error}")
    except (ValueError, TypeError, KeyError) as error:
        history = History(cut=f"a block of it cannot be decoded: {error}")
    try:
        evidence = gather(history, directories, leader, settings)
    except (NotAStore, OSError) as error:
        return [_check_history(history), not_run("directories", "directories", str(error))]
    results = [_check_history(history)]
    for name, check in HISTORY_CHECKS:
        if history.cut is None:
            results.append(_guarded(name, check, evidence))
        else:
            results.append(not_run(name, "rows", f"the history is not whole: {history.cut}"))
    results += [_guarded(name, check, evidence) for name, check in LOG_CHECKS]
    results += store_checks(evidence, stopped_cleanly=stopped_cleanly)
    for node in evidence.nodes:
        node.directory.close()
    return results


def _check_history(history: History) -> CheckResult:
    """The history itself is whole."""
    findings = [history.cut] if history.cut else []
    outcomes = history.columns["outcome"]
    note = ", ".join(f"{outcomes.count(outcome)} {outcome.name.lower()}" for outcome in Outcome)
    return judged("history", len(history.columns), "rows", findings, note)


def _guarded(name: str, check: Check, evidence: Evidence) -> CheckResult:
    """A check that crashes has shown nothing."""
    try:
        return check(evidence)
    except Exception as error:
        return not_run(name, "rows", f"the check itself failed: {error!r}")
