"""`rocketbed pipeline`: jobs over many stored messages, on Spark.

Exits with 0 when all is well, 1 for a finding, 3 when the data cannot be read, 4 when Spark failed,
64 for wrong usage, 130 when interrupted.
"""

from collections.abc import Mapping

import click

from rocketbed.cli.main import ExtraGroup

COMMANDS: Mapping[str, str] = {
    "audit": "rocketbed.cli.pipeline.audit:audit",
    "campaign": "rocketbed.cli.pipeline.campaign:campaign",
    "export": "rocketbed.cli.pipeline.export:export",
    "rebuild": "rocketbed.cli.pipeline.rebuild:rebuild",
    "replay": "rocketbed.cli.pipeline.replay:replay",
    "retention": "rocketbed.cli.pipeline.retention:retention",
    "stats": "rocketbed.cli.pipeline.stats:stats",
    "tail": "rocketbed.cli.pipeline.tail:tail",
    "verify": "rocketbed.cli.pipeline.verify:verify",
}
"""Command name -> `module:object`."""


class PipelineGroup(ExtraGroup):
    """The jobs."""

    commands_by_name = COMMANDS
    extra = "spark"


@click.group(cls=PipelineGroup)
def pipeline() -> None:
    """Export, check and measure stored messages at scale, on Spark."""
