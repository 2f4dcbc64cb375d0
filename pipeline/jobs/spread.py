"""Distribution of work to executors, with a Spark task for each piece, without a shared folder.

Every piece is a job of a single task, and there are as many concurrent jobs as slots, so that each
answer arrives as soon as its task is done. Spark repeats a task that is lost with its executor; the
answer of the completed task counts.
"""

import pickle
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rocketbed.pipeline.build import check_build, own_build
from rocketbed.pipeline.jobs.common import Job
from rocketbed.pipeline.jobs.failures import SparkFailed, explain

if TYPE_CHECKING:
    import pyarrow

CONF: Final = {"spark.speculation": "false"}
THREADS_MAX: Final = 1024
ANSWER: Final = "answer binary"

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a task, including all processes that it started."""

    host: str
    attempt: int
    """Number of failed attempts before this one."""
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Done(Generic[Piece, Answer]):
    piece: Piece
    answer: Answer
    cost: Cost


def spread(
    job: Job, work: Callable[[Piece], Answer], pieces: Sequence[Piece]
) -> Generator[Done[Piece, Answer], None, None]:
    """Do all pieces, and yield the answers as they arrive; the report gets a table of the costs.

    A failed piece does not end the others, unless none has succeeded yet. Raises `PipelineError`.
    """
    waiting, build = list(reversed(pieces)), own_build()
    running: dict[Future[Any], Piece] = {}
    costs: list[Cost] = []
    failed: list[BaseException] = []
    pool = ThreadPoolExecutor(THREADS_MAX)
    try:
        while waiting or running:
            while (
                waiting and len(running) <= job.cores
            ):  # an extra job waits, so that no slot is idle
                piece = waiting.pop()
                running[pool.submit(_run, job, work, piece, build)] = piece
            done = wait(running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda future: future.exception() is not None):
                piece = running.pop(future)
                if (error := future.exception()) is not None:
                    failed.append(error)
                    if not costs:
                        raise error
                    continue
                answer, cost = future.result()
                costs.append(cost)
                yield Done(piece, answer, cost)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        job.report.tables["cost"] = [*by_host(costs)]
    if failed:
        explained = explain(failed[0])
        if explained is None:
            raise failed[0]
        raise SparkFailed(f"{len(failed)} of {len(pieces)} tasks failed: {explained}") from failed[
            0
        ]


def by_host(costs: Sequence[Cost]) -> Iterator[dict[str, Any]]:
    """Yield a row of costs for each machine."""
    tasks = Counter(cost.host for cost in costs)
    for host in sorted(tasks):
        of_host = [cost for cost in costs if cost.host == host]
        yield {
            "host": host,
            "tasks": tasks[host],
            "repeated": sum(cost.attempt > 0 for cost in of_host),
            "wall_s": round(sum(cost.wall_s for cost in of_host), 2),
            "cpu_s": round(sum(cost.cpu_s for cost in of_host), 2),
        }


def _run(
    job: Job, work: Callable[[Piece], Answer], piece: Piece, build: str
) -> tuple[Answer, Cost]:
    def run(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for _ in batches:
            answer = pickle.dumps(_measured(work, piece, build))
            yield pyarrow.RecordBatch.from_pydict({"answer": [answer]})

    (row,) = job.spark.range(0, 1, 1, 1).mapInArrow(run, ANSWER).collect()
    result: tuple[Answer, Cost] = pickle.loads(row.answer)
    return result


def _measured(work: Callable[[Piece], Answer], piece: Piece, build: str) -> tuple[Answer, Cost]:
    """Do a piece and measure it, in the task."""
    from pyspark import TaskContext

    check_build(build)
    began, before = time.monotonic(), _cpu_s()
    answer = work(piece)
    context = TaskContext.get()
    attempt = context.attemptNumber() if context else 0
    wall_s, cpu_s = time.monotonic() - began, _cpu_s() - before
    return answer, Cost(socket.gethostname(), attempt, round(wall_s, 3), round(cpu_s, 3))


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    usages = (
        resource.getrusage(processes)
        for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
