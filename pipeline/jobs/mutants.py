"""`campaign --mutants`: generated mutants of the node, spread over Spark's executors.

The directory is that of `rocketbed chaos mutants --generated` (`chaos.mutants.fates`), so either
goes on where the other was ended. The driver draws the mutants and watches, with nothing planted,
which lines each run visits; a task tries some of them one by one, each run in its own process with
a limit of processor time. A task that is repeated, since its executor was lost, leaves out what is
on record already.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketbed.chaos.mutants.draw import Source
from rocketbed.chaos.mutants.fates import load, new_part, parts
from rocketbed.chaos.mutants.generated import (
    Case,
    Found,
    Search,
    UnknownMutant,
    begin,
    try_cases,
)
from rocketbed.chaos.mutants.mutant import StaleMutant
from rocketbed.chaos.mutants.tally import ALL, SURVIVORS, percent, score, write_survivors
from rocketbed.chaos.mutants.visits import Trial, VisitError
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job

if TYPE_CHECKING:
    import pyarrow

BLOCKS_PER_CORE: Final = 8
CONF: Final = {"spark.speculation": "false"}


def mutants(
    job: Job,
    wanted: Search,
    *,
    trials: list[Trial] | None = None,
    sources: list[Source] | None = None,
) -> Found:
    """Try what is not decided yet, in `trials` or the suite of the seed; what came of all.

    Raises `PipelineError`.
    """

    def known() -> Found:
        try:
            return begin(
                wanted, lambda _: None, warn=job.progress.say, trials=trials, sources=sources
            )
        except (UnknownMutant, VisitError) as error:
            raise PipelineError(str(error)) from error

    job.report.inputs.append({"mutants": wanted.number, "seed": wanted.seed, "runs": wanted.runs})
    with job.phase("watching what each run visits"):
        found = known()
    job.report.counts["tried"] = len(found.left)
    if found.left:
        with job.phase(f"trying {len(found.left)} mutants"):
            _spread(job, wanted.out.absolute(), found)
        found = known()
    if found.left:
        raise PipelineError(f"{len(found.left)} mutants have no result; run the same again")
    parts_of_score = score(found)
    job.report.counts |= parts_of_score[ALL]
    job.report.tables["score"] = [
        {"part": part, **row, "percent": percent(row)} for part, row in parts_of_score.items()
    ]
    survivors = wanted.out / SURVIVORS
    write_survivors(found, survivors)
    job.report.notes.append(f"not found, each with its difference: {survivors}")
    return found


def _spread(job: Job, out: Path, found: Found) -> None:
    """One task a block; a row comes back for each mutant as it is decided."""
    count = min(len(found.left), BLOCKS_PER_CORE * job.cores)
    blocks = [found.left[number::count] for number in range(count)]
    digest = found.digest

    def run(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for batch in batches:
            for number in batch.column(0).to_pylist():
                for key in try_block(blocks[number], out, digest):
                    yield pyarrow.RecordBatch.from_pydict({"key": [key]})

    numbers = job.spark.range(0, count, 1, numPartitions=count)
    numbers.mapInArrow(run, "key string").count()


def try_block(cases: Sequence[Case], out: Path, digest: str) -> Generator[str, None, None]:
    """Try those that no task has on record yet; their keys. Raises `PipelineError`, `OSError`."""
    known = load(parts(out), digest)
    left = [case for case in cases if case.fate.key not in known]
    with closing(try_cases(left, new_part(out), digest, jobs=1)) as decided:
        try:
            for fate in decided:
                yield fate.key
        except StaleMutant as error:
            raise PipelineError(str(error)) from error
