"""A user's work on a Spark cluster, as a program for one of its hosts.

    python -m tests.support.deployed MASTER HOST ARCHIVE OWN SHARED

OWN is a directory of this host, SHARED one of all hosts. Prints the result of each step.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio
from pyspark import TaskContext
from pyspark.sql import SparkSession

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.pipeline import read
from rocketbed.pipeline.jobs import spread as spreading
from rocketbed.pipeline.jobs.campaign import CampaignOptions, campaign, results
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.failures import explain
from rocketbed.pipeline.jobs.seeds import SeedOptions
from rocketbed.pipeline.jobs.spread import spread
from rocketbed.pipeline.jobs.tail.job import TailOptions, tail
from rocketbed.pipeline.session import build_session
from tests.support.campaigns import SCENARIO
from tests.support.pipeline_live import SETTINGS, send, sink

MESSAGES = 400
TOPIC = "T"
MISSED = '[expect]\nprogress = [100000, "1s"]\n'


@dataclass(frozen=True)
class Bed:
    spark: SparkSession
    settings: JobSettings
    own: Path
    shared: Path

    def job(self, work: Callable[[Job], object], **change: Any) -> Job:
        """Run a job as the command line does; an explained error goes into its report."""
        job = Job("deployed", replace(self.settings, **change), spark=self.spark)
        try:
            work(job)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            job.report.error = f"{type(explained).__name__}: {explained}"
        finally:
            job.close()
        return job


def reads(bed: Bed) -> int:
    topic: dict[str, Any] = {"topics": TOPIC, "minPartitions": 6}
    return read(bed.spark, columns=["body"], endpoints=bed.settings.endpoints, **topic).count()


def exports(bed: Bed) -> dict[str, Any]:
    """To a directory that every host has one of, and to one that all have."""
    options = ExportOptions(topics=(TOPIC,))
    to_own = bed.job(lambda job: export(job, options), out=bed.own / "out").report
    to_shared = bed.job(lambda job: export(job, options), out=bed.shared / "out").report
    return {"own": to_own.error, "shared": to_shared.error, "rows": to_shared.counts.get("rows")}


def streams(bed: Bed) -> dict[str, Any]:
    options = TailOptions(topics=(TOPIC,), start="earliest", once=True)
    to_own = bed.job(lambda job: tail(job, options, print), out=bed.own / "tail").report
    to_shared = bed.job(lambda job: tail(job, options, print), out=bed.shared / "tail").report
    rows = bed.spark.read.parquet(str(bed.shared / "tail")).count()
    return {"own": to_own.error, "shared": to_shared.error, "rows": rows}


def cannot_reach(bed: Bed) -> str:
    """Brokers that tell the address of a loopback interface."""
    cluster = LocalCluster.create(bed.own / "inner", slaves=0, settings=SETTINGS, tied=True)
    trio.run(cluster.start)
    send(sink(cluster, topic=TOPIC), 0, 1)
    where = {"endpoints": cluster.nameserver_address, "topics": TOPIC, "retryTimeoutMs": "200"}
    rows = bed.spark.read.format("rocketbed").options(**where).load()
    job = bed.job(lambda _: rows.count())
    trio.run(cluster.close)
    return job.report.error


def loses_an_executor(bed: Bed) -> dict[str, Any]:
    """Lose an executor in the middle of a task, which is then repeated."""

    def work(piece: int) -> int:
        context = TaskContext.get()
        assert context is not None
        if piece == 2 and context.attemptNumber() == 0:
            daemon = int(
                Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            )
            os.kill(daemon, signal.SIGKILL)
            signal.pause()
        return piece * piece

    answers: list[int] = []
    job = bed.job(
        lambda job: answers.extend(done.answer for done in spread(job, work, [*range(6)]))
    )
    cost = job.report.tables["cost"]
    repeated = sum(row["repeated"] for row in cost)
    return {"error": job.report.error, "answers": sorted(answers), "repeated": repeated > 0}


def meets_another_build(bed: Bed) -> str:
    with patch.object(spreading, "own_build", return_value="0.0.9"):
        return bed.job(lambda job: list(spread(job, abs, [1]))).report.error


def campaigns(bed: Bed) -> dict[str, Any]:
    file = bed.own / "tiny.toml"
    file.write_text(SCENARIO.replace("FAULTS", "1s") + MISSED)
    seeds = SeedOptions(scenario=str(file), text=file.read_text())
    options = CampaignOptions(seeds=seeds, out=bed.own / "campaign", count=3)
    job = bed.job(lambda job: campaign(job, options))
    rows = results(options.out)
    return {
        "error": job.report.error,
        "counts": job.report.counts,
        "hosts": sorted({row["host"] for row in rows}),
        "rows": rows,
        "replays": sum(Path(row["replay"]).is_file() for row in rows if row["replay"]),
    }


STEPS = (
    reads,
    exports,
    streams,
    cannot_reach,
    loses_an_executor,
    meets_another_build,
    campaigns,
)


def main(master: str, host: str, archive: str, *directories: str) -> None:
    own, shared = map(Path, directories)
    places = [(host, 9876), (host, 10911)]
    cluster = LocalCluster.create(
        own / "bed", slaves=0, settings=SETTINGS, tied=True, places=places
    )
    trio.run(cluster.start)
    send(sink(cluster, topic=TOPIC), 0, MESSAGES)
    conf = {"spark.driver.host": host, "spark.driver.bindAddress": host}
    conf |= {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    settings = JobSettings(master=master, conf=conf, endpoints=cluster.nameserver_address)
    spark = build_session("deployed", master=master, conf=conf, archive=archive)
    bed = Bed(spark, settings, own, shared)
    for step in STEPS:
        print(json.dumps([step.__name__, step(bed)]), flush=True)
    spark.stop()
    trio.run(cluster.close)


if __name__ == "__main__":
    main(*sys.argv[1:])
