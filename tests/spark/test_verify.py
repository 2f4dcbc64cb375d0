"""The checks of `verify` on small tables: all at once, where all is well and where it is not."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketbed.pipeline.checks.findings import Answer, Check, answer
from rocketbed.pipeline.checks.keys import KeyTables, key_checks
from rocketbed.pipeline.checks.log import checksums, whole_chain
from rocketbed.pipeline.checks.order import dense_queues, send_order
from rocketbed.pipeline.checks.queues import QueueSide, queue_entries
from rocketbed.pipeline.checks.readers import out_of_order, skipped
from rocketbed.pipeline.checks.replicas import diverged, unequal_blocks
from rocketbed.pipeline.checks.tables import record_table, send_table
from rocketbed.pipeline.histories import COLUMNS as HISTORY_COLUMNS
from rocketbed.pipeline.histories import DDL as HISTORY_DDL
from rocketbed.pipeline.histories import check_history
from rocketbed.pipeline.history_files import BadHistory
from rocketbed.pipeline.jobs.verify.inputs import unseen
from rocketbed.pipeline.jobs.verify.job import interpreted as interpreted_

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]
SIZE = 100
RECORDS_DDL = (
    "broker string, replica string, topic string, queue_id int, queue_offset bigint,"
    " physical_offset bigint, size int, sys_flag int, body_crc int, crc_ok boolean, segment bigint,"
    " _corrupt struct<offset:bigint,reason:string,bytes:binary>, uniq_key string"
)
ENTRIES_DDL = "topic string, queue_id int, queue_offset bigint, physical_offset bigint, size int"
BLOCKS_DDL = "broker string, replica string, offset bigint, length bigint, crc32 bigint"


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Without compiling: for a dozen rows that takes longer than all the rest."""
    with interpreted_(spark, is_small=True):
        yield


class Store:
    """A log in the making, with the history that its producer would have."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self._offsets: dict[tuple[str, int], int] = {}

    def send(self, key: str, topic: str, queue: int = 0, **change: Any) -> dict[str, Any]:
        """An acknowledged send and its record; `change` goes over the record's columns."""
        offset = self._offsets.get((topic, queue), 0)
        self._offsets[topic, queue] = offset + 1
        at = len(self.records) * SIZE
        record = {
            "broker": "b",
            "replica": "b1",
            "topic": topic,
            "queue_id": queue,
            "queue_offset": offset,
            "physical_offset": at,
            "size": SIZE,
            "sys_flag": 0,
            "body_crc": len(self.records),
            "crc_ok": True,
            "segment": 0,
            "_corrupt": None,
            "uniq_key": key,
        }
        self.tell(key, topic, queue, offset, body_crc=record["body_crc"])
        record |= change
        self.records.append(record)
        return record

    def tell(self, key: str, topic: str, queue: int, offset: int | None, **change: Any) -> None:
        """A send in the history alone; each begins after the one before has returned."""
        now = 10 * len(self.history)
        row = dict.fromkeys(HISTORY_COLUMNS)
        row |= {"kind": "send", "clock": "c", "client": "c", "uniq_key": key, "topic": topic}
        row |= {"queue_id": queue, "queue_offset": offset, "outcome": "ok"}
        row |= {"sent_ns": now, "done_ns": now + 5}
        self.history.append(row | change)

    def got(self, key: str, topic: str, offset: int, time_ns: int, queue: int = 0) -> None:
        """A consumer of the group `g` got a message."""
        row = dict.fromkeys(HISTORY_COLUMNS)
        row |= {"kind": "read", "group": "g", "uniq_key": key, "topic": topic, "queue_id": queue}
        self.history.append(row | {"queue_offset": offset, "done_ns": time_ns})

    def entries(self) -> list[dict[str, Any]]:
        """Consume queue entries of all records."""
        names = ("topic", "queue_id", "queue_offset", "physical_offset", "size")
        return [{name: row[name] for name in names} for row in self.records if row["topic"]]


def tables(spark: SparkSession, store: Store) -> tuple[DataFrame, DataFrame]:
    from pyspark.sql import functions as f

    names = [
        part.split()[0] for part in RECORDS_DDL.replace("_corrupt struct", "_corrupt s").split(", ")
    ]
    rows = [tuple(row[name] for name in names) for row in store.records]
    history = [tuple(row[name] for name in HISTORY_COLUMNS) for row in store.history]
    records = record_table(small(spark, rows, RECORDS_DDL), f.lit(True))
    return records, small(spark, history, HISTORY_DDL)


def small(spark: SparkSession, rows: list[Any], ddl: str) -> DataFrame:
    """A table of one partition."""
    return spark.createDataFrame(rows, ddl).coalesce(1)


def run(
    spark: SparkSession,
    store: Store,
    *,
    excused: tuple[str, ...] = (),
    entries: list[dict[str, Any]] | None = None,
    ordered: tuple[str, ...] = ("ordered",),
) -> dict[str, Answer]:
    """Run all checks of a store; return them by id."""
    records, history = tables(spark, store)
    records, history = records.persist(), history.persist()
    sends = send_table(history)
    keys = small(spark, [(key,) for key in excused], "uniq_key string")
    by_key, suspects = key_checks(
        KeyTables(sends=sends, records=records, excused=keys, is_whole=True)
    )
    rows = [tuple(row.values()) for row in (store.entries() if entries is None else entries)]
    side = QueueSide(
        label="b/b1",
        entries=small(spark, rows, ENTRIES_DDL),
        records=records,
        start=0,
        end=len(store.records) * SIZE,
    )
    checks: list[Check] = [
        *by_key,
        whole_chain(records),
        dense_queues(records),
        checksums(records),
        send_order(sends, records, suspects, keys),
        queue_entries(side),
        skipped(history, records, by_key=True),
        out_of_order(history, ordered),
    ]
    return {one.id: one for one in answer(checks)}


@pytest.mark.slow
def test_nothing_is_found_where_nothing_is_wrong(spark: SparkSession) -> None:
    store = Store()
    for number in range(6):
        store.send(f"k{number}", "orders", number % 2)
    store.tell("unknown", "orders", 0, None, outcome="unknown")
    store.tell("refused", "orders", 0, None, outcome="fail")
    # Attempted twice, with the answer of the first lost: stored twice, and legally so.
    store.tell("twice", "orders", 0, None, outcome="unknown", body_crc=6)
    store.send("twice", "orders")
    store.records.append(
        {**store.records[-1], "queue_offset": 4, "physical_offset": len(store.records) * SIZE}
    )
    store.tell("gone", "orders", 1, 9)
    for offset in range(3):
        store.got(f"k{2 * offset}", "orders", offset, 100 + offset)
    answers = run(spark, store, excused=("gone",))
    assert {one.id: one.count for one in answers.values() if one.count} == {}
    assert answers["V1"].allowed == 1
    assert "key gone, acknowledged at orders/1 offset 9 is in no log" in answers["V1"].examples
    assert len(answers) == 12


@pytest.mark.slow
def test_each_check_finds_what_was_planted_for_it(spark: SparkSession) -> None:
    store = Store()
    store.send("a", "t")
    store.tell("lost", "lost", 0, 5)
    store.send("risen", "risen")
    store.history[-1]["outcome"] = "fail"
    store.send("double", "double")
    store.records.append(
        {**store.records[-1], "queue_offset": 1, "physical_offset": len(store.records) * SIZE}
    )
    store.send("late", "order")
    store.send("early", "order")
    first, second = store.records[-2:]
    first["queue_offset"], second["queue_offset"] = 1, 0  # early stands before late now
    store.send("hole", "dense", queue_offset=1)
    store.history[-1]["queue_offset"] = 1
    store.send("flipped", "t", crc_ok=False, _corrupt=(0, "crc_mismatch", b""))
    store.send("altered", "t", body_crc=4711)
    store.send("foreign", "t")
    del store.history[-1]
    store.records.append(
        dict.fromkeys(store.records[-1])
        | {"broker": "b", "replica": "b1", "segment": 0, "size": SIZE}
        | {"_corrupt": (len(store.records) * SIZE, "bad_magic", b"\0")}
    )
    entries = store.entries()
    missing = entries.pop(0)
    store.got("a", "t", 0, 50)
    store.got("flipped", "t", 1, 60)
    store.got("foreign", "t", 3, 40)
    answers = run(spark, store, entries=entries, ordered=("t",))
    counts = {one.id: one.count for one in answers.values()}
    assert counts == {
        "V1": 1,
        "V2": 1,
        "V3": 1,
        "V5": 1,
        "V6": 3,  # the two that changed places, and the hole
        "V7": 1,
        "V8": 1,
        "V9": 1,
        "V9o": 1,
        "V10": 1,
        "V11": 2,
        "V12": 2,
    }
    assert "key lost, acknowledged at lost/0 offset 5 is in no log" in answers["V1"].examples
    assert "risen/0 offset 0 (log 100 of b/b1)" in answers["V2"].examples[0]
    assert answers["V3"].examples[0].startswith("2 times stored, 1 times sent: double/0 offset 0")
    assert "key early was sent after key late" in answers["V7"].examples[0]
    assert f"(log {missing['physical_offset']}, 100 bytes)" in answers["V8"].examples[0]
    assert "group g passed t/0 offset 2" in answers["V9"].examples[0]
    assert "bad_magic, (log 1000 of b/b1)" in answers["V5"].examples[0]


@pytest.mark.slow
def test_acknowledged_place_in_the_log_is_compared(spark: SparkSession) -> None:
    store = Store()
    for number, at in enumerate((0, None, 999)):
        store.send(f"k{number}", "t")
        store.history[-1]["physical_offset"] = at
    store.send("only", "t")
    store.history[-1] |= {"queue_offset": None, "physical_offset": 5}
    store.send("right", "t")
    store.history[-1] |= {"queue_offset": None, "physical_offset": 4 * SIZE}
    answers = run(spark, store)
    assert answers["V11"].count == 2
    expected = (
        "key k2, acknowledged at t/0 offset 2 (log 999), is at t/0 offset 2 (log 200 of b/b1)"
    )
    assert expected in answers["V11"].examples


@pytest.mark.parametrize("kind", ["SEND", "sent"])
def test_row_of_another_kind_is_not_skipped(spark: SparkSession, kind: str) -> None:
    store = Store()
    store.send("a", "t")
    store.tell("lost", "t", 0, 5, kind=kind)
    with pytest.raises(BadHistory, match="1 rows of the history have a kind that is none of send"):
        check_history(tables(spark, store)[1])


def test_parts_missing_in_a_history_are_reported(spark: SparkSession) -> None:
    """The checks held, and nothing said that they had looked at nothing."""
    store = Store()
    history = tables(spark, store)[1]
    (note,) = unseen(history, check_history(history), ("t",))
    assert note.startswith("the history has neither sends nor reads")
    store.send("a", "t")
    store.got("a", "t", 0, 100)
    history = tables(spark, store)[1]
    (note,) = unseen(history, check_history(history), ("t", "NoSuch"))
    assert note == "the history has no read of topic NoSuch: its order was not checked"
    assert unseen(history, check_history(history), ()) == []


def test_replicas_are_compared_by_their_blocks(spark: SparkSession) -> None:
    rows = [
        ("b", replica, offset, 10, 7 if (replica, offset) == ("b3", 20) else offset)
        for replica in ("b1", "b2", "b3")
        for offset in (0, 10, 20)
    ]
    unequal = unequal_blocks(spark.createDataFrame(rows, BLOCKS_DDL), {"b": "b1"})
    assert [(one.replica, one.first, one.last, one.blocks) for one in unequal] == [
        ("b3", 20, 30, 1)
    ]
    assert diverged(unequal, {}, ()).count == 1
    assert diverged(unequal, {"b3": 25}, ()).count == 1
    assert diverged(unequal, {"b3": 20}, ()).allowed == 1
    assert diverged(unequal, {}, ("b3",)).allowed == 1
    assert diverged([], {}, ()).verdict == "ok"
