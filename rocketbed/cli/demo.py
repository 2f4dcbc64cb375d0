"""`rocketbed demo`: a cluster of real processes under kills, checked and reported.

With `--bug` it plants a bug in a simulated node, finds it, shrinks the failing plan and reports it;
that exits with 0 when all of it worked, 1 when the bug was not found.

Without it, it exits as `rocketbed chaos run` does: with 0 when every check held, 1 for an anomaly,
2 when the cluster stalled, 3 when a node stopped, 4 when the harness failed, 6 when a check did not
run, 64 for wrong usage, 130 when interrupted.
"""

import json
from pathlib import Path
from random import SystemRandom
from typing import Literal

import click
from click.core import ParameterSource

from rocketbed.cli.errors import sentence
from rocketbed.cli.judged import judged_options, verify_option
from rocketbed.host.extras import install_command

EXIT_HARNESS = 4
BUG_OPTIONS = ("bug", "seed", "report")
BUG_SEED = 1
"""By default the bug is found within a few runs; with any other seed within forty."""


@click.command()
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed that decides which node is killed when; default: random.",
)
@click.option(
    "--bug",
    is_flag=True,
    help="Plant a bug in a simulated node instead, find it, shrink the failing plan, report it.",
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    default="async",
    show_default=True,
    help="sync: a message is on disk before it is acknowledged.",
)
@click.option(
    "--seconds",
    type=float,
    default=10.0,
    show_default=True,
    help="How many seconds nodes are killed while producers write.",
)
@click.option(
    "--keep", is_flag=True, help="Keep the nodes' directories even when every check passes."
)
@judged_options(report="out/demo")
@verify_option
@click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Start from a copy of this store directory, written by RocketMQ or rocketbed.",
)
def demo(
    seed: int | None,
    bug: bool,
    flush: Literal["sync", "async"],
    seconds: float,
    keep: bool,
    report: Path,
    as_json: bool,
    explain: bool,
    store: Path | None,
    verify: str | None,
) -> int:
    """Run a cluster, kill its nodes while producers write, and check that no message was lost."""
    if bug:
        return _show_bug(BUG_SEED if seed is None else seed, report)
    try:
        from rocketbed.chaos.demo.old_store import DemoError
        from rocketbed.chaos.demo.run import DemoOptions, command_again, run_demo
        from rocketbed.chaos.plan.errors import ScenarioError
        from rocketbed.chaos.report.text import summary_text
        from rocketbed.chaos.search.failures import explain as describe
    except ModuleNotFoundError as exc:
        raise click.UsageError(f"the demo needs {exc.name}: {install_command('chaos')}") from exc
    from rocketbed.cli.interrupts import Interruptible
    from rocketbed.pipeline.agreement import second_judge

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    chosen = SystemRandom().randrange(1_000_000) if seed is None else seed
    options = DemoOptions(
        seed=chosen,
        report=report.absolute(),
        flush=flush,
        seconds=seconds,
        keep=keep,
        store=store,
    )
    try:
        with Interruptible():
            result = run_demo(options, say, second_judge=second_judge(verify, say))
    except (DemoError, ScenarioError) as exc:
        raise click.UsageError(str(exc)) from exc
    except KeyboardInterrupt:
        raise click.Abort from None
    except Exception as exc:
        click.echo(f"rocketbed: {sentence(exc) or describe(exc)}", err=True)
        return EXIT_HARNESS
    say(summary_text(result.judgement, result.record, explain=explain))
    say(f"report: {result.page}")
    say(f"reproduce: {command_again(options)}")
    if as_json:
        click.echo(json.dumps(result.judgement.as_row(), indent=1))
    return result.judgement.exit_code


def _show_bug(seed: int, report: Path) -> int:
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in BUG_OPTIONS and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no meaning with --bug")
    try:
        from rocketbed.chaos.demo.bug import show
        from rocketbed.chaos.search.failures import explain as describe
    except ModuleNotFoundError as exc:
        raise click.UsageError(f"the demo needs {exc.name}: {install_command('chaos')}") from exc
    from rocketbed.cli.interrupts import Interruptible

    try:
        with Interruptible():
            page = show(report.absolute(), click.echo, seed=seed)
    except KeyboardInterrupt:
        raise click.Abort from None
    except Exception as exc:
        click.echo(f"rocketbed: {sentence(exc) or describe(exc)}", err=True)
        return EXIT_HARNESS
    if page is None:
        return 1
    click.echo(f"report: {page}")
    return 0
