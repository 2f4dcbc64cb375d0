"""Filters: those that are taken give the rows that Spark's own filter would have left."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from rocketbed.pipeline.files.decode import Wanted
from rocketbed.pipeline.files.pushdown import push
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import CORRUPT, RECORDS, arrow_schema
from tests.support.logs import STORE_MS, Log, messages, rows

COLUMNS = [name for name in RECORDS if name != CORRUPT]
COUNT = 50
HARMED = 20
T = datetime.fromtimestamp(STORE_MS / 1000 + 20, UTC)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    made = Log(tmp_path_factory.mktemp("log") / "store").append(messages(COUNT))
    made.write(made.offsets[HARMED], bytes(made.sizes[HARMED]))
    return made


def read(log: Log, filters: Sequence[Filter]) -> tuple[list[dict[str, Any]], list[Filter]]:
    plan = Plan.of(Options.parse({"path": str(log.root), "splitBytes": "1500"}))
    wanted, rest = push(plan.wanted, filters)
    plan = replace(plan, wanted=wanted)
    schema = arrow_schema("records", list(RECORDS))
    found = [row for s in plan.splits() for b in plan.read(s, schema) for row in b.to_pylist()]
    return found, rest


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(condition, IsNotNull):
        return value is not None
    if isinstance(condition, EqualNullSafe):
        return bool(value == condition.value)
    if value is None:
        return False
    if isinstance(condition, In):
        return value in [each for each in condition.value if each is not None]
    given: Any = condition.value  # type: ignore[attr-defined]
    if isinstance(condition, EqualTo):
        return bool(value == given)
    if isinstance(condition, GreaterThan):
        return bool(value > given)
    if isinstance(condition, GreaterThanOrEqual):
        return bool(value >= given)
    if isinstance(condition, LessThan):
        return bool(value < given)
    assert isinstance(condition, LessThanOrEqual)
    return bool(value <= given)


TAKEN: list[list[Filter]] = [
    [EqualTo(("topic",), "topic-1")],
    [EqualNullSafe(("topic",), "topic-2")],
    [In(("topic",), ("topic-1", "nothing", None))],
    [In(("topic",), ("topic-0", "topic-1")), EqualTo(("topic",), "topic-1")],
    [EqualTo(("topic",), "nothing")],
    [EqualTo(("queue_id",), 1)],
    [IsNotNull(("physical_offset",)), GreaterThan(("physical_offset",), 3000)],
    [GreaterThanOrEqual(("physical_offset",), 0), LessThan(("physical_offset",), 5000)],
    [LessThanOrEqual(("physical_offset",), 4096), LessThan(("physical_offset",), 9000)],
    [GreaterThan(("physical_offset",), -5), LessThanOrEqual(("physical_offset",), -1)],
    [EqualTo(("physical_offset",), 0)],
    [EqualTo(("physical_offset",), 1)],
    [GreaterThan(("store_timestamp",), T)],
    [GreaterThanOrEqual(("store_timestamp",), T), LessThan(("store_timestamp",), T)],
    [LessThanOrEqual(("store_timestamp",), T)],
    [LessThan(("store_timestamp",), T)],
    [GreaterThan(("store_timestamp",), T + timedelta(microseconds=1))],
    [LessThanOrEqual(("store_timestamp",), T + timedelta(microseconds=1))],
    [EqualTo(("topic",), "topic-0"), EqualTo(("queue_id",), 0), LessThan(("store_timestamp",), T)],
]


@pytest.mark.parametrize("filters", TAKEN, ids=str)
def test_taken_filters_leave_what_a_filter_afterwards_leaves(
    log: Log, filters: list[Filter]
) -> None:
    found, rest = read(log, filters)
    assert rest == []
    assert found == [row for row in rows(log.root) if all(holds(each, row) for each in filters)]


@pytest.mark.parametrize(
    "condition",
    [
        Not(EqualTo(("topic",), "topic-1")),
        StringContains(("topic",), "1"),
        EqualTo(("topic", "inner"), "topic-1"),
        EqualTo(("topic",), None),
        IsNull(("topic",)),
        IsNotNull(("topic",)),
        EqualTo(("queue_offset",), 1),
        GreaterThan(("queue_id",), 1),
        GreaterThan(("store_timestamp",), None),
        EqualTo(("store_timestamp",), T),
    ],
    ids=str,
)
def test_other_filters_are_given_back(log: Log, condition: Filter) -> None:
    wanted, rest = push(Wanted(), [condition, EqualTo(("queue_id",), 1)])
    assert rest == [condition]
    assert rest[0] is condition
    assert wanted == Wanted(queue_ids=frozenset((1,)))


def test_options_and_filters_narrow_together(log: Log) -> None:
    wanted, _ = push(Wanted(topics=frozenset(("a", "b"))), [In(("topic",), ("b", "c"))])
    assert wanted.topics == frozenset("b")


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"topics": "topic-0,topic-2"}, lambda row: row["topic"] in ("topic-0", "topic-2")),
        ({"startOffset": 700}, lambda row: row["physical_offset"] >= 700),
        ({"endOffset": 4500}, lambda row: row["physical_offset"] < 4500),
        (
            {"startTimestamp": STORE_MS + 7000, "endTimestamp": STORE_MS + 30_000},
            lambda row: (
                row["store_timestamp"] is not None
                and 7 <= row["store_timestamp"].timestamp() - STORE_MS / 1000 < 30
            ),
        ),
    ],
)
def test_options_leave_the_same(log: Log, options: dict[str, Any], condition: Any) -> None:
    for size in (400, 1 << 20):
        found = rows(log.root, COLUMNS, splitBytes=size, **options)
        assert found == [row for row in rows(log.root, COLUMNS) if condition(row)]
        assert found
