"""Common options of the jobs of `rocketbed pipeline`, and the output of their reports."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rocketbed.cli.interrupts import Interruptible
from rocketbed.pipeline.jobs.common import Job, JobSettings, run_job
from rocketbed.pipeline.report import EXIT_INTERRUPTED, EXIT_USAGE, Report

Function = TypeVar("Function", bound=Callable[..., Any])
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


def job_options(*reads: str) -> Callable[[Function], Function]:
    """Add the common options to a command, which gets them as keywords for `settings_of`.

    `reads` are the options about the input that the job can use: names of `_READING`.
    """

    def add(function: Function) -> Function:
        for option in reversed([*(_READING[name] for name in reads), *_OPTIONS]):
            function = option(function)
        return function

    return add


def settings_of(keywords: dict[str, Any]) -> JobSettings:
    """Take the common settings out of a command's keywords. Raises `click.UsageError`."""
    _check_archive(keywords)
    return JobSettings(
        stores=keywords.pop("store", ()),
        endpoints=keywords.pop("endpoints", None) or "",
        topics_pattern=keywords.pop("topics_pattern", None) or "",
        brokers=keywords.pop("brokers", None) or "",
        clusters=keywords.pop("clusters", None) or "",
        out=_directory(keywords.pop("out")),
        master=keywords.pop("master"),
        remote=keywords.pop("remote") or "",
        conf=dict(_setting(text) for text in keywords.pop("conf")),
        archive=keywords.pop("archive") or "",
        report=keywords.pop("report"),
        as_json=keywords.pop("as_json"),
        mode=keywords.pop("mode", MODES[0]),
        columns=_names(keywords.pop("columns", None)),
        spark_log=keywords.pop("spark_log"),
    )


def do_job(name: str, settings: JobSettings, work: Callable[[Job], None]) -> int:
    """Run a job, print its outcome, return the exit code.

    Raises `click.UsageError`, `click.Abort`.
    """
    with Interruptible():
        report = run_job(name, settings, work)
    if settings.as_json:
        click.echo(json.dumps(report.as_row(), indent=1, default=str))
    if report.exit_code == EXIT_USAGE:
        raise click.UsageError(report.error)
    if report.exit_code == EXIT_INTERRUPTED:
        raise click.Abort
    if report.error:
        click.echo(f"rocketbed: {report.error}", err=True)
    if not settings.as_json:
        click.echo(summary(report))
    return report.exit_code


def summary(report: Report) -> str:
    """Return some lines of text for a report."""
    lines = [f"{report.verdict.upper()}  {report.job}, {report.as_row()['seconds']:.1f} s"]
    lines += [f"  {name.replace('_', ' ')}: {value}" for name, value in report.counts.items()]
    for finding in report.findings:
        lines.append(
            f"  FINDING {finding.get('id', '')} {finding.get('title', '')}: {finding['count']}"
        )
        lines += [f"      {example['text']}" for example in finding.get("examples", ())[:3]]
    lines += [f"  note: {note}" for note in report.notes]
    return "\n".join(lines)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"--conf {text}: expected KEY=VALUE")
    return key, value


def _check_archive(keywords: dict[str, Any]) -> None:
    """Raise `click.UsageError` for an archive that cannot be used."""
    archive = keywords["archive"]
    if archive and keywords["remote"]:
        raise click.UsageError("--archive cannot be combined with --remote: give it to the server")
    if archive and "://" not in archive and not Path(archive).is_file():
        raise click.UsageError(f"--archive {archive}: there is no such file")


def _directory(text: str | None) -> Path | None:
    if text is None:
        return None
    if "://" in text:
        raise click.UsageError(f"--out {text}: expected a directory of this machine")
    return Path(text)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


_READING: dict[str, Callable[[Any], Any]] = {
    "store": click.option(
        "--store",
        multiple=True,
        metavar="[BROKER/REPLICA=]DIR",
        help="A store directory; repeat for each replica, each with its names.",
    ),
    "endpoints": click.option(
        "--endpoints", metavar="HOST:PORT,...", help="Nameservers of a live cluster."
    ),
    "topics": click.option(
        "--topics-pattern",
        metavar="REGEX",
        help="Instead of --topic: topics whose whole name matches.",
    ),
    "brokers": click.option(
        "--brokers", metavar="NAME,...", help="Only queues of these brokers of a live cluster."
    ),
    "clusters": click.option(
        "--clusters", metavar="NAME,...", help="Only queues of brokers of these clusters."
    ),
    "mode": click.option(
        "--mode",
        type=click.Choice(MODES, case_sensitive=False),
        default=MODES[0],
        show_default=True,
        help="How to handle records that cannot be decoded.",
    ),
    "columns": click.option(
        "--columns", metavar="NAME,...", help="Only these columns of the records."
    ),
}
_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--out", metavar="DIR", help="Directory for the results."),
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Spark master: local[N], spark://...",
    ),
    click.option(
        "--remote", metavar="sc://HOST:PORT", help="Spark Connect server, instead of --master."
    ),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable."),
    click.option(
        "--archive",
        metavar="FILE",
        help="rocketbed for executors that do not have it: see docs/guides/spark.md, Deploying.",
    ),
    click.option(
        "--report",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the report to this file, as JSON.",
    ),
    click.option(
        "--json", "as_json", is_flag=True, help="Print the report as JSON on standard output."
    ),
    click.option(
        "--spark-log",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Append Spark's log to this file.",
    ),
]
