"""One run of one test in this very process, from nothing to what came of it."""

import json
import os
import time
import traceback
from pathlib import Path

from rocketbed.chaos.checkers.judgement import Judgement, RunVerdict, judge_run
from rocketbed.chaos.checkers.result import Severity
from rocketbed.chaos.hunt.runner import VERDICT_FILE
from rocketbed.chaos.record import RunRecord
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.testing.errors import ChecksFailed
from rocketbed.chaos.testing.order import Order, Told
from rocketbed.chaos.testing.places import PLACES
from rocketbed.chaos.testing.script import Script


def perform(
    order: Order, script: Script, directory: Path, *, home: str = ""
) -> tuple[Told, BaseException | None]:
    """Run a script; what came of it, and the error of the body or of the checks.

    `home` is the file of the test, for the place of its failure. The directory is empty.
    """
    began = time.monotonic()
    played = PLACES[order.backend](order.plan, directory, order.wishes, script)
    told = Told(
        steps=[(number, step.action()) for number, step in script.steps.items()],
        storms=script.storms,
        done=script.done,
        digest=played.digest,
        simulated_s=played.simulated_s,
        body_s=script.body_s,
        directory=directory,
    )
    if script.skipped:
        told.kind, told.reason = "skipped", script.skipped
        return told, None
    error = script.failure
    if error is None and script.wants_judgement:
        error = _judge(script, played.record, directory, told)
    if error is not None:
        told.kind = "failed"
        told.signature = signature(error, home)
    told.wall_s = time.monotonic() - began
    return told, error


def signature(error: BaseException, home: str) -> str:
    """What makes two failures the same: the gravest finding, or kind and line of an error."""
    if isinstance(error, ChecksFailed):
        return f"checks:{''.join(error.finding_ids[:1])}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.realpath(frame.filename) == os.path.realpath(home)
    ]
    return f"{type(error).__name__}:{lines[-1] if lines else 0}"


def _judge(script: Script, record: RunRecord, directory: Path, told: Told) -> ChecksFailed | None:
    judgement = judge_run(directory, only=script.checks or None)
    text = json.dumps(judgement.as_row(), indent=1)
    (directory / VERDICT_FILE).write_text(text + "\n", encoding="utf-8")
    told.finding_ids = _by_weight(judgement)
    if judgement.verdict is RunVerdict.PASS:
        return None
    write_report(directory, judgement, record, again="pytest --rb-replay FILE")
    return ChecksFailed(_verdict_text(judgement, record, script), told.finding_ids)


def _by_weight(judgement: Judgement) -> tuple[str, ...]:
    """Ids of what was found, a lost message before all, then safety, then the rest."""
    order = [Severity.SAFETY, Severity.CRASH, Severity.LIVENESS]
    counted = [result for result in judgement.findings if not result.harmless]
    counted.sort(key=lambda result: (result.id != "A1", order.index(result.severity), result.id))
    return tuple(dict.fromkeys(result.id for result in counted))


def _verdict_text(judgement: Judgement, record: RunRecord, script: Script) -> str:
    asked = f"chaos.check() of {script.asked_at}" if script.asked_at else "chaos.check()"
    return f"{asked}: {summary_text(judgement, record)}"
