"""`rocketbed demo`: a cluster under kills, checked and reported.

Ends with 0 when every check held and every check ran, 1 for an anomaly, 2 when the cluster stalled,
3 when a node ended by itself, 4 when the trial failed, 6 when a check did not run, 64 for wrong
usage, 130 when interrupted.
"""

import json
import signal
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from chaos.demo.console import DemoConsole
    from chaos.demo.run import DemoOptions
    from chaos.demo.verdict import DemoVerdict

EXIT_HARNESS = 4
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="What is sent and killed; else random.")
@click.option("--messages", type=int, default=None, help="How many have to be acknowledged.")
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    default="async",
    show_default=True,
    help="Whether a message is on disk before it is acknowledged.",
)
@click.option("--keep", is_flag=True, help="Keep the nodes' directories also when all is well.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Directory of the report.",
)
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON on standard output.")
@click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Begin with a copy of this store directory, RocketMQ's or ours.",
)
def demo(
    seed: int | None,
    messages: int | None,
    flush: Literal["sync", "async"],
    keep: bool,
    report: Path,
    as_json: bool,
    store: Path | None,
) -> int:
    """Run a cluster, kill its nodes while producers write, and check that nothing was lost."""
    try:
        import jinja2  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as exc:
        raise click.UsageError(
            f"the demo needs {exc.name}: install rocketbed with its extra, rocketbed[chaos]"
        ) from exc
    from chaos.demo.console import DemoConsole
    from chaos.demo.plan import MESSAGES, PlanError, make_plan
    from chaos.demo.run import DemoOptions
    from rocketbed.wire.errors import RocketbedError

    chosen = SystemRandom().randrange(1_000_000) if seed is None else seed
    try:
        plan = make_plan(seed=chosen, messages=messages or MESSAGES, flush=flush)
        options = DemoOptions(plan=plan, report=report.absolute(), keep=keep, store=store)
        with DemoConsole(to_stderr=as_json) as console:
            verdict = _run(options, console)
    except PlanError as exc:
        raise click.UsageError(str(exc)) from exc
    except (RocketbedError, OSError) as exc:
        click.echo(f"rocketbed: {exc}", err=True)
        return EXIT_HARNESS
    if verdict is None:
        raise click.Abort
    console.tell(verdict)
    console.say(f"report: {options.report / 'index.html'}")
    if as_json:
        click.echo(json.dumps(verdict.as_row()))
    return verdict.exit_code


def _run(options: "DemoOptions", console: "DemoConsole") -> "DemoVerdict | None":
    """Run the trial and write its report; None when a signal ended it."""
    import trio

    from chaos.demo.report import write_report
    from chaos.demo.run import run_demo

    async def until_signal() -> "DemoVerdict | None":
        verdict = None
        with trio.open_signal_receiver(*STOPPING) as signals:
            async with trio.open_nursery() as nursery:

                async def stop_at_signal() -> None:
                    async for number in signals:
                        console.say(f"{signal.Signals(number).name}: ending the cluster")
                        nursery.cancel_scope.cancel()

                nursery.start_soon(stop_at_signal)
                verdict = await run_demo(options, console)
                nursery.cancel_scope.cancel()
        return verdict

    try:
        verdict = trio.run(until_signal)
    except* Exception as group:
        raise _first(group) from None
    if verdict is not None:
        write_report(options.report, verdict.as_row())
    return verdict


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first error of a group, however deep."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
