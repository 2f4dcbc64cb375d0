"""Alterations of a recorded run, and the command that lists those its judge does not notice."""

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from rocketbed.chaos.checks.judgement import RunVerdict, judge_run
from tests.mutation.alterations.tables import ALTERATIONS
from tests.mutation.alterations.tamper import Tampered
from tests.mutation.alterations.tamper import tamper as alter


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([one.name for one in ALTERATIONS]),
    help="Only this alteration; may be given again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answers as JSON.")
def tamper(run: Path, only: tuple[str, ...], as_json: bool) -> int:
    """Alter copies of RUN, a directory with a run that passed, and judge each.

    Exits with 1 if an alteration passes, 64 if RUN itself does not.
    """
    before = judge_run(run)
    if before.verdict is not RunVerdict.PASS:
        findings = before.error or ", ".join(before.finding_ids) or "some checks did not run"
        raise click.UsageError(
            f"{run} is {before.verdict} ({findings}): only a run that passes says something"
        )
    answers: list[Tampered] = []
    with TemporaryDirectory(prefix="rocketbed-") as scratch:
        for answer in alter(run, Path(scratch), only or None):
            answers.append(answer)
            if not as_json:
                click.echo(_line(answer))
    passed = [answer.name for answer in answers if answer.passed]
    if as_json:
        click.echo(json.dumps([asdict(answer) for answer in answers], indent=1))
    else:
        tried = sum(answer.verdict != "nothing" for answer in answers)
        click.echo(f"{tried - len(passed)} of {tried} alterations were noticed")
    return 1 if passed else 0


def _line(answer: Tampered) -> str:
    verdict = "PASSED" if answer.passed else answer.verdict
    ids = ", ".join(answer.ids[:6]) + (", ..." if len(answer.ids) > 6 else "")
    return f"{verdict:14} {answer.name:24} {answer.alteration}{f': {ids}' if ids else ''}"
