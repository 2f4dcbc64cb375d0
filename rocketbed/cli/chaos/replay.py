"""`rocketbed chaos replay`: reproduce a failure."""

import json
from pathlib import Path
from typing import Literal

import click

from rocketbed.chaos.checks.judgement import clear_place
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.search.replay import load_replay, run_replay
from rocketbed.chaos.search.runner import BackendName, Options
from rocketbed.cli.chaos.common import check_target, run_options, tell_failure
from rocketbed.cli.interrupts import Interruptible
from rocketbed.host.errors import HostError

EXIT_NOT_REPEATABLE = 7


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@run_options(
    backend=None,
    backend_help="Replay on this backend instead of the one on which it failed.",
    report="out/replay",
    report_help="Directory for the run and its report.",
)
@click.option("--original", is_flag=True, help="Replay the plan as it was before it was shrunk.")
def replay(
    file: Path,
    backend: BackendName | None,
    net: Literal["auto", "plain", "proxy", "switch"],
    original: bool,
    as_json: bool,
    explain: bool,
    report: Path,
) -> int:
    """Replay FILE (a .rbx written by `chaos run`) and compare it with the original run.

    Exits as the run does, or with 7 when a simulation did not repeat itself.
    """

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    try:
        recording = load_replay(file)
        if original:
            recording = recording.of_original()
        directory = report.absolute() / file.stem
        clear_place(directory)
    except ScenarioError as exc:
        raise click.UsageError(str(exc)) from exc
    place = backend or recording.backend
    target = "" if place == "sim" else recording.target
    if target:
        check_target(target, recording.mode, place, say)
    options = Options(backend=place, net=net, target=target, mode=recording.mode, say=say)
    try:
        with Interruptible():
            replayed = run_replay(recording, options, directory=directory)
        outcome = replayed.outcome
        if outcome.judgement is not None and outcome.record is not None:
            command = f"rocketbed chaos replay {file}"
            page = write_report(
                directory, outcome.judgement, outcome.record, repeat_command=command
            )
    except (OSError, HostError) as exc:
        return tell_failure(exc, say, as_json=as_json)
    except KeyboardInterrupt:
        raise click.Abort from None
    if outcome.judgement is None or outcome.record is None:
        say(f"the run failed: {outcome.error}")
        if as_json:
            click.echo(json.dumps({"verdict": outcome.verdict, "error": outcome.error}))
        return outcome.exit_code
    say(summary_text(outcome.judgement, outcome.record, explain=explain))
    say(f"report: {page}")
    say(replayed.comparison())
    if replayed.same_digest is not None:
        say("the same run to the last event" if replayed.same_digest else replayed.note)
    if as_json:
        row = {
            **outcome.judgement.as_row(),
            "same_digest": replayed.same_digest,
            "same_finding": replayed.same_finding,
            "note": replayed.note,
        }
        click.echo(json.dumps(row, indent=1))
    return EXIT_NOT_REPEATABLE if replayed.same_digest is False else outcome.exit_code
