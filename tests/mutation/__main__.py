"""Planted and generated bugs, and altered records: does the testbed notice them?

python -m tests.mutation planted
python -m tests.mutation alterations RUN
"""

import click

from tests.mutation.alterations.command import tamper
from tests.mutation.command import mutants


@click.group()
def main() -> None:
    """Measure what the testbed notices."""


main.add_command(mutants, "planted")
main.add_command(tamper, "alterations")

if __name__ == "__main__":
    main()
