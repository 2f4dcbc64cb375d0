"""`rocketbed chaos run --live`: a run that is watched, and gets faults by hand, in a browser."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Final

import click
from click.core import ParameterSource

from rocketbed.chaos.backends.process.run import run
from rocketbed.chaos.checks.judgement import clear_place
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.live.server import LiveError
from rocketbed.chaos.live.session import Place, run_live
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.report.text import run_command, summary_text
from rocketbed.chaos.run.conductor import Attendant
from rocketbed.chaos.search.runner import Options, Outcome, host_of
from rocketbed.cli.chaos.common import check_target, refuse_unknown_checks, tell_failure
from rocketbed.cli.interrupts import Interruptible

NOT_IN_SIMULATION: Final = (
    "--live needs a cluster that runs in real time, and a simulation runs in virtual time:"
    " add --backend process"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """Options of a live run."""

    options: Options
    seed: int | None
    quick: bool
    report: Path
    port: int
    as_json: bool
    explain: bool = False


def live(scenario: str, chosen: LiveOptions, say: Callable[[str], None]) -> int:
    """Run a scenario and return the exit code. Raises `click.UsageError`, `click.Abort`."""
    options = _in_real_time(chosen.options)
    check_target(options.target, options.mode, options.backend, say)
    seed = SystemRandom().randrange(1_000_000) if chosen.seed is None else chosen.seed
    try:
        family = load_scenario(scenario)
        plan = family.plan(seed, options.backend, quick=chosen.quick)
        refuse_unknown_checks(plan)
        place = Place.of(chosen.report.absolute(), plan, options.backend)
        clear_place(place.directory)
    except ScenarioError as exc:
        raise click.UsageError(str(exc)) from exc
    try:
        place.directory.mkdir(parents=True)
        with Interruptible(), host_of(options) as host:

            async def run_it(
                plan: Plan, directory: Path, say: Callable[[str], None], attendant: Attendant
            ) -> RunRecord:
                record = await run(plan, directory, options.net, say, None, host, attendant)
                if options.target:
                    record.facts |= {"target": options.target, "mode": options.mode}
                    record.save(directory)
                return record

            outcome = run_live(
                plan,
                place,
                run_it,
                backend=options.backend,
                software=f"{options.target}, {options.mode}" if options.target else "",
                say=say,
                port=chosen.port,
            )
    except LiveError as exc:
        raise click.UsageError(str(exc)) from exc
    except OSError as exc:
        return tell_failure(exc, say, as_json=chosen.as_json)
    except KeyboardInterrupt:
        raise click.Abort from None
    return _tell(outcome, place, chosen, say)


def _tell(outcome: Outcome, place: Place, chosen: LiveOptions, say: Callable[[str], None]) -> int:
    """Print the outcome; return the exit code."""
    if outcome.judgement is None or outcome.record is None:
        say(f"the run failed: {outcome.error}")
        if chosen.as_json:
            row = {"verdict": outcome.verdict, "error": outcome.error}
            click.echo(json.dumps({**row, "exit_code": outcome.exit_code}))
        return outcome.exit_code
    say(summary_text(outcome.judgement, outcome.record, explain=chosen.explain))
    say(f"report: {place.directory / 'index.html'}")
    say(f"reproduce: rocketbed chaos replay {place.replay}")
    say(f"       or: {run_command(replace(outcome.record, scenario=str(place.scenario)))}")
    if chosen.as_json:
        files = {"replay": str(place.replay), "scenario": str(place.scenario)}
        row = {**outcome.judgement.as_row(), "directory": str(place.directory), **files}
        click.echo(json.dumps({**row, "exit_code": outcome.exit_code}, indent=1))
    return outcome.exit_code


def _in_real_time(options: Options) -> Options:
    """Choose real processes if no backend was given. Raises `click.UsageError` for a simulation."""
    if options.backend != "sim":
        return options
    source = click.get_current_context().get_parameter_source("backend")
    if source is not ParameterSource.DEFAULT:
        raise click.UsageError(NOT_IN_SIMULATION)
    return replace(options, backend="process")
