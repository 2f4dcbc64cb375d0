"""Planted bugs, generated bugs, and altered records: does the testbed notice them?

python -m tests.mutation planted
python -m tests.mutation generated --number 150
python -m tests.mutation alterations RUN
"""

import json
from functools import partial
from pathlib import Path
from random import SystemRandom

import click

from rocketbed.chaos.plan.library import load_scenario
from tests.mutation.alterations.command import tamper
from tests.mutation.generated.results import MutantResult
from tests.mutation.generated.search import RUNS, SEED, Search, UnknownMutant, search
from tests.mutation.generated.tally import (
    SURVIVORS,
    as_row,
    result_text,
    score_lines,
    write_survivors,
)
from tests.mutation.generated.visits import VisitError
from tests.mutation.planted.catalogue import controls, mutants, unshown
from tests.mutation.planted.examine import BUDGET_S, QUIET_S, REPETITIONS, Examination, examine
from tests.mutation.planted.mutant import REGISTRY, StaleMutant
from tests.mutation.planted.score import row_text, total_lines

SCENARIO = "soak-swarm"


@click.group()
def main() -> None:
    """Measure what the testbed notices."""


main.add_command(tamper, "alterations")


@main.command()
@click.option("--only", help="Comma-separated ids (M7,E1,node); default: all.")
@click.option(
    "--budget",
    type=click.FloatRange(min=1),
    default=BUDGET_S,
    show_default=True,
    help="Simulated seconds for each mutant and repetition.",
)
@click.option("--repetitions", type=click.IntRange(min=1), default=REPETITIONS, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), help="First seed; default: random.")
@click.option(
    "--full", is_flag=True, help=f"Shrink plans, and run each control for {QUIET_S:.0f} s."
)
@click.option("--list", "list_only", is_flag=True, help="Describe each mutant and exit.")
@click.option("--verbose", "-v", is_flag=True, help="Print what each run found.")
def planted(
    only: str | None,
    budget: float,
    repetitions: int,
    jobs: int,
    seed: int | None,
    full: bool,
    list_only: bool,
    verbose: bool,
) -> None:
    """Plant the bugs of the catalogue, one at a time, and measure how soon the swarm finds each.

    Exits with 1 if one is missed, or a run without a bug fails.
    """
    if list_only:
        describe_all()
        return
    names = tuple(only.split(",")) if only else ()
    for name in names:
        if name not in REGISTRY and name != "node":
            raise click.UsageError(f"no mutant {name!r}: see --list")
    examination = Examination(
        family=load_scenario(SCENARIO),
        seed=SystemRandom().randrange(1_000_000) * 1000 if seed is None else seed,
        only=names,
        budget_s=budget,
        quiet_s=QUIET_S if full else budget,
        repetitions=repetitions,
        jobs=jobs,
        shrink=full,
    )

    def say(line: str) -> None:
        if verbose:
            click.echo(line, err=True)

    try:
        score = examine(examination, lambda row: click.echo(row_text(row)), say)
    except StaleMutant as exc:
        raise click.ClickException(str(exc)) from exc
    for line in total_lines(score):
        click.echo(line)
    raise SystemExit(0 if score.is_full else 1)


@main.command()
@click.option("--number", type=click.IntRange(min=1), default=150, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True)
@click.option("--only", help="Comma-separated keys; default: all that are drawn.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    help="Runs that each has to pass to be not found.",
)
@click.option(
    "--tests",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Files of tests, which look for what no run finds; counted apart.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/mutants"),
    show_default=True,
    help="Results, with which a later call goes on, and survivors.txt.",
)
@click.option("--verbose", "-v", is_flag=True, help="Print what each run found.")
@click.option("--json", "as_json", is_flag=True, help="Print the score as JSON on standard output.")
def generated(
    number: int,
    seed: int,
    only: str | None,
    jobs: int,
    runs: int,
    tests: Path | None,
    out: Path,
    verbose: bool,
    as_json: bool,
) -> None:
    """Draw small bugs from the sources, and run each where its line is visited.

    Exits with 0 however many are found.
    """
    order = Search(
        number=number,
        seed=seed,
        jobs=jobs,
        runs=runs,
        out=out,
        only=tuple(only.split(",")) if only else (),
        tests=tests,
    )

    def say(line: str) -> None:
        if verbose:
            click.echo(line, err=True)

    def show(verdict: MutantResult) -> None:
        click.echo(result_text(verdict), err=as_json)

    try:
        result = search(order, show, say, warn=partial(click.echo, err=True))
    except UnknownMutant as exc:
        raise click.UsageError(str(exc)) from exc
    except (StaleMutant, VisitError) as exc:
        raise click.ClickException(str(exc)) from exc
    survivors = out / SURVIVORS
    count = write_survivors(result, survivors)
    if as_json:
        click.echo(json.dumps(as_row(result), indent=1))
        return
    for line in score_lines(result):
        click.echo(line)
    click.echo(f"not found: {count}, each with its difference: {survivors}")


def describe_all() -> None:
    """Print every mutant, with what it breaks and which checks have to find it."""
    for mutant in (*mutants(), *controls()):
        checks = f" Found by {', '.join(mutant.caught_by)}." if mutant.caught_by else ""
        click.echo(f"{mutant.id:4} {mutant.title}: {mutant.bug}")
        click.echo(f"     {mutant.edit}.{checks}")
    for mutant in unshown():
        click.echo(f"{mutant.id:4} {mutant.title}: {mutant.edit}. Not hunted: {mutant.unshown}")


if __name__ == "__main__":
    main()
