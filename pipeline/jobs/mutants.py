"""`campaign --mutants`: generated mutants of the node, spread over Spark's executors.

The directory is that of `rocketbed chaos mutants --generated` (`chaos.mutants.fates`), so either
goes on where the other was ended. The driver draws the mutants and watches, with nothing planted,
which lines each run visits; a task tries one of them, each run in its own process with a limit of
processor time, and the driver puts on record what became of it.
"""

from contextlib import closing

from rocketbed.chaos.mutants.draw import Source
from rocketbed.chaos.mutants.fates import RESULTS, Fate, kept_in
from rocketbed.chaos.mutants.generated import Case, Found, Search, UnknownMutant, begin, decide
from rocketbed.chaos.mutants.mutant import StaleMutant
from rocketbed.chaos.mutants.tally import ALL, SURVIVORS, percent, score, write_survivors
from rocketbed.chaos.mutants.visits import Trial, VisitError
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job
from rocketbed.pipeline.jobs.spread import spread


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
        with (
            job.phase(f"trying {len(found.left)} mutants"),
            kept_in(wanted.out / RESULTS, found.digest) as keep,
            closing(spread(job, try_one, found.left)) as decided,
        ):
            for done in decided:
                keep(done.answer)
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


def try_one(case: Case) -> Fate:
    """What becomes of one, in a task. Raises `PipelineError`."""
    with closing(decide([case], jobs=1)) as decided:
        try:
            return next(decided)
        except StaleMutant as error:
            raise PipelineError(str(error)) from error
