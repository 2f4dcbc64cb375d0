"""`rocketbed chaos run`: one scenario, with one seed or many."""

import json
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Literal

import click

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.search.campaign import (
    Campaign,
    CampaignOptions,
    CrashPoints,
    run_campaign,
)
from rocketbed.chaos.search.progress import duration
from rocketbed.chaos.search.runner import Options
from rocketbed.chaos.search.unreached import unreached
from rocketbed.cli.chaos.common import (
    check_target,
    refuse_unknown_checks,
    run_options,
    tell_failure,
)
from rocketbed.cli.interrupts import Interruptible
from rocketbed.cli.judged import verify_option
from rocketbed.host.errors import HostError
from rocketbed.pipeline.agreement import second_judge


@click.command()
@click.argument("scenario")
@run_options(
    backend="sim",
    backend_help="Where the cluster runs: in simulation, as real processes, or in containers.",
    report="out/chaos",
    report_help="Directory for run reports and failing plans.",
)
@verify_option
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of every random choice; default: random."
)
@click.option(
    "--seeds", metavar="N", type=click.IntRange(min=1), help="Run N seeds, starting at --seed."
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--target",
    metavar="SOFTWARE",
    default="",
    help="Run a real RocketMQ instead of rocketbed: rocketmq:5.3.3, DIR, or image:NAME (docker).",
)
@click.option(
    "--mode",
    type=click.Choice(["classic", "controller"]),
    default="classic",
    show_default=True,
    help="With --target: roles as configured, or elected by a controller.",
)
@click.option("--quick", is_flag=True, help="Run a shortened form of the scenario.")
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 5 if a step was skipped: impossible here, never due, or without a target.",
)
@click.option("--no-shrink", is_flag=True, help="Do not shrink failing plans.")
@click.option(
    "--corpus",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep plans that reached new coverage here; half of the seeds mutate one of them.",
)
@click.option(
    "--crash-points", metavar="NODE", help="Crash NODE at a different disk event in each run."
)
@click.option(
    "--power",
    is_flag=True,
    help="With --crash-points: cut the power instead of killing the process.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="With --crash-points: how many crash points to try for each seed.",
)
@click.option(
    "--coverage",
    is_flag=True,
    help="Print which marks, log events and faults no seed reached (simulation).",
)
@click.option(
    "--live",
    "is_live",
    is_flag=True,
    help="Watch a run of real processes in a browser, inject faults by hand, and stop it.",
)
@click.option(
    "--live-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the page on 127.0.0.1; default: a free one.",
)
def run(
    scenario: str,
    backend: Literal["sim", "process", "docker"],
    seed: int | None,
    seeds: int | None,
    jobs: int,
    net: Literal["auto", "plain", "proxy", "switch"],
    target: str,
    mode: Literal["classic", "controller"],
    quick: bool,
    strict: bool,
    no_shrink: bool,
    corpus: Path | None,
    crash_points: str | None,
    power: bool,
    sample: int,
    coverage: bool,
    as_json: bool,
    explain: bool,
    report: Path,
    verify: str | None,
    is_live: bool,
    live_port: int,
) -> int:
    """Run SCENARIO, a name from `chaos list` or a file (.toml, .py), and check the result."""

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    first = SystemRandom().randrange(1_000_000) if seed is None else seed
    numbers = range(first, first + (seeds or 1))
    options = Options(backend=backend, net=net, target=target, mode=mode, say=say)
    if is_live:
        from rocketbed.cli.chaos.live import LiveOptions, live

        check_live(seeds, corpus, crash_points, verify, strict)
        live_options = LiveOptions(
            options=options,
            seed=seed,
            quick=quick,
            report=report,
            port=live_port,
            as_json=as_json,
            explain=explain,
        )
        return live(scenario, live_options, say)
    check_target(target, mode, backend, say)
    points = CrashPoints(node=crash_points, power=power, sample=sample) if crash_points else None
    try:
        family = load_scenario(scenario)
        refuse_unknown_checks(family.plan(first, backend, quick=quick))
        campaign = CampaignOptions(
            options=options,
            seeds=numbers,
            jobs=jobs if backend == "sim" else 1,
            quick=quick,
            report=report.absolute(),
            strict=strict,
            shrink=not no_shrink,
            second_judge=second_judge(verify, say),
            corpus=corpus,
            crash_points=points,
        )
        with Interruptible():
            result = run_campaign(family, campaign, say)
    except ScenarioError as exc:
        raise click.UsageError(str(exc)) from exc
    except (OSError, HostError) as exc:
        return tell_failure(exc, say, as_json=as_json)
    except KeyboardInterrupt:
        raise click.Abort from None
    tell(result, say, explain=explain)
    missed = unreached(result.outcomes) if coverage and backend == "sim" else {}
    for kind, names in missed.items():
        say(f"{kind} that no seed reached: {', '.join(names) or 'none'}")
    if as_json:
        extra = {"unreached": missed} if coverage else {}
        click.echo(json.dumps({**result.as_row(), **extra}, indent=1))
    return result.exit_code


def check_live(*options: object) -> None:
    """Refuse options that have no effect with --live."""
    if any(options):
        raise click.UsageError(
            "--live is a single run that you stop by hand; it cannot be combined with --seeds,"
            " --corpus, --crash-points, --verify or --strict"
        )


def tell(result: Campaign, say: Callable[[str], None], *, explain: bool = False) -> None:
    """Print the outcome as text."""
    if len(result.outcomes) == 1:
        outcome = result.outcomes[0]
        if outcome.judgement is None or outcome.record is None:
            say(f"the run failed: {outcome.error}")
        else:
            say(summary_text(outcome.judgement, outcome.record, explain=explain))
            if outcome.directory is not None:
                say(f"report: {outcome.directory / 'index.html'}")
    else:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in result.counts.items())
        simulated = f"{result.simulated_s:.0f} simulated seconds in " if result.simulated_s else ""
        say(f"{len(result.outcomes)} runs, {simulated}{duration(result.real_s)}: {counts}")
        if result.never_ran:
            say(f"checks that ran in none of them: {', '.join(result.never_ran)}")
    if result.new_points:
        say(f"{result.new_points} places reached for the first time")
    for path in result.replays.values():
        say(f"reproduce: rocketbed chaos replay {path}")
