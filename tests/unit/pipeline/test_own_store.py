"""The data source on a directory that rocketbed's own store wrote, with its marks."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from rocketbed.inspect import Filter, LogEnd, Scanned, StoreDirectory, messages, open_directory
from rocketbed.pipeline.files.corrupt import RocketbedCorrupt
from rocketbed.pipeline.files.splits import Replica, data_end, durable_offset
from tests.support.logs import reasons, rows
from tests.support.own_store import write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    trio.run(write, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[StoreDirectory]:
    opened = open_directory(root)
    yield opened
    opened.close()


def test_rows_are_what_the_independent_reader_reads(root: Path, store: StoreDirectory) -> None:
    actual_rows = rows(root, inner="keep")
    expected = [message.record for message in messages(store, Filter(scan=True))]
    offsets = list(dict.fromkeys(record.offset for record in expected))
    assert [row["physical_offset"] for row in actual_rows] == offsets
    assert not reasons(actual_rows)
    assert {row["crc_ok"] for row in actual_rows} == {True}
    by_offset = {record.offset: record for record in expected}
    for row in actual_rows:
        record = by_offset[row["physical_offset"]]
        assert row["body"] == record.body
        assert row["properties"] == record.raw_properties.decode()
        assert row["uniq_key"] == record.properties.get("UNIQ_KEY")
    for size in ("1k", "5000"):
        assert rows(root, splitBytes=size, inner="keep") == actual_rows


def test_a_copy_of_a_running_store(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    trio.run(partial(write, tmp_path / "store", copy_to=killed))
    opened = open_directory(killed)
    expected = [item.offset for item in opened.log.scan() if isinstance(item, Scanned)]
    opened.close()
    assert [row["physical_offset"] for row in rows(killed, inner="keep")] == expected
    assert expected


def test_the_mark_bounds_what_may_be_torn(root: Path, store: StoreDirectory) -> None:
    replica = Replica("b", "r", str(root))
    (end,) = (item.offset for item in store.log.scan() if isinstance(item, LogEnd))
    assert store.marks is not None
    assert store.marks.trusted
    assert durable_offset(replica) == store.marks.flushed_offset == data_end(replica) == end
    last = rows(root)[-1]["physical_offset"]
    path = max((root / "commitlog").iterdir())
    with open(path, "r+b") as file:
        file.seek(last - int(path.name) + 60)
        file.write(bytes(end - last - 60))
    assert reasons(rows(root)) == [(last, "torn_tail")]
    with pytest.raises(RocketbedCorrupt, match="torn_tail"):
        rows(root, mode="FAILFAST")
    os.unlink(root / "rocketbed.flushed")
    os.unlink(root / "checkpoint")  # its time may be later than that of the record before
    assert durable_offset(replica) == -1
    assert not reasons(rows(root))
