"""Report page of a run: one file that fetches nothing and is readable without its short script."""

import platform
from pathlib import Path

import jinja2

from rocketbed import __version__
from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.history import read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE, TRACE_FILE, RunRecord
from rocketbed.chaos.evidence.trace import Trace, read_trace
from rocketbed.chaos.report import charts
from rocketbed.chaos.report.cause import roots
from rocketbed.chaos.report.junit import write_junit
from rocketbed.chaos.report.story import story_of
from rocketbed.chaos.report.text import (
    done_texts,
    excuse_texts,
    faults_text,
    loss_text,
    pause_texts,
    promise_text,
    run_command,
)
from rocketbed.chaos.report.words import clock, failing, grouped

PAGE = "index.html"
SHOWN = 5
"""Findings of a check that are shown open; the others are folded."""
WORDS = {
    "pass": "Every promise was kept.",
    "anomaly": "A promise was broken.",
    "stalled": "The cluster did not recover in time.",
    "crashed": "A node ended by itself.",
    "unknown": "A check could not run, so the result is inconclusive.",
    "skipped": "This machine lacks a capability that the scenario needs.",
    "harness-error": "The harness itself failed.",
}


def write_report(
    directory: Path, judgement: Judgement, record: RunRecord, *, repeat_command: str = ""
) -> Path:
    """Write `index.html` and `junit.xml` into a run's directory; return the page's path.

    `again` is the command that repeats the run. Raises `OSError`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rocketbed.chaos.report"), autoescape=True, trim_blocks=True
    )
    environment.filters |= {"clock": clock, "grouped": grouped}
    order = (Verdict.VIOLATED, Verdict.DID_NOT_RUN, Verdict.OK, Verdict.NOT_APPLICABLE)
    checks = sorted(judgement.results, key=lambda result: (order.index(result.verdict), result.id))
    page = directory / PAGE
    text = environment.get_template("run.html.j2").render(
        record=record,
        judgement=judgement,
        story=story_of(record, read_history(directory / HISTORY_FILE)),
        charts=charts,
        sentence=WORDS[judgement.verdict],
        failing=failing,
        promise=promise_text(record.promise),
        faults=faults_text(record),
        done=done_texts(record),
        loss=loss_text(judgement),
        pauses=pause_texts(judgement, record),
        excuses=excuse_texts(judgement, record),
        roots=roots(judgement, record, _trace(directory / TRACE_FILE)),
        warnings=[result for result in judgement.findings if result.harmless],
        held=[
            result
            for result in checks
            if result.harmless and result.verdict is not Verdict.NOT_APPLICABLE
        ],
        not_run=[result for result in checks if result.verdict is Verdict.NOT_APPLICABLE],
        wrong=[result for result in checks if not result.harmless],
        shown=SHOWN,
        again=repeat_command or run_command(record),
        version=__version__,
        python=platform.python_version(),
    )
    page.write_text(text, encoding="utf-8")
    write_junit(directory, judgement, record)
    return page


def _trace(path: Path) -> Trace | None:
    """Return a run's trace; None if there is no readable one."""
    try:
        return read_trace(path)
    except (OSError, ValueError):
        return None
