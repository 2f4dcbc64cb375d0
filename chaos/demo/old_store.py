"""A demo that begins with a user's data: a copy of a store directory becomes the master's.

Before the start the independent reader reads every record of the copy's log; when the cluster
serves, each of them has to come back through the client, at its place and with its bytes.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rocketbed.chaos.evidence.workload import body_crc
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Received
from rocketbed.client.pulls import PullStatus
from rocketbed.inspect import Fault, NotAStore, Record, Scanned, StoreDirectory, open_directory
from rocketbed.inspect.bodies import unpack_body, unpack_inner_batch
from rocketbed.inspect.record import SYS_INNER_BATCH
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import World

QueueName = tuple[str, int]


class DemoError(Exception):
    """Obstacle to the demo; the message names it."""


@dataclass(frozen=True, slots=True)
class OldMessage:
    """Message that was stored before the trial."""

    physical: int
    size: int
    body_crc: int
    """CRC of the uncompressed body."""
    properties: dict[str, str]


@dataclass(slots=True)
class OldStore:
    """Contents of a directory before the trial, and what the trial made of them."""

    source: Path
    settings: dict[str, str]
    """File lengths, by RocketMQ's names; every node of the cluster needs the same."""
    queues: dict[QueueName, dict[int, OldMessage]] = field(default_factory=dict)
    """Queue -> queue offset -> message."""
    log_end: int = 0
    topics: set[str] = field(default_factory=set)
    """All topics that the directory knows or has messages of."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Topic -> records of deleted topics, which a broker does not serve any more."""
    served: dict[str, int] = field(default_factory=dict)
    """Occasion -> number of messages that came back unchanged."""
    findings: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(map(len, self.queues.values()))


def read_old_store(source: Path) -> OldStore:
    """Read a directory. Raises `DemoError` if it is not a store, or a broker runs on it."""
    try:
        directory = open_directory(source)
    except NotAStore as exc:
        raise DemoError(f"--store {source}: {exc}") from exc
    try:
        holder = directory.lock_holder()
        if holder is not None:
            raise DemoError(
                f"--store {source}: process {holder} has it open; stop that broker, or pass a copy"
            )
        old = OldStore(source, settings_of(directory))
        topics = directory.topics()
        old.topics.update(topics or ())
        for record in _records(directory):
            old.topics.add(record.topic)
            if topics is not None and record.topic not in topics:
                old.left_out[record.topic] = old.left_out.get(record.topic, 0) + 1
                continue
            old.log_end = record.offset + record.size
            queue = old.queues.setdefault((record.topic, record.queue_id), {})
            queue.update(_messages_of(record))
    finally:
        directory.close()
    if not old.messages:
        raise DemoError(f"--store {source}: it contains no messages")
    return old


def _messages_of(record: Record) -> Iterator[tuple[int, OldMessage]]:
    """Yield queue offset and message: of a record, or of each message of an inner batch."""
    body = unpack_body(record.body, record.sys_flag)
    parts = [(0, record.body if body is None else body, record.properties)]
    is_batch = record.sys_flag & SYS_INNER_BATCH
    if body is not None and is_batch and (items := unpack_inner_batch(body)) is not None:
        parts = [(item.number, item.body, item.properties) for item in items]
    for number, content, properties in parts:
        message = OldMessage(record.offset, record.size, body_crc(content), dict(properties))
        yield record.queue_offset + number, message


def settings_of(directory: StoreDirectory) -> dict[str, str]:
    """Return settings that a node needs for a directory's files."""
    settings = {
        "mappedFileSizeCommitLog": str(directory.sizes.segment),
        "mappedFileSizeConsumeQueue": str(directory.sizes.queue_segment),
        "mapperFileSizeBatchConsumeQueue": str(directory.sizes.batch_queue_segment),
    }
    if directory.index_layout is not None and directory.index_listing.segments:
        settings["maxHashSlotNum"] = str(directory.index_layout.slots)
        settings["maxIndexNum"] = str(directory.index_layout.entries)
    return settings


def copy_store(source: Path, target: Path) -> None:
    """Copy a store; the source is only read. Raises `DemoError`."""
    try:
        shutil.copytree(source, target, symlinks=False, ignore=shutil.ignore_patterns("lock"))
        for path, _, files in os.walk(target):
            for name in files:
                os.chmod(os.path.join(path, name), 0o644)
    except (OSError, shutil.Error) as exc:
        raise DemoError(f"{source} cannot be copied to {target}: {exc}") from exc


async def check_served(
    world: World, nameservers: str, broker: str, old: OldStore, when: str
) -> int:
    """Pull every queue of the old messages and compare. Return how many are unchanged.

    `when` names the occasion. Number and findings go into `old`.
    """
    served = 0
    async with Consumer(world, nameservers=nameservers, group="demo-old-reader") as consumer:
        for name, messages in sorted(old.queues.items()):
            queue = MessageQueue(topic=name[0], broker_name=broker, queue_id=name[1])
            try:
                received = await _pull(consumer, queue)
            except (ClientError, RemotingError) as exc:
                old.findings.append(f"{when}, {name[0]}/{name[1]}: {exc}")
                continue
            for offset, message in messages.items():
                difference = _difference(message, received.get(offset, []))
                if difference:
                    place = f"{name[0]}/{name[1]} offset {offset}"
                    old.findings.append(f"{when}, {place}: {difference}")
                else:
                    served += 1
    old.served[when] = served
    return served


async def _pull(consumer: Consumer, queue: MessageQueue) -> dict[int, list[Received]]:
    """Return all messages of a queue by their offset."""
    messages: dict[int, list[Received]] = defaultdict(list)
    offset = await consumer.offsets.min_offset(queue)
    while True:
        pulled = await consumer.pull(queue, offset)
        for message in pulled.messages:
            messages[message.queue_offset].append(message)
        if pulled.status is PullStatus.NO_NEW or pulled.next_offset <= offset:
            return messages
        offset = pulled.next_offset


def _difference(old: OldMessage, received: list[Received]) -> str:
    """Return how the messages at an old message's offset differ from it; empty if they do not."""
    if len(received) != 1:
        return f"it was delivered {len(received)} times"
    message = received[0]
    if (message.physical_offset, message.size) != (old.physical, old.size):
        return f"log {old.physical} was expected, it came from {message.physical_offset}"
    if body_crc(message.body) != old.body_crc:
        return "its body differs"
    if dict(message.properties) != old.properties:
        return f"its properties are {dict(message.properties)}, in the file {old.properties}"
    return ""


def _records(directory: StoreDirectory) -> Iterator[Record]:
    for item in directory.log.scan():
        if isinstance(item, Scanned):
            record = directory.log.record_at(item.offset, item.size)
            if not isinstance(record, Fault):
                yield record
