"""The page of a run: one file, nothing fetched, readable without its few lines of script."""

import html
import platform
from pathlib import Path
from typing import Any

import jinja2

from rocketbed import __version__
from rocketbed.chaos.checkers.judgement import Judgement
from rocketbed.chaos.checkers.result import CheckResult, Verdict
from rocketbed.chaos.history import read_history
from rocketbed.chaos.record import HISTORY_FILE, RunRecord
from rocketbed.chaos.report import charts
from rocketbed.chaos.report.junit import write_junit
from rocketbed.chaos.report.story import Story, tell
from rocketbed.chaos.report.text import faults_text, loss_text, promise_text, run_command

PAGE = "index.html"
SHOWN = 5
"""Findings of a check that stand open; the others are folded away."""
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
    directory: Path, judgement: Judgement, record: RunRecord, *, again: str = ""
) -> Path:
    """Write `index.html` and `junit.xml` into a run's directory; the page's path.

    `again` is the command that repeats the run. Raises `OSError`.
    """
    story = tell(record, read_history(directory / HISTORY_FILE))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rocketbed.chaos.report"), autoescape=True, trim_blocks=True
    )
    page = directory / PAGE
    text = environment.get_template("run.html.j2").render(_view(judgement, record, story, again))
    page.write_text(text, encoding="utf-8")
    write_junit(directory, judgement, record)
    return page


def _view(judgement: Judgement, record: RunRecord, story: Story, again: str) -> dict[str, Any]:
    counts = record.facts.get("counts", {})
    groups = [
        ("FINDING", [r for r in judgement.findings if not r.harmless]),
        ("warning", [r for r in judgement.findings if r.harmless]),
    ]
    drawings = [
        (node, _safe(charts.offsets(story, node)))
        for nodes in record.groups.values()
        for node in nodes
        if story.samples.get(node)
    ]
    return {
        "record": record,
        "judgement": judgement,
        "verdict": str(judgement.verdict),
        "sentence": WORDS.get(str(judgement.verdict), ""),
        "promise": promise_text(record.promise),
        "faults": faults_text(record),
        "loss": loss_text(judgement),
        "counts": counts,
        "findings": [(kind, result) for kind, results in groups for result in results],
        "shown": SHOWN,
        "bounds": judgement.bounds,
        "timeline": _safe(charts.timeline(story, judgement)),
        "offsets": drawings,
        "latency": _safe(charts.latency(story)),
        "throughput": _safe(charts.throughput(story)),
        "percentiles": {
            name: f"{value * 1000:.1f} ms" for name, value in charts.percentiles(story).items()
        },
        "longest_outage": max((end - begin for _, begin, end in story.outages), default=0.0),
        "checks": sorted(judgement.results, key=_rank),
        "again": again or run_command(record),
        "version": __version__,
        "python": platform.python_version(),
        "seconds": story.end_s,
    }


def _safe(drawing: str) -> Any:
    """A drawing of ours, whose texts are escaped already."""
    from markupsafe import Markup

    return Markup(drawing)


def _rank(result: CheckResult) -> tuple[int, str]:
    order = (Verdict.VIOLATED, Verdict.DID_NOT_RUN, Verdict.OK, Verdict.NOT_APPLICABLE)
    return order.index(result.verdict), html.escape(result.title)
