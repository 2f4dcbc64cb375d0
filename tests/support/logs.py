"""Logs made to measure for the tests of the data source, and its rows as dictionaries."""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocketbed.inspect.record import crc_digits
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import RECORDS, VIEWS, arrow_schema

SEGMENT = 4096
STORE_MS = 1_795_000_000_000
IPV4 = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
IPV6 = bytes(15) + b"\x01" + struct.pack(">i", 10911)
V1, V2 = 0xDAA320A7, 0xDAA320AB
BLANK = 0xCBD43194
INNER, ZLIB = 0x80, 0x301
"""Bits of SYSFLAG: a record of several messages; one whose body is packed."""
UNIT = struct.Struct(">qiq")


@dataclass(frozen=True)
class Message:
    """A message to be stored."""

    topic: str = "T"
    body: bytes = b"hello"
    properties: str = ""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    is_wide: bool = False
    has_crc: bool = False
    store_ms: int = STORE_MS
    latency_ms: int = 5
    raw_topic: bytes | None = None
    raw_properties: bytes | None = None

    def encode(self, offset: int, queue_offset: int) -> bytes:
        """The record as a broker writes it at an offset."""
        born = IPV6 if self.sys_flag & 0x10 else IPV4
        store = IPV6 if self.sys_flag & 0x20 else IPV4
        topic = self.topic.encode() if self.raw_topic is None else self.raw_topic
        properties = self.raw_properties
        if properties is None:
            properties = self.properties.encode()
        length = len(properties) + 20 * self.has_crc
        tail = struct.pack(">h" if self.is_wide else ">b", len(topic)) + topic
        tail += struct.pack(">h", length) + properties
        size = 88 + len(born) + len(store) - 16 + len(self.body) + len(tail) + 20 * self.has_crc
        crc = zlib.crc32(self.body) & 0x7FFFFFFF
        head = struct.pack(
            ">iIiiiqqiq",
            size,
            V2 if self.is_wide else V1,
            crc,
            self.queue_id,
            self.flag,
            queue_offset,
            offset,
            self.sys_flag,
            self.store_ms - self.latency_ms,
        )
        head += born + struct.pack(">q", self.store_ms) + store
        record = head + struct.pack(">iqi", 2, 7, len(self.body)) + self.body + tail
        if self.has_crc:
            record += b"__CRC32#\x01" + crc_digits(zlib.crc32(record)) + b"\x02"
        return record


@dataclass
class Log:
    """A store directory being written; `offsets` are those of its records."""

    root: Path
    segment: int = SEGMENT
    first: int = 0
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    end: int = 0
    has_queues: bool = True

    def __post_init__(self) -> None:
        self.end = self.end or self.first
        (self.root / "commitlog").mkdir(parents=True, exist_ok=True)

    def append(self, messages: Sequence[Message]) -> "Log":
        """Write messages, with fillers and consume queues as a broker does."""
        following: dict[tuple[str, int], int] = {}
        for message in messages:
            key = message.topic, message.queue_id
            number = following.get(key, 0)
            size = len(message.encode(0, number))
            room = self.segment - self.end % self.segment
            if size + 8 > room:
                self.write(self.end, struct.pack(">iI", room, BLANK))
                self.end += room
            self.write(self.end, message.encode(self.end, number))
            if self.has_queues and message.raw_topic is None:
                self._unit(key, number, self.end, size)
            self.offsets.append(self.end)
            self.sizes.append(size)
            self.end += size
            following[key] = number + 1
        return self

    def write(self, offset: int, data: bytes) -> None:
        """Bytes at a physical offset; the file is made at its full length."""
        path = self.path(offset)
        if not path.exists():
            path.write_bytes(b"")
            os.truncate(path, self.segment)
        with open(path, "r+b") as file:
            file.seek(offset % self.segment)
            file.write(data)

    def close(self, store_ms: int = STORE_MS + 10**6) -> "Log":
        """Leave the store as a closed broker does: no `abort`, and on disk everything that was
        stored up to a time."""
        (self.root / "checkpoint").write_bytes(struct.pack(">q", store_ms) + bytes(4088))
        return self

    def path(self, offset: int) -> Path:
        """The file that holds an offset."""
        return self.root / "commitlog" / f"{offset - offset % self.segment:020d}"

    def flip(self, offset: int) -> None:
        """Change one byte."""
        with open(self.path(offset), "r+b") as file:
            file.seek(offset % self.segment)
            (old,) = file.read(1)
            file.seek(offset % self.segment)
            file.write(bytes([old ^ 0x55]))

    def _unit(self, key: tuple[str, int], number: int, offset: int, size: int) -> None:
        directory = self.root / "consumequeue" / key[0] / str(key[1])
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{0:020d}"
        if not path.exists():
            path.write_bytes(bytes(UNIT.size * 1000))
        with open(path, "r+b") as file:
            file.seek(number * UNIT.size)
            file.write(UNIT.pack(offset, size, 0))


def packed(*messages: tuple[bytes, int, str]) -> bytes:
    """Bodies, flags and property strings as a producer packs them."""
    data = b""
    for body, flag, properties in messages:
        text = properties.encode()
        total = 22 + len(body) + len(text)
        data += struct.pack(">iiIii", total, 0, zlib.crc32(body) & 0x7FFFFFFF, flag, len(body))
        data += body + struct.pack(">h", len(text)) + text
    return data


THREE = packed(
    (b"one", 1, "UNIQ_KEY\x01a\x02TAGS\x01red\x02"),
    (b"", 2, "UNIQ_KEY\x01b\x02KEYS\x01k1  k2\x02"),
    (b"three", 3, ""),
)
"""The body of a record that holds three messages."""


def messages(count: int, **fields: Any) -> list[Message]:
    """Messages of several topics, with lengths from 0 to some hundred bytes."""
    return [
        Message(
            **{
                "topic": f"topic-{number % 3}",
                "body": b"%d" % number * (number * 7 % 60),
                "properties": f"KEYS\x01k{number}\x02TAGS\x01t{number % 4}\x02",
                "queue_id": number % 2,
                "store_ms": STORE_MS + number * 1000,
                **fields,
            }
        )
        for number in range(count)
    ]


def rows(
    root: Path | str, columns: Sequence[str] | None = None, **options: object
) -> list[dict[str, Any]]:
    """Return all rows of a view (default: every column of `records`)."""
    return [row for batch in batches_of(root, columns, **options) for row in batch]


def batches_of(
    root: Path | str, columns: Sequence[str] | None = None, **options: object
) -> Iterator[list[dict[str, Any]]]:
    """Rows by batch."""
    texts = {name: str(value) for name, value in options.items()}
    parsed = Options.parse({"path": str(root), **texts})
    plan = Plan.of(parsed)
    names = columns or list(RECORDS if parsed.view == "records" else VIEWS[parsed.view])
    schema = arrow_schema(parsed.view, names, parsed.corrupt_column)
    for part in plan.splits():
        for batch in plan.read(part, schema):
            assert batch.schema.equals(schema)
            batch.validate(full=True)
            yield batch.to_pylist()


def reasons(rows_read: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """Offset and reason of each corrupt row."""
    return [
        (row["_corrupt"]["offset"], row["_corrupt"]["reason"])
        for row in rows_read
        if row["_corrupt"]
    ]


def healthy(tmp_path: Path) -> Log:
    """A store of 60 messages, whose table has one topic of another name."""
    log = Log(tmp_path / "store").append(messages(60))
    (log.root / "config").mkdir()
    (log.root / "config" / "topics.json").write_text('{"topicConfigTable":{"Only":{}}}')
    return log


def same(rows_read: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what says where they were read."""
    return [row | {"replica": "", "broker": "", "path": ""} for row in rows_read]
