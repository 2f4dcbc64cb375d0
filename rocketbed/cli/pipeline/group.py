"""`rocketbed pipeline`: jobs over many stored messages, on Spark.

Ends with 0 when all is well, 1 for a finding, 3 when the data cannot be read, 4 when Spark failed,
64 for wrong usage, 130 when interrupted.
"""

from collections.abc import Mapping

import click

from rocketbed.cli.main import LazyGroup

COMMANDS = {
    "audit": "rocketbed.cli.pipeline.audit:audit",
    "campaign": "rocketbed.cli.pipeline.campaign:campaign",
    "export": "rocketbed.cli.pipeline.export:export",
    "rebuild": "rocketbed.cli.pipeline.rebuild:rebuild",
    "replay": "rocketbed.cli.pipeline.replay:replay",
    "retention": "rocketbed.cli.pipeline.retention:retention",
    "tail": "rocketbed.cli.pipeline.tail:tail",
    "verify": "rocketbed.cli.pipeline.verify:verify",
}
"""Command name to `module:object`."""


class PipelineGroup(LazyGroup):
    """The jobs; they need the extra `spark`."""

    commands_by_name: Mapping[str, str] = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; a missing library is wrong usage, not a traceback."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as exc:
            if str(exc.name).partition(".")[0] == "rocketbed":
                raise
            raise click.UsageError(
                f"pipeline {cmd_name} needs {exc.name}: install rocketbed with its extra,"
                " rocketbed[spark]"
            ) from exc


@click.group(cls=PipelineGroup)
def pipeline() -> None:
    """Export, check and measure many stored messages, on Spark."""
