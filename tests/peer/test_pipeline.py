"""The pipeline's writers and readers with a real broker."""

from collections import Counter
from functools import partial

import pyarrow
import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import RECORDS, arrow_schema
from rocketbed.pipeline.sink.committed import CommittedPart, marked_runs, read_committed
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.pipeline.sink.writer import TaskCommit, finish, send_partition
from rocketbed.pipeline.streams.queues import QueueLog, read_part
from rocketbed.pipeline.wire.plan import WirePlan
from tests.support.peer.brokers import Site

TOPIC = "PeerPipeline"


def send(options: SinkOptions, first: int, end: int) -> TaskCommit:
    rows = pyarrow.record_batch({"body": [b"%d" % number for number in range(first, end)]})
    key = TaskKey(job=options.job, batch=0, partition=first)
    return send_partition(options, key, iter([rows]))


def table(plan: Plan | WirePlan, columns: list[str]) -> list[dict[str, object]]:
    schema = arrow_schema("records", columns)
    table_rows: list[dict[str, object]] = []
    for split in plan.splits():
        for batch in plan.read(split, schema):
            table_rows += batch.to_pylist()
    return sorted(table_rows, key=lambda row: int(str(row["physical_offset"])))


def committed(options: Options) -> Counter[bytes]:
    plan, schema = WirePlan.of(options), arrow_schema("records", ["body"])
    marked = marked_runs(options)
    counts: Counter[bytes] = Counter()
    for split in plan.splits():
        for batch in read_committed(plan, CommittedPart(split, marked), schema, "_corrupt"):
            counts.update(batch.column(0).to_pylist())
    return counts


def streamed(options: Options) -> Counter[bytes]:
    log = QueueLog(options)
    try:
        schema = arrow_schema("records", ["body"])
        begin = log.initial()
        end = log.latest(begin, bytes_max=None, rows_max=None)
        counts: Counter[bytes] = Counter()
        for part in log.plan(begin, end):
            for batch in read_part(part, schema, options):
                counts.update(batch.column(0).to_pylist())
        return counts
    finally:
        log.close()


@pytest.mark.ci
async def test_rows_into_a_real_broker_and_back(site: Site) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketmq")
    async with Admin(nameservers=site.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=4)
    options = {"endpoints": site.nameserver, "topic": TOPIC}
    exactly_once = {"delivery": "exactly-once", "jobId": "peer"}
    sink = SinkOptions.parse({**options, **exactly_once}, streaming=False)
    reading = Options.parse({"endpoints": site.nameserver, "topics": TOPIC})

    def work() -> None:
        send(sink, 0, 300)  # a task that failed later
        tasks = [send(sink, 0, 300), send(sink, 300, 400)]
        assert committed(reading) == Counter()
        finish(sink, tasks)
        assert send(sink, 0, 300).is_skipped
        expected = Counter(b"%d" % number for number in range(400))
        assert committed(reading) == expected
        assert streamed(reading) == expected + Counter(b"%d" % number for number in range(300))
        columns = [name for name in RECORDS if name not in ("replica", "segment", "broker")]
        wire = table(WirePlan.of(reading), columns)
        files = Options.parse({"path": str(broker.store), "topics": TOPIC})
        assert wire == table(Plan.of(files), columns)

    await trio.to_thread.run_sync(partial(work))
