"""The checks of the demo's trial: kills of processes, under load, with synchronous replication.

The demo has no run directory yet; this makes the record that one would hold, and runs the checks
that a trial of kills can answer. `check_trial` never raises for what it finds wrong: a check that
cannot run says so, and the trial passes only if every one of them ran and held.
"""

import os
from collections.abc import Mapping

from chaos.checkers.evidence import Evidence, gather
from chaos.checkers.judgement import check_evidence, check_history, guarded, load_history
from chaos.checkers.passes import choose
from chaos.checkers.registry import Check, Context, checks
from chaos.checkers.result import CheckResult, Verdict, not_run
from chaos.record import Promise, RunRecord
from rocketbed.inspect import Settings

IDS = (
    *("A1", "2.3", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "I13", "R1"),
    *("S1", "S2", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S15"),
)
"""What a trial answers; each of these has to have run."""


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
    history = load_history(history_path)
    nodes = sorted({leader, *directories})
    record = RunRecord(
        scenario="demo",
        backend="process",
        seed=0,
        promise=Promise(replication="sync", copies=2),
        groups={"demo": nodes},
        leaders={"demo": leader},
        stores={name: os.path.abspath(path) for name, path in directories.items()},
        stopped_cleanly=sorted(directories) if stopped_cleanly else [],
    )
    chosen = dict.fromkeys(directories, settings)
    evidence = gather(record, history, "", choose(), settings=chosen)
    results = [check_history(history), check_evidence(evidence)]
    context = Context(evidence)
    for check in checks():
        if check.ids.intersection(IDS):
            results += [result for result in _run(check, context) if result.id in IDS]
    evidence.close()
    return results


def _run(check: Check, context: Context) -> list[CheckResult]:
    history = context.evidence.history
    if check.needs_history and history.cut is not None:
        reason = f"the history is not whole: {history.cut}"
        return [not_run(title, "rows", reason) for title in check.titles]
    results = guarded(check.titles, lambda: check.run(context))
    return [_required(context.evidence, result) for result in results]


def _required(evidence: Evidence, result: CheckResult) -> CheckResult:
    """In a trial nothing is beside the point: what does not apply has not run."""
    if result.verdict is Verdict.NOT_APPLICABLE:
        return not_run(result.title, result.unit, result.note, severity=result.severity)
    return result
