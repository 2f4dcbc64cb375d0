"""`python -m tests.mutation planted`: does the testbed find bugs that were planted?"""

import json
from functools import partial
from pathlib import Path
from random import SystemRandom

import click

from rocketbed.chaos.plan.library import load_scenario
from rocketbed.cli.interrupts import Interruptible
from tests.mutation.generated.results import Fate
from tests.mutation.generated.search import RUNS, Search, UnknownMutant, search
from tests.mutation.generated.search import SEED as GENERATED_SEED
from tests.mutation.generated.tally import (
    SURVIVORS,
    as_row,
    fate_text,
    score_lines,
    write_survivors,
)
from tests.mutation.generated.visits import VisitError
from tests.mutation.planted.catalogue import controls, unshown
from tests.mutation.planted.catalogue import mutants as planted
from tests.mutation.planted.examine import BUDGET_S, QUIET_S, REPETITIONS, Examination, examine
from tests.mutation.planted.mutant import REGISTRY, StaleMutant, source_hash
from tests.mutation.planted.score import (
    Score,
    entry,
    has_dropped,
    load_history,
    row_text,
    save_history,
    total_lines,
)

SCENARIO = "soak-swarm"


@click.command()
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
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help=f"First seed; default: random, with --generated {GENERATED_SEED}.",
)
@click.option(
    "--generated",
    metavar="N",
    type=click.IntRange(min=1),
    help="N small bugs drawn from the sources instead, each run where its line is visited.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    help="With --generated: runs that each has to pass to be not found.",
)
@click.option(
    "--tests",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --generated: files of tests, which look for what no run finds; counted apart.",
)
@click.option(
    "--report",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/mutants"),
    show_default=True,
    help="With --generated: results, with which a later call goes on, and survivors.txt.",
)
@click.option(
    "--full", is_flag=True, help=f"Shrink plans, and run each control for {QUIET_S:.0f} s."
)
@click.option("--record", is_flag=True, help="Add the score to chaos/score.json.")
@click.option("--rehash", metavar="ID", help="Print the hashes of a mutant's targets and exit.")
@click.option("--list", "list_only", is_flag=True, help="Describe each mutant and exit.")
@click.option("--verbose", "-v", is_flag=True, help="Print what each run found.")
@click.option("--json", "as_json", is_flag=True, help="Print the score as JSON on standard output.")
def mutants(
    only: str | None,
    budget: float,
    repetitions: int,
    jobs: int,
    seed: int | None,
    generated: int | None,
    runs: int,
    tests: Path | None,
    report: Path,
    full: bool,
    record: bool,
    rehash: str | None,
    list_only: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Plant bugs in the node, one at a time, and measure how soon soak-swarm finds each.

    Exits with 1 when fewer are found than in the last recorded score (chaos/score.json), or when a
    run without a planted bug fails.

    With --generated the bugs are made from the sources of node, replication, routing and the
    client's consumer side, and --only takes their keys. Exits with 0 however many are found.
    """
    if rehash is not None:
        _say_hashes(rehash)
        return 0
    if list_only:
        _say_all()
        return 0
    names = tuple(only.split(",")) if only else ()
    if generated is not None:
        asked = Search(
            number=generated,
            seed=GENERATED_SEED if seed is None else seed,
            jobs=jobs,
            runs=runs,
            out=report,
            only=names,
            tests=tests,
        )
        return _generated(asked, verbose=verbose, as_json=as_json)
    for name in names:
        if name not in REGISTRY and name != "node":
            raise click.UsageError(f"no mutant {name!r}: see --list")
    wanted = Examination(
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
        with Interruptible():
            score = examine(wanted, lambda row: click.echo(row_text(row), err=as_json), say)
    except StaleMutant as exc:
        raise click.ClickException(str(exc)) from exc
    except KeyboardInterrupt:
        raise click.Abort from None
    if as_json:
        click.echo(json.dumps({**score.as_row(), "seed": wanted.seed}, indent=1))
    else:
        for line in total_lines(score):
            click.echo(line)
    return _judge(score, wanted, record=record)


def _generated(wanted: Search, *, verbose: bool, as_json: bool) -> int:
    def say(line: str) -> None:
        if verbose:
            click.echo(line, err=True)

    def told(fate: Fate) -> None:
        click.echo(fate_text(fate), err=as_json)

    try:
        with Interruptible():
            found = search(wanted, told, say, warn=partial(click.echo, err=True))
    except UnknownMutant as exc:
        raise click.UsageError(str(exc)) from exc
    except (StaleMutant, VisitError) as exc:
        raise click.ClickException(str(exc)) from exc
    except KeyboardInterrupt:
        raise click.Abort from None
    survivors = wanted.out / SURVIVORS
    number = write_survivors(found, survivors)
    if as_json:
        click.echo(json.dumps(as_row(found), indent=1))
        return 0
    for line in score_lines(found):
        click.echo(line)
    click.echo(f"not found: {number}, each with its difference: {survivors}")
    return 0


def _judge(score: Score, wanted: Examination, *, record: bool) -> int:
    """The exit code; a score of all mutants is held against the last one, and kept if asked."""
    if wanted.only:
        return 0 if score.is_full else 1
    history = load_history()
    dropped = has_dropped(score, history)
    if dropped:
        last = history[-1]
        click.echo(
            f"the score has dropped: it was {last['score']:g} of {last['of']} at {last['git']}",
            err=True,
        )
    if record:
        save_history([*history, entry(score, **wanted.facts())])
    return 1 if dropped or score.noise else 0


def _say_hashes(identity: str) -> None:
    if identity not in REGISTRY:
        raise click.UsageError(f"no mutant {identity!r}: see --list")
    for target, known in REGISTRY[identity].targets.items():
        now = source_hash(target)
        state = "as it was" if now == known else f"was {known}" if now else "is not there any more"
        click.echo(f"{target}: {now or '-'} ({state})")


def _say_all() -> None:
    for one in (*planted(), *controls()):
        stale = "  STALE" if one.stale() else ""
        click.echo(f"{one.id:4} {one.title}{stale}: {one.bug}")
        found = f" Found by {', '.join(one.caught_by)}." if one.caught_by else ""
        click.echo(f"     {one.edit}.{found}")
    for one in unshown():
        click.echo(f"{one.id:4} {one.title}: {one.edit}. Not hunted: {one.unshown}")
