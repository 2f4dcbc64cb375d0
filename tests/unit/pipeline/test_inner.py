"""Records of batch queues: a row for each of their messages, unless the record is asked for."""

import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from rocketbed.pipeline.files.corrupt import RocketbedCorrupt
from rocketbed.pipeline.schema import RECORDS
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkError, SinkOptions
from rocketbed.pipeline.sink.rows import Outgoing, cells_of, outgoing
from tests.support.logs import INNER, THREE, ZLIB, Log, Message, packed, rows

PROPERTIES = "UNIQ_KEY\x01whole\x02INNER_NUM\x013\x02"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store").append(
        [
            Message(body=b"before", properties="TAGS\x01t\x02"),
            Message(body=THREE, sys_flag=INNER, properties=PROPERTIES),
            Message(body=zlib.compress(THREE), sys_flag=INNER | ZLIB, properties=PROPERTIES),
            Message(body=b"behind"),
        ]
    )


def read(log: Log, **options: str) -> list[dict[str, Any]]:
    return rows(log.root, **options)


def written(row: dict[str, Any]) -> list[Outgoing]:
    """Return what the writer makes of a row. Raises `SinkError`."""
    batch = pyarrow.RecordBatch.from_pylist([row])
    key = TaskKey(job="job", batch=0, partition=0)
    options = SinkOptions(endpoints="h:1", topic="T")
    return list(outgoing(cells_of(batch), first_row=0, key=key, options=options))


def test_each_inner_message_is_a_row_of_its_own(log: Log) -> None:
    actual_rows = read(log)
    assert [row["body"] for row in actual_rows] == [
        b"before",
        b"one",
        b"",
        b"three",
        b"one",
        b"",
        b"three",
        b"behind",
    ]
    first, second, third = actual_rows[1:4]
    assert [row["queue_offset"] for row in (first, second, third)] == [1, 2, 3]
    assert [row["flag"] for row in (first, second, third)] == [1, 2, 3]
    assert [row["tags"] for row in (first, second, third)] == ["red", None, None]
    assert [row["keys"] for row in (first, second, third)] == [None, ["k1", "k2"], None]
    assert [row["uniq_key"] for row in (first, second, third)] == ["a", "b", None]
    assert [row["body_length"] for row in (first, second, third)] == [3, 0, 5]
    assert first["properties"] == "UNIQ_KEY\x01a\x02TAGS\x01red\x02"
    assert first["body_crc"] == zlib.crc32(b"one") & 0x7FFFFFFF
    assert {row["sys_flag"] for row in actual_rows} == {0}
    assert [row["physical_offset"] for row in actual_rows[1:4]] == [log.offsets[1]] * 3
    assert sum(row["size"] or 0 for row in actual_rows) == sum(log.sizes)


def test_inner_keep_gives_one_row_for_a_record(log: Log) -> None:
    actual_rows = read(log, inner="keep")
    assert [row["queue_offset"] for row in actual_rows] == [0, 1, 2, 3]
    assert [row["body"] for row in actual_rows] == [b"before", THREE, THREE, b"behind"]
    assert actual_rows[1]["properties"] == PROPERTIES
    packed_one = read(log, decompress="false")[4]
    assert packed_one["body"] == zlib.compress(THREE)


@pytest.mark.parametrize("columns", [["topic"], ["queue_offset", "tags"], list(RECORDS)])
def test_any_columns_will_do(log: Log, columns: list[str]) -> None:
    assert len(rows(log.root, columns)) == 8


@pytest.mark.parametrize("flag", [INNER, INNER | ZLIB])
def test_batch_with_a_wrong_count_is_corrupt(tmp_path: Path, flag: int) -> None:
    body = zlib.compress(THREE) if flag & ZLIB else THREE
    log = Log(tmp_path / "store").append(
        [
            Message(
                body=body, sys_flag=flag, properties=PROPERTIES.replace("\x013\x02", "\x012\x02")
            ),
            Message(body=body, sys_flag=flag, properties=PROPERTIES),
        ]
    )
    actual_rows = read(log)
    assert [row["_corrupt"] and row["_corrupt"]["reason"] for row in actual_rows] == [
        "bad_properties",
        None,
        None,
        None,
    ]
    with pytest.raises(RocketbedCorrupt):
        read(log, mode="FAILFAST")


def test_a_batch_that_cannot_be_unpacked_is_corrupt(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append(
        [
            Message(body=THREE[:-3], sys_flag=INNER),
            Message(body=b"no zlib", sys_flag=INNER | ZLIB),
            Message(body=b"", sys_flag=INNER),
            Message(body=THREE, sys_flag=INNER),
        ]
    )
    actual_rows = read(log)
    assert [row["_corrupt"] and row["_corrupt"]["reason"] for row in actual_rows] == [
        "bad_body",
        "bad_body",
        "bad_body",
        None,
        None,
        None,
    ]
    assert [row["body"] for row in actual_rows] == [None, None, None, b"one", b"", b"three"]
    assert [row["body"] for row in read(log, mode="DROPMALFORMED")] == [b"one", b"", b"three"]
    with pytest.raises(RocketbedCorrupt, match="bad_body"):
        read(log, mode="FAILFAST")


DAMAGES: dict[str, tuple[bytes, int, dict[str, Any]]] = {
    "of the record": (THREE, 90, {}),
    "of the record, packed": (zlib.compress(THREE), 90, {}),
    "of the properties": (THREE, 0, {"raw_properties": b"TAGS\x01\xff\x02"}),
    "of a message": (THREE.replace(b"three", b"thr33"), 0, {}),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("columns", [["topic"], ["tags"], ["body"], ["_corrupt"], list(RECORDS)])
def test_damaged_batch_is_one_row_for_any_columns(
    tmp_path: Path, damage: str, columns: list[str]
) -> None:
    body, at, fields = DAMAGES[damage]
    flags = INNER | ZLIB if body[:1] == b"x" else INNER
    log = Log(tmp_path / "store").append(
        [
            Message(body=body, sys_flag=flags, **fields),
            Message(body=THREE, sys_flag=INNER, properties=PROPERTIES),
        ]
    )
    if at:
        log.flip(at + body.index(b"one") if flags == INNER else at + len(body) - 5)
    actual_rows = rows(log.root, columns)
    assert len(actual_rows) == 4
    if "_corrupt" in columns:
        reason = "bad_properties" if fields else "crc_mismatch"
        assert [row["_corrupt"] and row["_corrupt"]["reason"] for row in actual_rows] == [
            reason,
            None,
            None,
            None,
        ]
    if "body" in columns:
        assert [row["body"] for row in actual_rows] == [None, b"one", b"", b"three"]
        kept_body = rows(log.root, columns, inner="keep")[0]["body"]
        # One that cannot be unpacked never had one.
        assert kept_body is not None or flags & ZLIB
        with pytest.raises(SinkError, match=r"is null, .* damaged record: leave the row out"):
            written({"body": actual_rows[0]["body"]})
    if at or "message" in damage:
        assert len(rows(log.root, columns, verifyCrc=False)) == (4 if flags & 1 else 6)


def test_a_messages_checksum_may_be_left_out(tmp_path: Path) -> None:
    """RocketMQ's own producer leaves it out."""
    body = struct.pack(">iiIii", 27, 0, 0, 0, 3) + b"one" + struct.pack(">h", 2) + b"A\x01"
    log = Log(tmp_path / "store").append([Message(body=body, sys_flag=INNER)])
    (row,) = read(log)
    assert (row["body"], row["crc_ok"]) == (b"one", True)


def test_properties_of_a_message_are_unchanged(tmp_path: Path) -> None:
    stored = "KEYS\x01a\x02bare\x02EMPTY\x01\x02TAGS\x01x\x02TAGS\x01y"
    log = Log(tmp_path / "store").append(
        [Message(body=packed((b"one", 0, stored)), sys_flag=INNER)]
    )
    (row,) = read(log)
    assert (row["properties"], row["tags"]) == (stored, "y")


@pytest.mark.parametrize("changes", [{"properties": PROPERTIES}, {"Sys_Flag": INNER | 1}])
def test_record_with_several_messages_is_not_written_as_one(changes: dict[str, Any]) -> None:
    with pytest.raises(SinkError, match=r"inner=unpack.* leave out rows without a body"):
        written({"body": THREE} | changes)
