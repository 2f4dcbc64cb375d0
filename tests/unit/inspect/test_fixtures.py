"""The reader against directories of a real RocketMQ 5.3.3, and what that answered from them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketbed.inspect import (
    Filter,
    Settings,
    Severity,
    StoreDirectory,
    messages,
    open_directory,
    rebuild,
)
from rocketbed.inspect.index import query_offsets
from rocketbed.inspect.query import offset_message_id
from rocketbed.inspect.record import Record
from tests.support.stores import check, files_below, manifest, unpack

NAMES = ("clean", "killed")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def root(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(name, tmp_path_factory.mktemp(name))


@pytest.fixture
def store(root: Path) -> Iterator[StoreDirectory]:
    opened = open_directory(root)
    yield opened
    opened.close()


def as_client_saw(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ours as the Java client shows it: it clears the bit of what it has unpacked."""
    if row["topic"] == "FxCompressed":
        return {**row, "sysFlag": row["sysFlag"] & ~1}
    return row


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


def test_sizes_are_read_off_the_files(store: StoreDirectory, name: str) -> None:
    config = manifest(name)["brokerConfig"]
    assert store.sizes.segment == int(config["mappedFileSizeCommitLog"])
    assert store.sizes.queue_segment == int(config["mappedFileSizeConsumeQueue"])
    assert store.sizes.batch_queue_segment == int(config["mapperFileSizeBatchConsumeQueue"])
    assert store.index_layout is not None
    assert store.index_layout.slots == int(config["maxHashSlotNum"])
    assert store.index_layout.entries == int(config["maxIndexNum"])


def test_the_log_holds_what_the_broker_gave_back(store: StoreDirectory, name: str) -> None:
    read_back = [as_client_saw(m.as_row()) for m in messages(store, Filter(scan=True))]
    expected = manifest(name)["stored"]
    assert sorted(read_back, key=place) == sorted(expected, key=place)


def test_each_queue_gives_its_messages_in_order(store: StoreDirectory, name: str) -> None:
    expected = manifest(name)["stored"]
    queues = sorted({(row["topic"], row["queueId"]) for row in expected})
    assert len(queues) == 26
    for topic, queue_id in queues:
        selection = Filter(topic=topic, queue_id=queue_id)
        read_back = [as_client_saw(m.as_row()) for m in messages(store, selection)]
        rows = [row for row in expected if (row["topic"], row["queueId"]) == (topic, queue_id)]
        assert read_back == sorted(rows, key=place)


def test_bounds_of_each_queue(store: StoreDirectory, name: str) -> None:
    rows = manifest(name)["queues"]
    bounds_read = {key: queue.bounds(store.log.min_offset) for key, queue in store.queues.items()}
    bounds_read |= {
        key: queue.bounds(store.log.min_offset) for key, queue in store.batch_queues.items()
    }
    expected = {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in rows
    }
    assert {key: tuple(bounds) for key, bounds in bounds_read.items()} == expected


def test_key_queries_answer_as_the_broker_did(store: StoreDirectory, name: str) -> None:
    for query in manifest(name)["keyQueries"]:
        offsets = query_offsets(
            store.index_files, query["topic"], query["key"], limit=query["maxNum"]
        )
        records = [store.log.record_at(offset) for offset in sorted(offsets)]
        ids = [offset_message_id(record) for record in records if isinstance(record, Record)]
        assert ids == query["offsetMsgIds"]


def test_messages_by_key(store: StoreDirectory, name: str) -> None:
    """Every message with the key, each once: the broker's answer without limit and repeats."""
    for query in manifest(name)["keyQueries"]:
        messages_read = messages(store, Filter(topic=query["topic"], key=query["key"]))
        ids = [m.as_row()["offsetMsgId"] for m in messages_read]
        assert ids == sorted(set(ids), key=str)
        assert set(query["offsetMsgIds"]) <= set(ids)
        scanned = messages(store, Filter(topic=query["topic"], key=query["key"], scan=True))
        assert ids == [m.as_row()["offsetMsgId"] for m in scanned]


def test_acknowledged_sends_are_there(store: StoreDirectory, name: str) -> None:
    """Every acknowledged send is found at its place, under its own id and with its body."""
    by_place = {place(m.as_row()): m for m in messages(store, Filter(scan=True))}
    examined = 0
    for row in manifest(name)["sent"]:
        # Delayed and transactional sends are acknowledged for a system topic's queue.
        key = row["topic"], row.get("queueId"), row.get("queueOffset")
        if row["kind"].startswith(("delay", "timer", "tx", "oneway")):
            continue
        if "indexInBatch" in row:
            key = (*key[:2], row["batchBaseOffset"] + row["indexInBatch"])
        stored = by_place[key].as_row()
        assert stored["bodySha256"] == row["bodySha256"], row
        assert stored["bodyLength"] == row["bodyLength"]
        if row["kind"] != "batch":
            assert stored["msgId"] == row["msgId"]
        examined += 1
    assert examined > 200


def test_nothing_is_wrong_with_them(root: Path, name: str) -> None:
    report = check(root, settings=None)
    assert report.worst == Severity.NOTE, report.findings
    assert report.records == {"clean": 256, "killed": 669}[name]
    assert [finding.rule for finding in report.findings] == (
        ["abort-file"] if name == "killed" else []
    )


@pytest.mark.parametrize("part", ["consumequeue", "batchconsumequeue"])
def test_rebuilt_queues_are_the_brokers(
    store: StoreDirectory, root: Path, part: str, tmp_path: Path
) -> None:
    rebuild(store, str(tmp_path))
    assert dict(files_below(tmp_path, part)) == dict(files_below(root, part))


def test_rebuilt_index_files_are_the_brokers(
    store: StoreDirectory, root: Path, tmp_path: Path
) -> None:
    """Byte for byte; only names differ, since a broker takes the moment it makes the file."""
    rebuild(store, str(tmp_path))
    rebuilt = sorted(files_below(tmp_path, "index"))
    original = sorted(files_below(root, "index"))
    assert [data for _, data in rebuilt] == [data for _, data in original]
    for (ours, _), (theirs, _) in zip(rebuilt, original, strict=True):
        assert abs(int(ours) - int(theirs)) < 1000


def test_killed_store_is_complete_without_its_queues(name: str, root: Path, tmp_path: Path) -> None:
    """The log alone gives all that the broker had: queues and index are derived."""
    os.symlink(root / "commitlog", tmp_path / "commitlog")
    os.symlink(root / "config", tmp_path / "config")
    config = manifest(name)["brokerConfig"]
    opened = open_directory(tmp_path, Settings.from_properties(config))
    rebuild(opened, str(tmp_path / "out"))
    assert dict(files_below(tmp_path / "out", "consumequeue")) == dict(
        files_below(root, "consumequeue")
    )
    opened.close()
