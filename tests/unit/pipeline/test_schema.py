"""Tables and their types: the same for Spark's DDL and for Arrow."""

import pyarrow
import pytest

from rocketbed.pipeline.schema import (
    DEFAULT_COLUMNS,
    DERIVED,
    RECORDS,
    VIEWS,
    SchemaError,
    arrow_schema,
    records_ddl,
    view_ddl,
)


def test_default_columns_leave_out_what_is_costly() -> None:
    assert set(RECORDS) - set(DEFAULT_COLUMNS) == {*DERIVED, "_corrupt", "segment"}
    assert records_ddl() == records_ddl(DEFAULT_COLUMNS)


def test_columns_keep_the_requested_order() -> None:
    assert records_ddl(["body", "topic"]) == "`body` binary, `topic` string"
    assert arrow_schema("records", ["body", "topic"]).types == [pyarrow.binary(), pyarrow.string()]


def test_time_does_not_depend_on_the_session() -> None:
    """With `spark.sql.timestampType=TIMESTAMP_NTZ` a bare `timestamp` is another type."""
    assert records_ddl(["store_timestamp"]) == "`store_timestamp` timestamp_ltz"


def test_the_corrupt_column_can_have_another_name() -> None:
    assert records_ddl(["bad"], "bad").startswith("`bad` struct<")
    with pytest.raises(SchemaError, match="no column _corrupt"):
        records_ddl(["_corrupt"], "bad")


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_has_a_type_and_a_description(view: str) -> None:
    assert len(arrow_schema(view, list(VIEWS[view]))) == len(VIEWS[view])
    assert all(field.meaning for field in VIEWS[view].values())
    assert view_ddl(view)


def test_unknown_column_is_named_with_the_valid_ones() -> None:
    with pytest.raises(SchemaError, match=r"no column tpoic; it has: broker, replica, topic"):
        arrow_schema("records", ["topic", "tpoic"])


def test_a_column_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="duplicate column"):
        arrow_schema("records", ["topic", "topic"])


def test_columns_are_found_in_any_case() -> None:
    assert view_ddl("records", ["TOPIC", "Body_Length"]) == "`TOPIC` string, `Body_Length` int"
    with pytest.raises(SchemaError, match="duplicate column"):
        view_ddl("records", ["topic", "Topic"])
    with pytest.raises(SchemaError, match="no column is asked for; the view index has: broker"):
        view_ddl("index", [])
