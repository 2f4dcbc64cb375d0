"""Judges a run: runs every check on the run's directory and combines the results into one verdict.

A run passes only if every applicable check ran and held. A check that crashes, or that lacks
evidence, makes the run `unknown`; a truncated history does the same to all checks that rely on it.
Order of the verdicts: chaos.md 2.10; exit codes: chaos.md 4.9.
"""

import enum
import json
import os
import shutil
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.checks.check import Case
from rocketbed.chaos.checks.context import FaultSpan, Surroundings, outages
from rocketbed.chaos.checks.evidence import Evidence, gather
from rocketbed.chaos.checks.liveness.service import UNASKED
from rocketbed.chaos.checks.messages.losses import bound_rows
from rocketbed.chaos.checks.pauses import Pauses, pauses
from rocketbed.chaos.checks.registry import CHECK_IDS, CHECKS, WAITING
from rocketbed.chaos.checks.result import (
    CheckResult,
    Excuse,
    Excused,
    Severity,
    Verdict,
    judged,
    not_run,
)
from rocketbed.chaos.evidence.history import History, Outcome, read_history
from rocketbed.chaos.evidence.record import (
    ACKS_FILE,
    HISTORY_FILE,
    RUN_FILE,
    STORES,
    TRACE_FILE,
    RecordError,
    RunRecord,
    read_record,
)
from rocketbed.chaos.evidence.trace import read_trace
from rocketbed.chaos.plan.errors import ScenarioError

VERDICT_FILE = "verdict.json"
OURS: Final = (RUN_FILE, HISTORY_FILE, VERDICT_FILE, STORES, "nodes")
"""Names that identify a directory with a run, or with part of a run: it has some of them."""
RECOVERIES = 8
"""Number of images that are booted twice in a usual run; about 20 ms each."""


class RunVerdict(enum.StrEnum):
    PASS = "pass"
    ANOMALY = "anomaly"
    CRASHED = "crashed"
    STALLED = "stalled"
    UNKNOWN = "unknown"
    HARNESS_ERROR = "harness-error"
    SKIPPED = "skipped"


EXIT_CODES: Final = {
    RunVerdict.PASS: 0,
    RunVerdict.ANOMALY: 1,
    RunVerdict.STALLED: 2,
    RunVerdict.CRASHED: 3,
    RunVerdict.HARNESS_ERROR: 4,
    RunVerdict.SKIPPED: 5,
    RunVerdict.UNKNOWN: 6,
}
_BY_SEVERITY: Final = (
    (Severity.SAFETY, RunVerdict.ANOMALY),
    (Severity.CRASH, RunVerdict.CRASHED),
    (Severity.LIVENESS, RunVerdict.STALLED),
)


@dataclass(slots=True, kw_only=True)
class Judgement:
    record: RunRecord | None
    results: list[CheckResult] = field(default_factory=list)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    """Allowed and actual loss at each loss point (chaos.md 2.3)."""
    faults: list[FaultSpan] = field(default_factory=list)
    """Steps with the times in which they were in force."""
    rto: list[dict[str, Any]] = field(default_factory=list)
    """For each step the time until the next acknowledgement of a send that began after it."""
    pauses: Pauses = field(default_factory=Pauses)
    error: str = ""
    """Reason why the run could not be judged at all."""

    @property
    def verdict(self) -> RunVerdict:
        if self.error or self.record is None:
            return RunVerdict.HARNESS_ERROR
        if self.record.skipped and not self.record.steps and not self.record.stores:
            return RunVerdict.SKIPPED
        return decide(self.results)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def findings(self) -> list[CheckResult]:
        return [result for result in self.results if result.verdict is Verdict.VIOLATED]

    @property
    def finding_ids(self) -> list[str]:
        """Ids of the violated checks that count, sorted; they identify a mutant."""
        return sorted({result.id for result in self.findings if not result.harmless})

    @property
    def looked(self) -> dict[str, bool]:
        """Id of each requested check -> whether it had anything to examine."""
        has_examined: dict[str, bool] = {}
        for result in self.results:
            if result.note != UNASKED:
                ran = result.verdict in (Verdict.OK, Verdict.VIOLATED)
                has_examined[result.id] = has_examined.get(result.id, False) or ran
        return has_examined

    @property
    def by_weight(self) -> list[CheckResult]:
        """Violated checks that count: a lost message first, then by severity and registry order."""
        order = [severity for severity, _ in _BY_SEVERITY]
        places = {id_: place for place, id_ in enumerate(CHECK_IDS)}
        counted = [result for result in self.findings if not result.harmless]
        counted.sort(
            key=lambda result: (
                result.id != "lost-write",
                order.index(result.severity),
                places.get(result.id, len(places)),
            )
        )
        return counted

    @property
    def ledger(self) -> dict[Excuse, dict[str, Excused]]:
        """Allowed findings by excuse, in order of time, and by check."""
        lines: dict[Excuse, dict[str, Excused]] = {}
        for result in self.results:
            for line in result.excused:
                lines.setdefault(line.excuse, {})[result.id] = line
        return dict(sorted(lines.items(), key=lambda item: item[0].begin_ns))

    def result(self, check: str) -> CheckResult:
        """Return the result of a check by id. Raises `KeyError`."""
        return {result.id: result for result in reversed(self.results)}[check]

    def as_row(self) -> dict[str, Any]:
        record = self.record
        return {
            "verdict": str(self.verdict),
            "exit_code": self.exit_code,
            "error": self.error,
            "scenario": record.scenario if record else "",
            "backend": record.backend if record else "",
            "seed": record.seed if record else None,
            "digest": record.digest if record else "",
            "finding_ids": self.finding_ids,
            "findings": [result.as_row() for result in self.findings],
            "not_run": [
                {"id": result.id, "reason": result.note}
                for result in self.results
                if result.verdict is Verdict.DID_NOT_RUN
            ],
            "looked": self.looked,
            "bounds": self.bounds,
            "faults": [asdict(fault) for fault in self.faults],
            "rto": self.rto,
            "pauses": asdict(self.pauses),
            "checks": [result.as_row() for result in self.results],
            "waiting": WAITING,
            "skipped": record.skipped if record else [],
            "steps": record.steps if record else [],
            "stalls": [asdict(stall) for stall in record.stalls] if record else [],
        }

    def save(self, directory: Path) -> None:
        """Write `verdict.json` into the run's directory. Raises `OSError`."""
        text = json.dumps(self.as_row(), indent=1)
        (directory / VERDICT_FILE).write_text(text + "\n", encoding="utf-8")


Progress = Callable[[int, int, str], None]
"""Called with the number of finished checks, the number of all, and the id of the next."""
SecondJudge = Callable[[Path, Judgement], CheckResult]
"""Examines a run's directory and its judgement."""


def clear_place(place: Path) -> None:
    """Remove an earlier run. Raises `ScenarioError` for a directory that holds something else."""
    if not place.exists():
        return
    names = {path.name for path in place.iterdir()} if place.is_dir() else {place.name}
    if names and not names.intersection(OURS):
        raise ScenarioError(f"{place} exists and contains no run: choose another --report")
    shutil.rmtree(place, ignore_errors=True)


def decide(results: Sequence[CheckResult]) -> RunVerdict:
    """Return the worst verdict; a pass needs checks, and every applicable one to have run and
    held."""
    violated = {result.severity for result in results if result.verdict is Verdict.VIOLATED}
    for severity, verdict in _BY_SEVERITY:
        if severity in violated:
            return verdict
    if any(result.passed for result in results) and all(result.harmless for result in results):
        return RunVerdict.PASS
    return RunVerdict.UNKNOWN


def judge_run(
    directory: str | os.PathLike[str],
    *,
    only: Iterable[str] | None = None,
    recoveries: int = RECOVERIES,
    progress: Progress | None = None,
) -> Judgement:
    """Judge a run directory (`chaos.evidence.record`). Never raises for what it finds in it.

    `only` restricts the checks by id; the verdict then covers these alone. `recoveries` is the
    number of images that are booted twice (`recovery-idempotent`). `progress` is called before each
    check, in the judge's own thread.
    """
    place = Path(directory)
    try:
        record = read_record(place)
    except RecordError as error:
        return Judgement(record=None, error=str(error))
    history = load_history(place / HISTORY_FILE)
    results = [check_history(history)]
    try:
        paths = place / TRACE_FILE, place / ACKS_FILE
        trace, acks = (read_trace(path) if path.exists() else None for path in paths)
        evidence = gather(record, history, str(place), trace=trace, acks=acks)
    except Exception as error:
        results.append(not_run("evidence", "files", f"it cannot be read: {error!r}"))
        return Judgement(record=record, results=results)
    try:
        return _judge(evidence, results, only, recoveries, progress or _ignore_progress)
    finally:
        evidence.close()


def _judge(
    evidence: Evidence,
    results: list[CheckResult],
    only: Iterable[str] | None,
    recoveries: int,
    progress: Progress,
) -> Judgement:
    case = Case(evidence, recoveries=recoveries)
    selected = None if only is None else set(only)
    results.append(check_evidence(evidence))
    for number, check in enumerate(CHECKS):
        progress(number, len(CHECKS), check.ids[0])
        if selected is not None and selected.isdisjoint(check.ids):
            continue
        if check.needs_history and evidence.history.cut is not None:
            reason = f"the history is not whole: {evidence.history.cut}"
            results += [not_run(id_, "rows", reason) for id_ in check.ids]
            continue
        try:
            results += check.run(case)
        except Exception as error:  # a check that crashes has shown nothing
            reason = f"the check itself failed: {error!r} at {_line_of(error)}"
            results += [not_run(id_, "rows", reason) for id_ in check.ids]
    results[:] = [_require_examination(evidence.record.expect.checks, result) for result in results]
    if selected is None:
        present = {result.id for result in results}
        missing = [id_ for id_ in evidence.record.expect.checks if id_ not in present]
        results += [not_run(id_, "rows", "there is no such check") for id_ in missing]
    judgement = Judgement(record=evidence.record, results=results)
    try:
        if evidence.history.cut is None:
            judgement.bounds = bound_rows(evidence, case.losses)
        surroundings = Surroundings(evidence)
        surroundings.enrich(results)
        judgement.faults = surroundings.faults
        judgement.rto = outages(evidence, judgement.faults)
        judgement.pauses = pauses(evidence, judgement.faults, judgement.rto)
    except Exception as error:
        results.append(not_run("report", "rows", f"it failed: {error!r} at {_line_of(error)}"))
    return judgement


def _require_examination(required: Collection[str], result: CheckResult) -> CheckResult:
    """Return a result; if the run had to show something and its check had nothing to examine, as
    not run."""
    if result.verdict is not Verdict.NOT_APPLICABLE or result.id not in required:
        return result
    reason = f"{result.note}, and this run had to show it"
    return not_run(result.id, result.unit, reason, severity=result.severity)


def check_history(history: History) -> CheckResult:
    """The history is complete."""
    rows = len(history.columns)
    if history.cut:
        last = max(history.columns["returned_ns"], default=0)
        reason = f"{history.cut}; {rows} rows were read, the last one returned at {last} ns"
        return not_run("history", "rows", reason)
    outcomes = history.columns["outcome"]
    note = ", ".join(f"{outcomes.count(outcome)} {outcome.name.lower()}" for outcome in Outcome)
    return judged("history", rows, "rows", [], note)


def check_evidence(evidence: Evidence) -> CheckResult:
    """Every directory that the record names was read, and every node has one."""
    unread = dict(evidence.unread)
    for name in evidence.record.nodes:
        if name not in evidence.record.stores:
            unread.setdefault(name, "its directory was not kept")
    if unread:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unread.items())
        return not_run("evidence", "directories", reasons)
    return judged("evidence", len(evidence.nodes) + len(evidence.images), "directories", [])


def load_history(path: str | os.PathLike[str]) -> History:
    """Read a history; an unreadable one counts as truncated."""
    try:
        return read_history(path)
    except OSError as error:
        return History(cut=f"it cannot be read: {error}")
    except (ValueError, TypeError, KeyError, OverflowError, IndexError) as error:
        return History(cut=f"a block of it cannot be decoded: {error}")


def _ignore_progress(done: int, of: int, id_: str) -> None:
    """Ignore progress."""


def _line_of(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"
