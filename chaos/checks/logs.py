"""Stores as the independent reader sees them: the writer and the place of each message.

Only messages of the workload's topics are kept (writer, place and checksum, no bodies), so a
cluster that was started on existing data can be checked too. Replicas and images hold mostly the
same bytes, so each record is decoded only once.
"""

import json
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from rocketbed.chaos.checks.deletions import Generations
from rocketbed.chaos.checks.keys import Queues
from rocketbed.chaos.evidence.record import Image
from rocketbed.chaos.evidence.workload import Writer, body_crc, label_crc, tag_crc, writer_of
from rocketbed.inspect import (
    LogEnd,
    Record,
    Report,
    Scanned,
    Settings,
    StoreDirectory,
    check_store,
    open_directory,
)
from rocketbed.inspect.bodies import unpack_body
from rocketbed.wire.properties import split_keys

UNNAMED = -1
"""Value of a message whose body names no writer, or is damaged."""
_NO_WRITER = Writer(UNNAMED, UNNAMED, UNNAMED, UNNAMED)
_DECODED_MAX = 100_000
_EPOCH_TOPIC = b"rmq_sys_rb_epoch"
_Body = tuple[Writer, int, int, int]
"""Writer of a body, and the checksums of the body, of tag and keys, and of the tag."""


@dataclass(slots=True)
class Messages:
    """Messages of one log in log order, column by column."""

    values: "array[int]" = field(default_factory=lambda: array("q"))
    operations: "array[int]" = field(default_factory=lambda: array("q"))
    sequences: "array[int]" = field(default_factory=lambda: array("q"))
    queues: "array[int]" = field(default_factory=lambda: array("q"))
    """Queue numbers of `Queues`."""
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    physicals: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    crcs: "array[int]" = field(default_factory=lambda: array("q"))
    labels: "array[int]" = field(default_factory=lambda: array("q"))
    """Checksums of tags and keys."""
    tags: "array[int]" = field(default_factory=lambda: array("q"))
    """Results of `tag_crc`."""
    store_ms: "array[int]" = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.values)

    def add(
        self, writer: Writer, crc: int, label: int, tag: int, queue: int, entry: Scanned
    ) -> None:
        self.values.append(writer.value)
        self.operations.append(writer.operation)
        self.sequences.append(writer.sequence)
        self.queues.append(queue)
        self.offsets.append(entry.queue_offset)
        self.physicals.append(entry.offset)
        self.sizes.append(entry.size)
        self.crcs.append(crc)
        self.labels.append(label)
        self.tags.append(tag)
        self.store_ms.append(entry.store_ms)


@dataclass
class NodeLog:
    """Log of one node's store, read completely."""

    name: str
    group: int
    directory: StoreDirectory
    messages: Messages
    boundaries: "array[int]"
    """End of each record, ascending."""
    log_min: int
    log_end: int
    markers: list[tuple[int, int]] = field(default_factory=list)
    """Offset and number of each elected leader's epoch, by its marker."""
    image: Image | None = None
    """Set for a store copied in the middle of the run."""

    @property
    def label(self) -> str:
        """Name for sentences: the node's name, with the image's number and cause."""
        if self.image is None:
            return self.name
        return f"{self.name} (image {self.image.number}, {self.image.cause})"

    @property
    def image_record(self) -> Image:
        """The image's entry in the record; only for images."""
        assert self.image is not None
        return self.image

    @cached_property
    def report(self) -> Report:
        """Findings of the independent reader."""
        return check_store(self.directory)

    def floor(self, offset: int) -> int:
        """Return the last record boundary at or below an offset."""
        position = bisect_right(self.boundaries, offset)
        return self.boundaries[position - 1] if position else min(self.log_min, offset)


@dataclass(slots=True)
class LogReader:
    """Reads stores of one run, and caches what it decoded."""

    topics: Mapping[bytes, str]
    queues: Queues
    generations: Generations
    """Distinguishes a deleted topic from a later one of the same name."""
    settings: Settings
    _decoded: dict[bytes, _Body] = field(default_factory=dict)

    def read(self, name: str, group: int, path: str, image: Image | None = None) -> NodeLog:
        """Read one store. Raises `NotAStore`, `OSError`."""
        directory = open_directory(path, self.settings)
        messages = Messages()
        boundaries = array("q")
        markers: list[tuple[int, int]] = []
        end = 0
        numbers: dict[tuple[str, int], int] = {}
        for item in directory.log.scan():
            if isinstance(item, LogEnd):
                end = item.offset
            if not isinstance(item, Scanned):
                continue
            boundaries.append(item.offset + item.size)
            if item.topic == _EPOCH_TOPIC:
                markers += _marker(directory, item)
            topic = self.topics.get(item.topic)
            body = None if topic is None else self._body(directory, item)
            if topic is None or body is None:
                continue
            topic = self.generations.topic_of(topic, group, body[0].value, item.offset)
            number = numbers.get((topic, item.queue_id))
            if number is None:
                number = self.queues.number(group, topic, item.queue_id)
                numbers[topic, item.queue_id] = number
            messages.add(*body, number, item)
        minimum = directory.log.min_offset
        end = max(end, minimum)
        return NodeLog(
            name, group, directory, messages, boundaries, minimum, end, markers, image=image
        )

    def _body(self, directory: StoreDirectory, entry: Scanned) -> _Body | None:
        """Decode a message as its consumer would get it, unpacked."""
        raw = directory.log.read(entry.offset, entry.size)
        decoded_before = self._decoded.get(raw)
        if decoded_before is not None:
            return decoded_before
        record = directory.log.record_at(entry.offset, entry.size)
        if not isinstance(record, Record):
            return None
        body = unpack_body(record.body, record.sys_flag) or b""
        properties = record.properties
        tag = properties.get("TAGS", "")
        label = label_crc(tag, split_keys(properties.get("KEYS")), properties)
        writer = writer_of(body, properties) or _NO_WRITER
        decoded = writer, body_crc(body), label, tag_crc(tag)
        if len(self._decoded) >= _DECODED_MAX:
            self._decoded.clear()
        self._decoded[raw] = decoded
        return decoded


def _marker(directory: StoreDirectory, entry: Scanned) -> list[tuple[int, int]]:
    record = directory.log.record_at(entry.offset, entry.size)
    try:
        content = json.loads(record.body) if isinstance(record, Record) else None
    except ValueError:
        return []
    epoch = content.get("epoch") if isinstance(content, dict) else None
    return [(entry.offset, epoch)] if isinstance(epoch, int) else []


class Place(NamedTuple):
    """Place of a record; the offsets are of its queue and of the log."""

    topic: str
    queue: int
    offset: int
    physical: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue}@{self.offset} (log {self.physical})"


def places_in(directory: StoreDirectory, topics: Iterable[str]) -> dict[int, list[Place]]:
    """Return the places of records of some topics by value, in log order; without unnamed ones."""
    names, places = {topic.encode() for topic in topics}, defaultdict[int, list[Place]](list)
    for item in directory.log.scan():
        if not isinstance(item, Scanned) or item.topic not in names:
            continue
        record = directory.log.record_at(item.offset, item.size)
        if isinstance(record, Record):
            body = unpack_body(record.body, record.sys_flag) or b""
            if writer := writer_of(body, record.properties):
                place = Place(item.topic.decode(), item.queue_id, item.queue_offset, item.offset)
                places[writer.value].append(place)
    return places
