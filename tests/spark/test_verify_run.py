"""`verify` on the files of a real run, as they were left and with defects planted: it and the plain
checkers have to see the same."""

import json
import shutil
import struct
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rocketbed.chaos.checks.judgement import Judgement, judge_run
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.search.runner import run_plan
from rocketbed.inspect import Scanned, open_directory
from rocketbed.pipeline.agreement import compare
from rocketbed.pipeline.history_files import HistoryCut
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.verify.job import VerifyOptions, verify
from rocketbed.pipeline.report import Report
from rocketbed.pipeline.requirement import write_requirement
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.spark
PLAN = Plan(
    name="planted",
    seed=7,
    shape=Shape(brokers=2, nameservers=1, repl="sync", min_isr=2),
    producers=Producers(count=1, rate=60.0, topics=1, queues=1, body=(200, 200), batch=0.0),
    consumers=Consumers(count=1),
    faults_s=2.0,
    recovery_s=2.0,
)
AT_ONCE = ("plain", "unicode", "binary", "random", "tags", "batch", "roll", "flood", "to-retry")
"""Kinds of messages that are where they were acknowledged: not delayed, not of a transaction."""
QUEUE_OFFSET, PHYSICAL_OFFSET = 20, 28


@dataclass(frozen=True)
class Stored:
    """A record in the log's first file."""

    at: int
    size: int
    data: bytes


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "run"
    outcome = run_plan(PLAN, directory=directory)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    return directory


def logs(directory: Path) -> list[Path]:
    """The log file of each node, the last master's first."""
    return sorted((directory / "stores").glob("*/store/commitlog/00000000000000000000"))


def records(log: Path) -> list[Stored]:
    """Records of the workload, in the log's order."""
    directory = open_directory(log.parent.parent)
    try:
        stored_items = [item for item in directory.log.scan() if isinstance(item, Scanned)]
    finally:
        directory.close()
    data = log.read_bytes()
    return [
        Stored(item.offset, item.size, data[item.offset : item.offset + item.size])
        for item in stored_items
        if item.topic.startswith(b"load")
    ]


def alike(stored: list[Stored]) -> tuple[Stored, Stored]:
    """The first two of the same size, not next to each other."""
    for number, first in enumerate(stored):
        for second in stored[number + 2 :]:
            if first.size == second.size:
                return first, second
    raise AssertionError("no two records have the same size")


def put(log: Path, at: int, data: bytes) -> None:
    with open(log, "r+b") as file:
        file.seek(at)
        file.write(data)


def put_in_place_of(directory: Path, old: Stored, new: Stored) -> None:
    """On all nodes: another record where one stood, with the old one's place in log and queue."""
    assert old.size == new.size
    data = bytearray(new.data)
    data[QUEUE_OFFSET : PHYSICAL_OFFSET + 8] = old.data[QUEUE_OFFSET : PHYSICAL_OFFSET + 8]
    assert struct.unpack_from(">q", data, PHYSICAL_OFFSET) == (old.at,)
    for log in logs(directory):
        put(log, old.at, bytes(data))


def check(spark: SparkSession, directory: Path) -> tuple[Judgement, Report]:
    """Judged by both."""
    judgement = judge_run(directory, recoveries=0)
    job = Job("verify", JobSettings(), spark=spark)

    verify(job, VerifyOptions(run=directory, requirement=write_requirement(directory)))

    return judgement, job.report


@pytest.mark.ci
@pytest.mark.slow
def test_both_are_content_with_a_run_that_passed(spark: SparkSession, run_directory: Path) -> None:
    judgement, report = check(spark, run_directory)
    assert judgement.exit_code == 0
    assert report.exit_code == 0, report.findings
    assert report.counts["records"] == len(records(logs(run_directory)[0])) > 100
    agreement = compare(judgement.results, report.checks)
    assert (agreement.verdict, agreement.examined) == (Verdict.OK, 7)


@pytest.mark.slow
def test_both_find_what_was_planted(
    spark: SparkSession, run_directory: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run_directory, directory)
    stored = records(logs(directory)[0])
    # Lost and duplicated: the copy of one message stands where another one stood.
    lost, twice = alike(stored[10:40])
    put_in_place_of(directory, lost, twice)
    # Reordered: two that were sent one after the other have changed places.
    first, second = alike(stored[50:80])
    put_in_place_of(directory, first, second)
    put_in_place_of(directory, second, first)
    # One bit of a body, on the slave.
    flipped = stored[90]
    at = flipped.at + 100
    slave = logs(directory)[1]
    put(slave, at, bytes([slave.read_bytes()[at] ^ 4]))

    judgement, report = check(spark, directory)
    plain = {result.id: result.found for result in judgement.findings}
    counts = Counter[str]()
    texts: dict[str, str] = {}
    for row in report.findings:
        counts[row["id"]] += row["count"]
        texts[row["id"]] = texts.get(row["id"], "") + row["examples"][0]["text"]
    between = stored.index(second) - stored.index(first)
    assert counts == {"V1": 1, "V3": 2, "V4": 1, "V7": between, "V10": 1, "V11": 2}
    assert (
        plain["lost-write"],
        plain["duplicate"],
        plain["moved-write"],
        plain["equal-logs"],
        plain["record-checksums"],
    ) == (1, 2, 8, 1, 1)
    assert f"(log {lost.at} of b/b1)" in texts["V3"]
    assert f"(log {twice.at} of b/b1)" in texts["V3"]
    assert f"b/b2 differs from b1 in 1 blocks, from log {at} on" in texts["V4"]
    assert f"(log {flipped.at} of b/b2)" in texts["V10"]
    assert report.exit_code == 1
    agreement = compare(judgement.results, report.checks)
    assert agreement.verdict is Verdict.OK
    assert "lost 1, duplicated 2" in agreement.note


@pytest.mark.slow
def test_real_store_agrees_with_its_clients_history(spark: SparkSession, tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "rocketmq-store-killed.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    manifest = json.loads((FIXTURES / "rocketmq-store-killed.manifest.json").read_text())
    lines = [history_line(row) for row in manifest["sent"] if row["kind"] in AT_ONCE]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = JobSettings(stores=(f"b={tmp_path / 'store'}",))
    job = Job("verify", settings, spark=spark)
    verify(job, VerifyOptions(histories=(history,)))
    assert job.report.findings == []
    assert job.report.counts["ok"] == len(lines) > 200

    with open(history, "a") as file:
        file.write('{"uniq_key": "half a li')
    job = Job("verify", settings, spark=spark)
    with pytest.raises(HistoryCut, match=f"its last line, {len(lines) + 1}, breaks off"):
        verify(job, VerifyOptions(histories=(history,)))


def history_line(row: dict[str, Any]) -> dict[str, Any]:
    """Return the client's answer for a message, as a line of a history."""
    return {
        "uniq_key": row["msgId"],
        "topic": row["topic"],
        "queue_id": row["queueId"],
        "queue_offset": row["queueOffset"],
        "outcome": "ok",
    }
