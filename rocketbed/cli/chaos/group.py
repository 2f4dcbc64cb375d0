"""`rocketbed chaos`: run scenarios against a cluster and check what it did.

Exits with 0 when every check held, 1 for an anomaly, 2 when the cluster stalled or missed its
service level, 3 when a node ended by itself, 4 when the harness failed, 5 when a step was skipped,
or not done, under --strict, 6 when a check did not finish, 7 when a simulation did not repeat
itself, 64 for wrong usage, 130 when interrupted.
"""

from collections.abc import Mapping

import click

from rocketbed.cli.main import ExtraGroup

COMMANDS: Mapping[str, str] = {
    "doctor": "rocketbed.cli.chaos.doctor:doctor",
    "list": "rocketbed.cli.chaos.list:list_",
    "replay": "rocketbed.cli.chaos.replay:replay",
    "run": "rocketbed.cli.chaos.run:run",
}
"""Command name -> `module:object`."""


class ChaosGroup(ExtraGroup):
    """Commands of the testbed."""

    commands_by_name = COMMANDS
    extra = "chaos"


@click.group(cls=ChaosGroup)
def chaos() -> None:
    """Inject faults into a cluster and check its guarantees."""
