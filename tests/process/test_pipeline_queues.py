"""Topics and queues of a live cluster that the pipeline reads, and their ranges."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from rocketbed.pipeline.streams.offsets import DataLoss, StreamError, StreamOffset
from rocketbed.pipeline.streams.queues import QueueLog
from rocketbed.pipeline.streams.reader import StreamReader
from rocketbed.pipeline.wire.clients import shared_log
from rocketbed.pipeline.wire.log import TopicGone, WireError, WireLog
from rocketbed.pipeline.wire.plan import TASKS_MAX, WirePlan
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import RequestCode
from tests.support.pipeline_live import Start, clusters_in, reading, send, sink, table

pytestmark = pytest.mark.process
GONE_MS = 2000
QUEUES = 3000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with clusters_in(tmp_path) as begin:
        yield begin


def make(
    cluster: LocalCluster, topic: str, queues: int = 4, brokers: list[str] | None = None
) -> None:
    async def ask() -> None:
        async with cluster.admin() as admin:
            await admin.create_topic(topic, queues=queues, brokers=brokers)

    trio.run(ask)


def sent(cluster: LocalCluster, topic: str, first: int, end: int) -> None:
    send(sink(cluster, topic=topic, requestBytes="200"), first, end)


def topics_of(plan: Plan | WirePlan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in table(plan, ["topic", "physical_offset"]):
        counts[row["topic"]] = counts.get(row["topic"], 0) + 1
    return counts


def test_topic_selection_matches_that_of_files(start: Start) -> None:
    cluster = start(slaves=1)
    for topic, count in (("Orders", 40), ("Orders-old", 20), ("Trades", 30)):
        sent(cluster, topic, 0, count)
    path = f"broker-a/0={cluster.member_directory('master')}/store"
    for selection in ({}, {"topicsPattern": "Ord.*"}, {"topicsPattern": "Orders|T.*s"}):
        wire = topics_of(WirePlan.of(reading(cluster, topics=None, **selection)))
        assert wire == topics_of(Plan.of(Options.parse({"path": path, **selection})))
    assert wire == {"Orders": 40, "Trades": 30}
    with pytest.raises(TopicGone, match=r"none of \d+ topics matches Nothing\.\*"):
        WirePlan.of(
            reading(cluster, topics=None, topicsPattern="Nothing.*", retryTimeoutMs=300)
        ).splits()


@pytest.mark.slow
def test_brokers_and_clusters_can_be_selected(start: Start) -> None:
    cluster = start(groups=2)
    make(cluster, "T", 2)
    make(cluster, "Away", 2, brokers=["broker-b"])
    sent(cluster, "T", 0, 40)
    sent(cluster, "Away", 0, 10)

    def read(**more: Any) -> dict[str, set[str]]:
        brokers: dict[str, set[str]] = {}
        options = reading(cluster, retryTimeoutMs=GONE_MS, **more)
        for (part,) in WirePlan.of(options).splits():
            brokers.setdefault(part.queue.topic, set()).add(part.queue.broker_name)
        return brokers

    both = {"broker-a", "broker-b"}
    assert read() == read(brokers="broker-b, broker-a") == {"T": both}
    assert read(brokers="broker-b") == read(clusters="Other") == {"T": {"broker-b"}}
    assert read(topics=None, clusters="Other") == {"T": {"broker-b"}, "Away": {"broker-b"}}
    assert read(topics=None, brokers="broker-a") == {"T": {"broker-a"}}
    with pytest.raises(StreamError, match="topic Away has no queue at broker-a; it is at broker-b"):
        read(topics="T,Away", brokers="broker-a")
    with pytest.raises(WireError, match="no broker broker-c is registered; there are broker-a, b"):
        read(brokers="broker-c")
    with pytest.raises(WireError, match="no cluster Nowhere is registered; there are Other, local"):
        read(clusters="Nowhere")
    with pytest.raises(OptionError, match="give brokers or clusters, not both"):
        read(brokers="broker-a", clusters="Other")
    log = QueueLog(reading(cluster, topics=None, clusters="Other"))
    try:
        begin = log.initial()
        sent(cluster, "T", 40, 80)
        while not any(one for share in log.plan(begin, stop_of(log, begin)) for one in share):
            pass
        assert {name.split("|")[0] for name in stop_of(log, begin).marks} == {"broker-b"}
    finally:
        log.close()


def stop_of(log: QueueLog, begin: StreamOffset) -> StreamOffset:
    return log.latest(begin, bytes_max=None, rows_max=None)


@pytest.mark.slow
def test_a_stream_of_a_pattern_finds_new_topics(start: Start) -> None:
    cluster = start()
    sent(cluster, "Orders", 0, 10)
    log = QueueLog(reading(cluster, topics=None, topicsPattern="Orders.*"))
    try:
        begin = log.initial()
        sent(cluster, "Orders-2", 0, 10)
        sent(cluster, "Trades", 0, 10)
        expected = {"Orders", "Orders-2"}
        topics: set[str] = set()
        while topics != expected:
            stop = log.latest(begin, bytes_max=None, rows_max=None)
            topics = {name.split("|")[1] for name in stop.marks}
        rows = sum(one.end - one.start for share in log.plan(begin, stop) for one in share)
        while rows < 20:
            stop = log.latest(begin, bytes_max=None, rows_max=None)
            rows = sum(one.end - one.start for share in log.plan(begin, stop) for one in share)
        assert rows == 20
        foreign = QueueLog(reading(cluster, topics=None, topicsPattern="Trades.*"))
        with pytest.raises(StreamError, match=r"this stream reads topics that match Trades\.\*"):
            foreign.latest(stop, bytes_max=None, rows_max=None)
        foreign.close()
    finally:
        log.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss_options", [{"topicsPattern": "T|Gone"}, {"topics": "T,Gone"}], ids=str
)
def test_stream_continues_without_a_missing_topic(
    start: Start, loss_options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It was the only one at its broker, which was taken for another cluster then."""
    cluster = start(groups=2)
    for topic, broker in (("T", "broker-a"), ("Gone", "broker-b")):
        make(cluster, topic, 2, brokers=[broker])
        sent(cluster, topic, 0, 10)
    options = {"topics": None, "retryTimeoutMs": GONE_MS, **loss_options}
    log = QueueLog(reading(cluster, **options))
    loose = QueueLog(reading(cluster, failOnDataLoss="false", **options))
    try:
        position = stop_of(log, log.initial())

        async def delete() -> None:
            async with cluster.admin() as admin:
                await admin.delete_topic("Gone")

        trio.run(delete)
        sent(cluster, "T", 10, 30)

        def follow_strictly(strict: StreamOffset) -> None:
            log.freeze()
            while True:
                strict = stop_of(log, strict)

        with pytest.raises((StreamError, TopicGone), match="Gone"):
            follow_strictly(position)
        loose.freeze()
        rows = 0
        while (following := stop_of(loose, position)) != position:
            planned = loose.plan(position, following)
            rows += sum(one.end - one.start for share in planned for one in share)
            position = following
        assert rows == 20
        assert "the topic or the queue is not there any more" in caplog.text
    finally:
        log.close()
        loose.close()


@pytest.mark.slow
def test_queues_are_read_in_the_configured_range(start: Start) -> None:
    cluster = start()
    sent(cluster, "T", 0, 200)
    plan = WirePlan.of(reading(cluster))
    ends = {one.queue.queue_id: one.end for (one,) in plan.splits()}
    assert sorted(ends) == [0, 1, 2, 3]

    def ranges(**more: object) -> dict[int, tuple[int, int]]:
        texts = {name: json.dumps(value) for name, value in more.items()}
        shares = WirePlan.of(reading(cluster, retryTimeoutMs=GONE_MS, **texts)).splits()
        return {one.queue.queue_id: (one.start, one.end) for (one,) in shares}

    starts = {"broker-a|T|0": 5, "broker-a|T|1": -1, "broker-a|T|2": -2}
    assert ranges(startingOffsets=starts) == {
        0: (5, ends[0]),
        2: (0, ends[2]),
        3: (0, ends[3]),
    }
    assert ranges(endingOffsets={"broker-a|T|0": 7, "broker-a|T|2": -1}) == {
        0: (0, 7),
        2: (0, ends[2]),
    }
    with pytest.raises(StreamError, match=r"startingOffsets names broker-a\|T\|9, which is no"):
        ranges(startingOffsets={"broker-a|T|9": 1})
    with pytest.raises(DataLoss, match=rf"has 0 to {ends[0]}, and 9999 was asked for"):
        ranges(endingOffsets={"broker-a|T|0": 9999})
    last = WirePlan.of(reading(cluster, startingOffsets="latest"))
    assert last.splits() == []


def test_stream_starts_at_a_time_or_offsets(start: Start) -> None:
    cluster = start()
    sent(cluster, "T", 0, 60)
    columns = ["queue_id", "queue_offset", "store_timestamp", "physical_offset"]
    rows = table(WirePlan.of(reading(cluster)), columns)
    time_ms = int(rows[40]["store_timestamp"].timestamp() * 1000)
    ends = {row["queue_id"]: row["queue_offset"] + 1 for row in rows}

    def initial(**more: object) -> dict[str, int]:
        log = QueueLog(reading(cluster, **more))
        try:
            return {name: mark.at for name, mark in log.initial().marks.items()}
        finally:
            log.close()

    since = initial(startingTimestamp=time_ms)
    for queue in range(4):
        earlier = [
            row["queue_offset"]
            for row in rows
            if row["queue_id"] == queue and row["store_timestamp"].timestamp() * 1000 < time_ms
        ]
        assert since[f"broker-a|T|{queue}"] == max(earlier, default=-1) + 1
    at = json.dumps({"broker-a|T|0": -1, "broker-a|T|1": -2, "broker-a|T|2": 3})
    assert initial(startingOffsets=at) == {
        "broker-a|T|0": ends[0],
        "broker-a|T|1": 0,
        "broker-a|T|2": 3,
    }


def test_small_batches_wait_for_more_or_a_timeout(start: Start) -> None:
    cluster = start()
    sent(cluster, "T", 0, 20)
    options = {"endpoints": cluster.nameserver_address, "topics": "T"}
    options |= {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    schema = arrow_schema("records", ["body"])
    reader = StreamReader(schema, Options.parse(options), ["body"])

    def latest(at: dict[str, Any], count: int) -> dict[str, Any]:
        """The end of the next batch, once so many messages are there."""
        while True:
            newest_offset = reader.latestOffset(at, ReadAllAvailable())
            newest = reader.reportLatestOffset()
            assert newest is not None
            if sum(queue["off"] for queue in newest["queues"].values()) == count:
                return newest_offset

    try:
        begin = reader.initialOffset()
        assert reader.reportLatestOffset() is None
        first = latest(begin, 20)
        assert sum(queue["off"] for queue in first["queues"].values()) == 20
        sent(cluster, "T", 20, 25)
        assert latest(first, 25) == first  # too few
        sent(cluster, "T", 25, 32)
        second = latest(first, 32)
        assert second != first
        sent(cluster, "T", 32, 33)
        reader.options = replace(reader.options, max_trigger_delay=0)
        third = latest(second, 33)
        assert third != second
        reader.options = replace(reader.options, max_trigger_delay=3_600_000)
        sent(cluster, "T", 33, 34)
        assert latest(third, 34) == third
        reader.prepareForTriggerAvailableNow()
        assert latest(third, 34) != third  # the last batch of a query may be small
    finally:
        reader.stop()


@pytest.mark.slow
def test_thousands_of_queues_cost_few_questions_and_tasks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start()
    make(cluster, "T", QUEUES)
    codes: list[int] = []
    ask = WireLog.bounds_of

    async def counting(self: WireLog, queues: list[MessageQueue]) -> object:
        connections = self._session.ask

        async def counted(address: object, command: object, *, timeout_s: float) -> object:
            codes.append(command.code)  # type: ignore[attr-defined]
            return await connections(address, command, timeout_s=timeout_s)  # type: ignore[arg-type]

        monkeypatch.setattr(self._session, "ask", counted)
        return await ask(self, queues)

    monkeypatch.setattr(WireLog, "bounds_of", counting)
    log = QueueLog(reading(cluster))
    try:
        assert len(log.ends()) == QUEUES
    finally:
        log.close()
    assert codes.count(RequestCode.GET_TOPIC_STATS_INFO) == 1
    assert len(codes) == 3
    monkeypatch.undo()
    send(sink(cluster, requestBytes="0"), 0, 2 * QUEUES)
    plan = WirePlan.of(reading(cluster))
    shares = plan.splits()
    assert len({one.queue for share in shares for one in share}) > TASKS_MAX == len(shares)
    assert len(table(plan, ["physical_offset"])) == 2 * QUEUES


def test_tasks_of_a_process_share_a_client(start: Start) -> None:
    cluster = start()
    sent(cluster, "T", 0, 50)
    options = reading(cluster)
    assert len(table(WirePlan.of(options), ["physical_offset"])) == 50
    log = shared_log(options)
    opened = log._open
    assert opened is not None
    assert len(table(WirePlan.of(options), ["physical_offset"])) == 50
    assert shared_log(options) is log
    assert log._open is opened
