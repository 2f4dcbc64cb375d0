"""`rocketbed chaos list`: scenarios and faults that can be run."""

import json

import click

from rocketbed.chaos.plan.library import all_scenarios
from rocketbed.chaos.plan.verbs import VERBS


@click.command("list")
@click.option(
    "--faults", is_flag=True, help="List the faults a step can name instead of scenarios."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(faults: bool, as_json: bool) -> int:
    """List the scenarios that ship, or the faults."""
    if faults:
        rows = [
            {
                "name": name,
                "what": verb.help,
                "words": sorted(verb.takes),
                "lasts": verb.lasts,
                "needs": verb.needs,
                "words_need": dict(verb.word_needs),
            }
            for name, verb in VERBS.items()
        ]
    else:
        rows = [
            {
                "name": family.name,
                "what": family.description,
                "backends": list(family.backends),
                "needs": list(family.needs),
            }
            for family in all_scenarios()
        ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return 0
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:{width}}  {row['what']}")
    return 0
