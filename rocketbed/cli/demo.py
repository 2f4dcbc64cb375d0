"""`rocketbed demo`: a cluster of real processes under kills, checked and reported.

Ends as `rocketbed chaos run` does: 0 when every check held, 1 for an anomaly, 2 when the cluster
stalled, 3 when a node ended by itself, 4 when the harness failed, 6 when a check did not run, 64
for wrong usage, 130 when interrupted.
"""

import json
from pathlib import Path
from random import SystemRandom
from typing import Literal

import click

EXIT_HARNESS = 4


@click.command()
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed that decides which node is killed when; default: random.",
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
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Directory of the report.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the verdict as JSON on standard output."
)
@click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Start from a copy of this store directory, written by RocketMQ or rocketbed.",
)
@click.option(
    "--verify",
    type=click.Choice(["spark"]),
    help="Check the run a second time with `pipeline verify` on Spark; both must agree.",
)
def demo(
    seed: int | None,
    flush: Literal["sync", "async"],
    seconds: float,
    keep: bool,
    report: Path,
    as_json: bool,
    store: Path | None,
    verify: str | None,
) -> int:
    """Run a cluster, kill its nodes while producers write, and check that no message was lost."""
    try:
        from rocketbed.chaos.demo.old_store import DemoError
        from rocketbed.chaos.demo.trial import DemoOptions, command_again, run_demo
        from rocketbed.chaos.hunt.failures import explain
        from rocketbed.chaos.report.text import summary_text
        from rocketbed.chaos.scenario.errors import ScenarioError
    except ModuleNotFoundError as exc:
        raise click.UsageError(
            f"the demo needs {exc.name}: install rocketbed with its extra, rocketbed[chaos]"
        ) from exc
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
        click.echo(f"rocketbed: {explain(exc)}", err=True)
        return EXIT_HARNESS
    say(summary_text(result.judgement, result.record))
    say(f"report: {result.page}")
    say(f"reproduce: {command_again(options)}")
    if as_json:
        click.echo(json.dumps(result.judgement.as_row(), indent=1))
    return result.judgement.exit_code
