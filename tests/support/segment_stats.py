"""The job `stats` without Spark: its tasks run here, one after the other."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rocketbed.pipeline.jobs import stats as job_module
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.spread import Cost, Done
from rocketbed.pipeline.report import Report


def one_by_one(
    _: Job, work: Callable[[Any], Any], pieces: Sequence[Any]
) -> Iterator[Done[Any, Any]]:
    """A replacement of `jobs.spread.spread` that works on one segment after the other."""
    for piece in pieces:
        sent = pickle.loads(pickle.dumps(piece))
        with pytest.MonkeyPatch.context() as patch:
            # Nor has a task the driver's links.
            patch.setattr("os.path.realpath", lambda path: f"/elsewhere{path}")
            answer = work(sent)
        yield Done(piece, answer, Cost("here", 0, 0.0, 0.0))


def make_stats(out: Path | str, *stores: object, conf: dict[str, str] | None = None) -> Report:
    """Run the job and return its report."""
    settings = JobSettings(stores=tuple(map(str, stores)), conf=conf or {})
    job = Job("stats", settings, spark=cast(Any, object()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "spread", one_by_one)
        job_module.stats(job, str(out))
    return job.report
