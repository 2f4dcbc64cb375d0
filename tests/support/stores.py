"""Store directories for tests: the two of a real broker, and small ones made to measure."""

import json
import os
import shutil
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rocketbed.inspect import Report, Settings, Severity, check_store, open_directory, rebuild
from tests.support.paths import FIXTURES

SEGMENT = 4096
QUEUE_SEGMENT = 200
"""Ten units."""
LAYOUT = {"maxHashSlotNum": "10", "maxIndexNum": "20"}
SETTINGS = Settings.from_properties(
    {
        "mappedFileSizeCommitLog": str(SEGMENT),
        "mappedFileSizeConsumeQueue": str(QUEUE_SEGMENT),
        **LAYOUT,
    }
)
HOST = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
STORE_MS = 1_700_000_000_000


@cache
def manifest(name: str) -> dict[str, Any]:
    """The manifest of a fixture, `clean` or `killed`."""
    text = (FIXTURES / f"rocketmq-store-{name}.manifest.json").read_text()
    value: dict[str, Any] = json.loads(text)
    return value


def unpack(name: str, into: Path) -> Path:
    """A fixture's store directory, without its large timer files."""
    with tarfile.open(FIXTURES / f"rocketmq-store-{name}.tar.gz") as archive:
        members = [member for member in archive if not member.name.startswith("store/timer")]
        archive.extractall(into, members=members, filter="data")
    return into / "store"


@dataclass(frozen=True)
class Spec:
    """A message to be stored."""

    topic: str = "T"
    queue_id: int = 0
    body: bytes = b"hello"
    properties: tuple[tuple[str, str], ...] = ()
    sys_flag: int = 0
    queue_offset: int | None = None
    """None: the next one of its queue."""
    store_ms: int | None = None


def encode(spec: Spec, *, offset: int, queue_offset: int, store_ms: int) -> bytes:
    """A record as a broker writes it (store.md 2.1), version 1, IPv4."""
    topic = spec.topic.encode()
    properties = "".join(f"{name}\x01{value}\x02" for name, value in spec.properties).encode()
    crc = zlib.crc32(spec.body) & 0x7FFFFFFF if spec.body else 0
    size = 91 + len(spec.body) + len(topic) + len(properties)
    magic = 0xDAA320A7 - (1 << 32)
    head = struct.pack(
        ">5i2qiq", size, magic, crc, spec.queue_id, 0, queue_offset, offset, spec.sys_flag, store_ms
    )
    tail = struct.pack(">q8siqi", store_ms, HOST, 0, 0, len(spec.body)) + spec.body
    tail += struct.pack(">b", len(topic)) + topic + struct.pack(">h", len(properties)) + properties
    return head + HOST + tail


def write_log(
    root: Path, specs: Sequence[Spec], *, first: int = 0, segment: int = SEGMENT
) -> list[int]:
    """Write a log that begins at `first`; offsets of its records."""
    offsets: list[int] = []
    following: dict[tuple[str, int], int] = {}
    segments: dict[int, bytearray] = {}
    position = first
    for number, spec in enumerate(specs):
        queue = spec.topic, spec.queue_id
        offset = spec.queue_offset
        queue_offset = following.get(queue, 0) if offset is None else offset
        store_ms = STORE_MS + 1000 * number if spec.store_ms is None else spec.store_ms
        start = position - position % segment
        size = len(encode(spec, offset=0, queue_offset=0, store_ms=0))
        if position - start + size + 8 > segment:
            room = segment - (position - start)
            blank = struct.pack(">iI", room, 0xCBD43194)
            segments[start][position - start : position - start + 8] = blank
            position = start = start + segment
        data = encode(spec, offset=position, queue_offset=queue_offset, store_ms=store_ms)
        buffer = segments.setdefault(start, bytearray(segment))
        buffer[position - start : position - start + size] = data
        offsets.append(position)
        position += size
        if spec.sys_flag & 0xC not in (0x4, 0xC):
            following[queue] = queue_offset + 1
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    for start, buffer in segments.items():
        (root / "commitlog" / f"{start:020d}").write_bytes(buffer)
    return offsets


def build(root: Path, specs: Sequence[Spec], *, first: int = 0, clean: bool = True) -> list[int]:
    """A whole store: log, queues, index, checkpoint, and `abort` unless it was stopped cleanly."""
    offsets = write_log(root, specs, first=first)
    opened = open_directory(root, SETTINGS)
    rebuild(opened, str(root))
    opened.close()
    last_ms = max(
        STORE_MS + 1000 * number if spec.store_ms is None else spec.store_ms
        for number, spec in enumerate(specs)
    )
    marks = struct.pack(">6q", last_ms, last_ms, 0, 0, offsets[-1], 0)
    (root / "checkpoint").write_bytes(marks.ljust(4096, b"\0"))
    if not clean:
        (root / "abort").write_text("4711")
    return offsets


def some(count: int, **fields: Any) -> list[Spec]:
    """Messages of one topic with tags and keys."""
    return [
        replace(
            Spec(**fields),
            body=b"body %d" % number,
            properties=(
                ("UNIQ_KEY", f"7F00000100002A9F0000000000{number:06X}"),
                ("KEYS", f"k{number} all"),
                ("TAGS", f"tag{number % 3}"),
            ),
        )
        for number in range(count)
    ]


def check(root: Path, settings: Settings | None = SETTINGS) -> Report:
    """The check of a directory."""
    opened = open_directory(root, settings)
    try:
        return check_store(opened)
    finally:
        opened.close()


def broken(report: Report) -> set[str]:
    """Rules that are broken: findings above a note."""
    return {finding.rule for finding in report.findings if finding.severity}


def only(report: Report, rule: str, severity: Severity = Severity.DAMAGE) -> str:
    """The text of the one rule that is broken."""
    assert broken(report) == {rule}, report.findings
    assert report.worst == severity, report.findings
    return next(finding.text for finding in report.findings if finding.rule == rule)


def queue_file(root: Path, number: int = 0) -> Path:
    """A segment of the queue T/0."""
    return root / "consumequeue" / "T" / "0" / f"{number * QUEUE_SEGMENT:020d}"


def index_file(root: Path, number: int = 0) -> Path:
    """An index file, counted by age."""
    return sorted((root / "index").iterdir())[number]


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write into a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    data = path.read_bytes()
    overwrite(path, position, bytes([data[position] ^ mask]))


def segment_of(root: Path, offset: int, segment: int = SEGMENT) -> tuple[Path, int]:
    """The log file that holds an offset, and the position in it."""
    start = offset - offset % segment
    return root / "commitlog" / f"{start:020d}", offset - start


def files_below(root: Path, part: str) -> Iterator[tuple[str, bytes]]:
    """Names (below the part) and contents of all files of a part of a store."""
    for base, _, names in os.walk(root / part):
        for name in sorted(names):
            path = Path(base, name)
            yield str(path.relative_to(root / part)), path.read_bytes()


def copy(root: Path, to: Path) -> Path:
    """A copy of a directory."""
    shutil.copytree(root, to)
    return to
