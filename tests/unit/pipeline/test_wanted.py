"""Options that say which records are wanted leave the rows that a filter afterwards leaves."""

from typing import Any

import pytest

from rocketbed.pipeline.schema import CORRUPT, RECORDS
from tests.support.logs import STORE_MS, Log, messages, rows

COLUMNS = [name for name in RECORDS if name != CORRUPT]
COUNT = 50
HARMED = 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    damaged_log = Log(tmp_path_factory.mktemp("log") / "store").append(messages(COUNT))
    damaged_log.write(damaged_log.offsets[HARMED], bytes(damaged_log.sizes[HARMED]))
    return damaged_log


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
        actual_rows = rows(log.root, COLUMNS, splitBytes=size, **options)
        assert actual_rows == [row for row in rows(log.root, COLUMNS) if condition(row)]
        assert actual_rows
