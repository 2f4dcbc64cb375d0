"""Options and exit handling that the commands of the testbed share."""

import json
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

from rocketbed.chaos.checks.registry import CHECK_IDS
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import unknown
from rocketbed.chaos.search.campaign import EXIT_HARNESS
from rocketbed.chaos.search.failures import explain, is_full
from rocketbed.chaos.search.replay import read_backend
from rocketbed.chaos.search.runner import Options, host_of
from rocketbed.cli.errors import sentence
from rocketbed.cli.judged import judged_options
from rocketbed.host.errors import HostError

Command = TypeVar("Command", bound=Callable[..., Any])


def run_options(
    *, backend: str | None, backend_help: str, report: str, report_help: str
) -> Callable[[Command], Command]:
    """Add `--backend`, `--net`, `--json` and `--report`."""

    def decorate(command: Command) -> Command:
        command = judged_options(report=report, report_help=report_help)(command)
        command = click.option(
            "--net",
            type=click.Choice(["auto", "plain", "proxy", "switch"]),
            default="auto",
            show_default=True,
            help="Network between real processes.",
        )(command)
        return click.option(
            "--backend",
            type=click.Choice(["sim", "process", "docker"]),
            default=backend,
            show_default=backend is not None,
            help=backend_help,
        )(command)

    return decorate


def refuse_unknown_checks(plan: Plan) -> None:
    """Raise `ScenarioError` for a check that the plan expects and that does not exist."""
    for name in plan.expect.checks:
        if name not in CHECK_IDS:
            raise ScenarioError(f"[expect] checks: {unknown('check', name, list(CHECK_IDS))}")


def check_target(
    target: str,
    mode: Literal["classic", "controller"],
    backend: str,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Fetch the software to run, or end with a message that says what to do."""
    if not target:
        if mode == "controller":
            raise click.UsageError(
                "--mode applies only to a real RocketMQ: add --target rocketmq:5.3.3"
            )
        return
    if backend == "sim":
        raise click.UsageError(
            "--target needs real processes: add --backend process (or docker: containers)"
        )
    from rocketbed.chaos.backends.foreign.installation import InstallationError

    try:
        with host_of(Options(backend=read_backend(backend), target=target, mode=mode, say=say)):
            pass
    except ScenarioError as exc:
        raise click.UsageError(str(exc)) from exc
    except (InstallationError, HostError) as exc:
        raise Unavailable(str(exc)) from exc


class Unavailable(click.ClickException):
    """The requested software is not available here."""

    exit_code = EXIT_HARNESS


def tell_failure(error: OSError | HostError, say: Callable[[str], None], *, as_json: bool) -> int:
    """Report that the harness cannot write its files or cannot run, and return the exit code."""
    foreseen = is_full(error) or isinstance(error, HostError)
    text = explain(error) if foreseen else f"the harness cannot continue: {sentence(error)}"
    say(f"the run failed: {text}")
    if as_json:
        click.echo(
            json.dumps({"verdict": "harness-error", "exit_code": EXIT_HARNESS, "error": text})
        )
    return EXIT_HARNESS
