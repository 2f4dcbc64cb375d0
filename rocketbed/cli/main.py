"""`rocketbed`: the command line. Each command's module is imported only when it is used.

Exit codes (design.md 20): 0 good, 1 a finding or failure, 64 wrong usage; commands define others in
between.
"""

import importlib
import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import click

from rocketbed import __version__
from rocketbed.cli.examples import EXAMPLES

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130

COMMANDS: Final[dict[str, str]] = {
    "chaos": "rocketbed.cli.chaos.group:chaos",
    "demo": "rocketbed.cli.demo:demo",
    "cluster": "rocketbed.cli.cluster.group:cluster",
    "failover": "rocketbed.cli.failover:failover",
    "group": "rocketbed.cli.group:group",
    "health": "rocketbed.cli.health:health",
    "nameserver": "rocketbed.cli.nameserver:nameserver",
    "node": "rocketbed.cli.node:node",
    "pipeline": "rocketbed.cli.pipeline.group:pipeline",
    "pull": "rocketbed.cli.pull:pull",
    "query": "rocketbed.cli.query:query",
    "send": "rocketbed.cli.send:send",
    "store": "rocketbed.cli.store:store",
    "topic": "rocketbed.cli.topic:topic",
}
"""Command name -> `module:object`."""


class CommandGroup(click.Group):
    """A group that suggests commands for a mistyped one, and shows an example in a command's
    help."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and its arguments. Raises `click.UsageError`."""
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, names)
            hint = f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(names)}"
            raise click.UsageError(f"No such command {name!r}: {hint}", ctx)
        resolved, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.epilog is None:
            path = f"{ctx.command_path} {resolved}"
            example = EXAMPLES.get(path.removeprefix("rocketbed "))
            if example is not None:
                command.epilog = f"\b\nExample:\n  {path} {example}"
        return resolved, command, rest


class LazyGroup(CommandGroup):
    """A group that imports a command when it is called, or when the help lists it."""

    commands_by_name: Mapping[str, str] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        return sorted(self.commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        target = self.commands_by_name.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


class ExtraGroup(LazyGroup):
    """Commands that need an extra; a missing library is wrong usage, not a traceback."""

    extra: str

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as exc:
            from rocketbed.host.extras import install_command

            if str(exc.name).partition(".")[0] == "rocketbed":
                raise
            raise click.UsageError(
                f"{self.name} {cmd_name} needs {exc.name}: {install_command(self.extra)}"
            ) from exc


@dataclass
class Debug:
    """Choice of `--debug`."""

    is_on: bool = False
    """True if the traceback of an error is printed."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback of an error, too.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """A message store and broker that keeps RocketMQ's files and speaks its protocol."""
    if isinstance(ctx.obj, Debug):
        ctx.obj.is_on = debug


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code.

    An error of a path, a port or a peer becomes one line; a mistake of the program is raised.
    """
    debug = Debug()
    try:
        result = cli.main(
            args=arguments,
            prog_name="rocketbed",
            standalone_mode=False,
            obj=debug,
            max_content_width=shutil.get_terminal_size().columns,
        )
    except click.UsageError as exc:
        exc.show()
        return EXIT_USAGE
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except Exception as exc:
        from rocketbed.cli.errors import sentence

        text = sentence(exc)
        if text is None:
            raise
        if debug.is_on:
            traceback.print_exc()
        print(f"rocketbed: {text}", file=sys.stderr)
        return EXIT_FAILURE
    return result if isinstance(result, int) else 0
