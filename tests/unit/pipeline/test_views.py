"""Views of the stores that a real RocketMQ left, against the independent reader."""

import hashlib
import zlib
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest

from rocketbed.inspect import LogEnd, Scanned, StoreDirectory, open_directory
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from tests.support.logs import Log, messages, rows
from tests.support.stores import manifest, unpack


@pytest.fixture(scope="module", params=["clean", "killed"])
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


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["topic"], row["queue_id"], row["queue_offset"]


def client_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ours in the words of the manifest."""
    is_packed = row["topic"] == "FxCompressed"
    return {
        "topic": row["topic"],
        "queueId": row["queue_id"],
        "queueOffset": row["queue_offset"],
        "commitLogOffset": row["physical_offset"],
        "storeSize": row["size"],
        "sysFlag": row["sys_flag"] & ~1 if is_packed else row["sys_flag"],
        "flag": row["flag"],
        "bodyCRC": row["body_crc"],
        "bornTimestamp": round(row["born_timestamp"].timestamp() * 1000),
        "storeTimestamp": round(row["store_timestamp"].timestamp() * 1000),
        "reconsumeTimes": row["reconsume_times"],
        "preparedTransactionOffset": row["prepared_transaction_offset"],
        "bodyLength": len(row["body"]),
        "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
        "msgId": row["uniq_key"],
    }


def address(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Java writes a slash before a host and no brackets round it."""
    host, _, port = text.rpartition("/")[2].rpartition(":")
    return ip_address(host.strip("[]")), int(port)


def test_records_are_what_the_real_broker_gave_back(name: str, root: Path) -> None:
    actual = {
        (row["topic"], row["queue_id"], row["queue_offset"]): row
        for row in rows(root)
        if row["topic"] != "FxBatchCQ"
    }
    compared = 0
    for stored in manifest(name)["stored"]:
        if stored["topic"] == "FxBatchCQ":
            continue
        row = actual[stored["topic"], stored["queueId"], stored["queueOffset"]]
        ours = client_row(row)
        if stored["msgId"] == stored["offsetMsgId"]:
            ours["msgId"] = stored["msgId"]
        assert ours == {name: stored[name] for name in ours}
        for ours_name, theirs in (("born_host", "bornHost"), ("store_host", "storeHost")):
            assert address(row[ours_name]) == address(stored[theirs])
        assert row["crc_ok"]
        compared += 1
    assert compared > 200


def test_consume_queues(root: Path, store: StoreDirectory) -> None:
    expected = [
        ("simple", topic, queue_id, unit.slot, unit.offset, unit.size, unit.tag_code, 1)
        for (topic, queue_id), queue in store.queues.items()
        for unit in queue.units()
        if not unit.is_pre_blank
    ] + [
        ("batch", topic, queue_id, unit.base, unit.offset, unit.size, unit.tag_code, unit.messages)
        for (topic, queue_id), batch_queue in store.batch_queues.items()
        for unit in batch_queue.units()
    ]
    for size in ("1k", "64m"):
        actual_rows = rows(root, view="consumequeue", splitBytes=size)
        assert sorted(
            (*key(row), row["physical_offset"], row["size"], row["tag_code"], row["messages"])
            for row in actual_rows
        ) == sorted(expected)
    narrowed = rows(root, view="consumequeue", topics="FxPlain", endOffset=50_000)
    assert rows(root, view="consumequeue", topicsPattern="FxPl.*", endOffset=50_000) == narrowed
    assert narrowed == [
        row for row in actual_rows if row["topic"] == "FxPlain" and row["physical_offset"] < 50_000
    ]
    assert narrowed


def test_index_entries(root: Path, store: StoreDirectory) -> None:
    expected = []
    for file in store.index_files:
        header = file.header()
        for number, entry in enumerate(file.entries(header.next_entry), start=1):
            time_ms = header.begin_ms + entry[2] * 1000
            expected.append((Path(file.file.path).name, number, *entry, time_ms))
    actual_rows = rows(root, view="index", splitBytes="10k")
    assert [
        (
            row["file"],
            row["number"],
            row["key_hash"],
            row["physical_offset"],
            row["seconds"],
            row["previous"],
            round(row["store_timestamp"].timestamp() * 1000),
        )
        for row in actual_rows
    ] == expected
    middle = expected[len(expected) // 2][-1]
    late = rows(root, view="index", startTimestamp=middle)
    assert len(late) == sum(row[-1] >= middle for row in expected)


@pytest.mark.parametrize("split", ["1k", "100k", "64m"])
def test_blocks(root: Path, store: StoreDirectory, split: str) -> None:
    end = next(item.offset for item in store.log.scan() if isinstance(item, LogEnd))
    actual_rows = rows(root, view="blocks", blockBytes="60000", splitBytes=split)
    at = 0
    for row in actual_rows:
        assert row["offset"] == at
        data = store.log.read(at, row["length"])
        assert row["crc32"] == zlib.crc32(data)
        at += row["length"]
        assert at % 60_000 == 0 or at in (1 << 20, end)
    assert at == end


def test_files(root: Path, store: StoreDirectory) -> None:
    scanned = [item for item in store.log.scan() if isinstance(item, Scanned)]
    actual_rows = rows(root, view="files")
    assert [row["segment"] for row in actual_rows] == [0, 1 << 20]
    for row in actual_rows:
        own = [each for each in scanned if each.offset // (1 << 20) == row["segment"] >> 20]
        assert row["records"] == len(own)
        assert row["end"] == own[-1].offset + own[-1].size
        assert row["first_store_timestamp"].timestamp() * 1000 == pytest.approx(own[0].store_ms)
        assert row["last_store_timestamp"].timestamp() * 1000 == pytest.approx(own[-1].store_ms)
        assert (row["malformed"], row["malformed_bytes"], row["resyncs"]) == (0, 0, 0)
        assert row["reasons"] == ""


def test_files_count_what_is_wrong(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append(messages(30))
    log.flip(log.offsets[3] + 90)
    log.flip(log.offsets[5] + 5)
    log.flip(log.offsets[7] + 5)
    (first, *later_files) = rows(log.root, view="files")
    assert first["reasons"] == "bad_magic=2,crc_mismatch=1"
    assert (first["malformed"], first["resyncs"]) == (3, 2)
    assert first["malformed_bytes"] == sum(log.sizes[number] for number in (3, 5, 7))
    assert first["records"] + sum(row["records"] for row in later_files) == 27
    assert rows(log.root, ["reasons"], view="files")[0] == {"reasons": first["reasons"]}


def test_blocks_of_replicas_end_at_the_same_place(tmp_path: Path) -> None:
    long = Log(tmp_path / "long").append(messages(30))
    short = Log(tmp_path / "short").append(messages(20))
    actual_rows = rows(f"b/l={long.root},b/s={short.root}", view="blocks", blockBytes=1000)
    by_replica = {
        name: [(row["offset"], row["crc32"]) for row in actual_rows if row["replica"] == name]
        for name in "ls"
    }
    assert by_replica["l"] == by_replica["s"]
    short.flip(2500)
    changed = rows(f"b/l={long.root},b/s={short.root}", view="blocks", blockBytes=1000)
    different = {row["offset"] for row in changed if row not in actual_rows}
    assert different == {2000}


@pytest.mark.parametrize(
    ("view", "option", "value", "right"),
    [
        ("consumequeue", "startTimestamp", "1", "records or index"),
        ("consumequeue", "readUncommitted", "true", "records or blocks or files"),
        ("blocks", "topics", "a", "records or consumequeue"),
        ("blocks", "MODE", "FAILFAST", "records"),
        ("files", "endTimestamp", "1", "records or index"),
        ("files", "verifyCrc", "false", "records"),
        ("files", "splitBytes", "1m", "records or consumequeue or index or blocks"),
        ("index", "inner", "keep", "records"),
        ("index", "onlyCommitted", "true", "records"),
        ("records", "blockBytes", "1m", "blocks"),
        ("", "blockBytes", "1m", "blocks"),
    ],
)
def test_an_option_that_says_nothing_of_a_view(
    view: str, option: str, value: str, right: str
) -> None:
    options = {"path": "/x", option: value} | ({"view": view} if view else {})
    expected = f"view={view or 'records'} does not support option {option}; it is for view={right}"
    with pytest.raises(OptionError, match=f"(?i)^{expected}$"):
        Options.parse(options)
