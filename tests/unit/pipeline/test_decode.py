"""Columns of every kind of record, against the independent reader."""

import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from rocketbed.inspect import Record, open_directory
from rocketbed.pipeline.files import decode
from rocketbed.pipeline.schema import DEFAULT_COLUMNS, RECORDS
from tests.support.logs import Log, Message, batches_of, messages, reasons, rows

KINDS = [
    Message(),
    Message(is_wide=True, topic="w" * 200),
    Message(sys_flag=0x10),
    Message(sys_flag=0x20),
    Message(sys_flag=0x30, body=b""),
    Message(has_crc=True, properties="TAGS\x01a\x02"),
    Message(topic="名前", properties="KEYS\x01鍵 κ\x02", flag=-3),
    Message(has_crc=True, is_wide=True, sys_flag=0x30),
    Message(body=bytes(range(256)) * 3, queue_id=7),
]


def host(raw: bytes) -> str:
    return "127.0.0.1:10911" if len(raw) == 8 else "[::1]:10911"


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def expected(record: Record) -> dict[str, Any]:
    keys = record.properties.get("KEYS")
    return {
        "broker": "store",
        "replica": "store",
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.offset,
        "size": record.size,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": moment(record.born_ms),
        "born_host": host(record.born_host),
        "store_timestamp": moment(record.store_ms),
        "store_host": host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_offset,
        "body_crc": record.body_crc,
        "crc_ok": True,
        "tags": record.properties.get("TAGS"),
        "keys": None if keys is None else keys.split(),
        "uniq_key": record.properties.get("UNIQ_KEY"),
        "properties": record.raw_properties.decode(),
        "headers": list(record.properties.items()),
        "body": record.body,
        "body_length": len(record.body),
        "segment": record.offset - record.offset % 4096,
        "_corrupt": None,
    }


def store(tmp_path: Path, content: Sequence[Message], **how: Any) -> Log:
    return Log(tmp_path / "store", **how).append(content)


def records(log: Log) -> list[Record]:
    opened = open_directory(log.root)
    read_back = [opened.log.record_at(offset) for offset in log.offsets]
    opened.close()
    return [record for record in read_back if isinstance(record, Record)]


def test_every_kind_of_record_field_by_field(tmp_path: Path) -> None:
    chance = random.Random(1)
    log = store(tmp_path, [chance.choice(KINDS) for _ in range(100)] + KINDS)
    assert rows(log.root) == [expected(record) for record in records(log)]
    assert rows(log.root, batchRows=7) == rows(log.root)


def test_any_columns_in_any_order(tmp_path: Path) -> None:
    log = store(tmp_path, KINDS)
    full = rows(log.root)
    chance = random.Random(2)
    for _ in range(30):
        names = chance.sample(list(RECORDS), chance.randint(1, len(RECORDS)))
        actual_rows = rows(log.root, names)
        assert [list(row) for row in actual_rows] == [names] * len(full)
        assert actual_rows == [{name: row[name] for name in names} for row in full]


def test_columns_by_names_schema_or_default(tmp_path: Path) -> None:
    from rocketbed.pipeline.files.paths import parse_paths
    from rocketbed.pipeline.files.splits import plan_splits
    from rocketbed.pipeline.options import Options

    log = store(tmp_path, messages(5))
    (split,) = plan_splits(parse_paths(str(log.root)), end=log.end)
    by_default = list(decode.batches(split, None, Options()))
    assert tuple(by_default[0].schema.names) == DEFAULT_COLUMNS
    (named,) = decode.batches(split, ["topic"], Options())
    assert named.schema.equals(pyarrow.schema([("topic", pyarrow.string())]))
    (same_batch,) = decode.batches(split, named.schema, Options())
    assert same_batch.equals(named)


def test_single_host_among_many(tmp_path: Path) -> None:
    log = store(tmp_path, messages(3))
    log.write(log.offsets[1] + 48, bytes([10, 0, 255, 1]) + struct.pack(">i", 65535))
    assert [row["born_host"] for row in rows(log.root, ["born_host"])] == [
        "127.0.0.1:10911",
        "10.0.255.1:65535",
        "127.0.0.1:10911",
    ]


def test_a_time_that_no_calendar_has_is_null(tmp_path: Path) -> None:
    log = store(tmp_path, messages(3))
    for number, ms in enumerate(((1 << 63) - 1, -(1 << 63))):
        log.write(log.offsets[number] + 40, struct.pack(">q", ms))
    times = [row["born_timestamp"] for row in rows(log.root, ["born_timestamp"])]
    assert times[:2] == [None, None]
    assert times[2] is not None


def packed(kind: str, body: bytes) -> tuple[bytes, int]:
    if kind == "zlib":
        return zlib.compress(body), 0x001
    if kind == "zlib by number":
        return zlib.compress(body), 0x301
    codec, flag = {"lz4": ("lz4", 0x101), "zstd": ("zstd", 0x201)}[kind]
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes(), flag


@pytest.mark.parametrize("kind", ["zlib", "zlib by number", "lz4", "zstd"])
def test_packed_bodies_come_unpacked(tmp_path: Path, kind: str) -> None:
    body, flag = packed(kind, b"a long body " * 500)
    log = store(tmp_path, [Message(), Message(body=body, sys_flag=flag), Message(body=b"")])
    actual_rows = rows(log.root)
    assert [row["body"] for row in actual_rows] == [b"hello", b"a long body " * 500, b""]
    assert actual_rows[1]["body_length"] == len(body)
    stored = rows(log.root, ["body"], decompress="false")
    assert stored[1]["body"] == body


def test_a_body_that_does_not_unpack(tmp_path: Path) -> None:
    contents = [Message(), Message(body=b"no such thing", sys_flag=0x201), Message()]
    log = store(tmp_path, contents)
    actual_rows = rows(log.root)
    assert actual_rows[1]["body"] is None
    assert reasons(actual_rows) == [(log.offsets[1], "bad_body")]
    assert len(rows(log.root, mode="DROPMALFORMED")) == 2
    assert not reasons(rows(log.root, decompress="false"))


def test_batches_end_where_bodies_grow_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "BODIES_MAX", 3000)
    body = zlib.compress(b"x" * 1000)
    log = store(tmp_path, [Message(body=body, sys_flag=1)] * 8 + [Message()] * 3)
    batches_read = list(batches_of(log.root, ["body", "physical_offset"]))
    assert [len(batch) for batch in batches_read] == [3, 3, 5]
    assert [row["physical_offset"] for batch in batches_read for row in batch] == log.offsets


@pytest.mark.parametrize(
    ("properties", "tags", "keys", "uniq_key"),
    [
        ("", None, None, None),
        ("TAGS\x01a\x02", "a", None, None),
        ("TAGS\x01a", "a", None, None),
        ("XTAGS\x01a\x02", None, None, None),
        ("X\x01TAGS\x02", None, None, None),
        ("X\x01y\x02TAGS\x01a\x02Z\x01q", "a", None, None),
        ("KEYS\x01a b  c \x02", None, ["a", "b", "c"], None),
        ("KEYS\x01 \x02", None, [], None),
        ("UNIQ_KEY\x01one\x02WAIT\x01true\x02UNIQ_KEY\x01two\x02", None, None, "two"),
        ("UNIQ_KEY\x01one\x02UNIQ_KEY\x01two\x02UNIQ_KEY\x01three", None, None, "three"),
        ("UNIQ_KEY\x01one\x02UNIQ_KEY\x01\x02", None, None, "one"),
        ("TAGS\x01a\x01b\x02", "a\x01b", None, None),
    ],
)
def test_properties_that_are_columns(
    tmp_path: Path, properties: str, tags: str | None, keys: list[str] | None, uniq_key: str | None
) -> None:
    neighbours = messages(3)
    log = store(tmp_path, [*neighbours, Message(properties=properties), *neighbours])
    actual_rows = rows(log.root, ["tags", "keys", "uniq_key", "headers"])
    headers = dict(actual_rows[3].pop("headers"))
    assert actual_rows[3] == {"tags": tags, "keys": keys, "uniq_key": uniq_key}
    assert (headers.get("TAGS"), headers.get("UNIQ_KEY")) == (tags, uniq_key)
    assert [row["tags"] for row in actual_rows] == ["t0", "t1", "t2", tags, "t0", "t1", "t2"]


WITHOUT_PANDAS = """
import sys
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.schema import arrow_schema, default_columns

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "pyspark"):
            raise ModuleNotFoundError(name)

def count(columns, **options):
    view = options.get("view", "records")
    plan = Plan.of(Options.parse({"path": sys.argv[1], **options}))
    schema = arrow_schema(view, columns or default_columns(view))
    return sum(batch.num_rows for part in plan.splits() for batch in plan.read(part, schema))

print(count(sys.argv[2].split()), count(["topic"], topics="topic-0"))
assert "pandas" not in sys.modules and "pyspark" not in sys.modules
sys.meta_path.insert(0, Absent())
print(count(["_corrupt"]), count([], view="consumequeue"), count([], view="files"))
"""


def test_neither_pandas_nor_spark_is_needed(tmp_path: Path) -> None:
    """Importing pandas costs every worker more than reading a segment."""
    log = store(tmp_path, messages(12))
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(log.root), " ".join(RECORDS)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout.split(), run.stderr) == (["12", "4", "12", "12", "1"], "")


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    assert rows(Log(tmp_path / "store").root) == []
    log = store(tmp_path, [])
    log.write(0, b"")
    assert rows(log.root) == []


def test_a_record_longer_than_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rocketbed.pipeline.files.segments.Segment.__init__.__kwdefaults__", {"window": 500}
    )
    contents = [Message(body=b"x" * n) for n in (5, 3000, 7, 499, 400, 0)]
    log = store(tmp_path, contents)
    assert [row["body"] for row in rows(log.root)] == [message.body for message in contents]
