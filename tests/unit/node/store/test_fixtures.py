"""The store on a real broker's directories: what it recovers is what that broker answered."""

import base64
import hashlib
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.inspect.bodies import unpack_body
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.scan import RecordScanner
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import (
    COMPRESSED,
    INNER_BATCH,
    decode_message,
    decode_messages,
    pack_host,
)
from rocketbed.world.real import real_world
from tests.support.paths import FIXTURES

NAMES = ("clean", "killed")


def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (FIXTURES / f"rocketmq-store-{name}.manifest.json").read_text()
    )
    return loaded


def unpack(name: str, directory: Path) -> StoreConfig:
    with tarfile.open(FIXTURES / f"rocketmq-store-{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return StoreConfig(
        root=str(directory / "store"),
        segment_size=1 << 20,
        queue_segment_size=1280,
        batch_queue_segment_size=2944,
        index_slots=100,
        index_entries=400,
    )


async def check_queues(store: MessageStore, about: dict[str, Any]) -> int:
    """Minimum and maximum of every queue."""
    for row in about["queues"]:
        bounds = (
            store.queue_min(row["topic"], row["queueId"]),
            store.queue_max(row["topic"], row["queueId"]),
        )
        assert bounds == (row["minOffset"], row["maxOffset"]), row
    return len(about["queues"])


async def check_keys(store: MessageStore, about: dict[str, Any]) -> int:
    """Answers to queries by key."""
    for row in about["keyQueries"]:
        answer = await store.query(row["topic"], row["key"], row["maxNum"], 0, 1 << 62)
        ids = [decode_message(record).offset_message_id for record in answer.records]
        assert ids == row["offsetMsgIds"], row["key"]
    return len(about["keyQueries"])


async def check_stored(store: MessageStore, about: dict[str, Any]) -> int:
    """Every message that the broker gave back, pulled by queue and offset."""
    for row in about["stored"]:
        result = store.get_messages(row["topic"], row["queueId"], row["queueOffset"], 1)
        record = decode_messages(await store.read(result.ranges))[0]
        assert record.physical_offset == row["commitLogOffset"]
        assert (record.store_timestamp, record.born_timestamp) == (
            row["storeTimestamp"],
            row["bornTimestamp"],
        )
        if record.sys_flag & INNER_BATCH:
            continue
        assert record.queue_offset == row["queueOffset"]
        assert record.sys_flag & ~COMPRESSED == row["sysFlag"] & ~COMPRESSED
        body = unpack_body(record.body, record.sys_flag)
        assert body is not None
        assert hashlib.sha256(body).hexdigest() == row["bodySha256"]
        if "bodyBase64" in row:
            assert body == base64.b64decode(row["bodyBase64"])
    return len(about["stored"])


@pytest.mark.parametrize("name", NAMES)
async def test_real_brokers_directory_is_taken_over(name: str, tmp_path: Path) -> None:
    about = manifest(name)
    config = unpack(name, tmp_path)
    checks = 0
    for start in range(3):
        store = await MessageStore.open(real_world("test"), config)
        assert store.recovery.took_over is (start == 0)
        assert store.recovery.cut_bytes == 0
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            checks += await check_queues(store, about)
            checks += await check_keys(store, about)
            checks += await check_stored(store, about)
            await store.close()
    assert checks == 3 * (len(about["queues"]) + len(about["keyQueries"]) + len(about["stored"]))


@pytest.mark.parametrize("name", NAMES)
async def test_our_encoder_writes_the_real_brokers_log(name: str, tmp_path: Path) -> None:
    """Each record put again with its own times and hosts: the same bytes, rolls included."""
    theirs = unpack(name, tmp_path)
    segments = sorted((Path(theirs.root) / "commitlog").iterdir())
    log = b"".join(path.read_bytes() for path in segments)
    store = await MessageStore.open(
        real_world("test"), replace(theirs, root=str(tmp_path / "ours"), dirty_max=1 << 30)
    )
    scanner = RecordScanner(check_crc=True, delays_ms=[1000])
    count = 0
    for start in range(0, len(log), theirs.segment_size):
        segment = log[start : start + theirs.segment_size]
        scanned = scanner.scan(segment, start, segment_end=start + theirs.segment_size)
        for entry in scanned.entries:
            put_again(store, log[entry.physical_offset :][: entry.size])
            count += 1
    end = store.max_offset
    ours = b"".join(
        store.log.segments.read(start, theirs.segment_size) for start in store.log.segments.starts
    )
    assert count > 200
    assert ours[:end] == log[:end]
    assert not log[end:].strip(b"\0")
    await store.close()


def put_again(store: MessageStore, record: bytes) -> None:
    """Put a stored record as it was put the first time."""
    message = decode_message(record)
    run = store.begin()
    run.now_ms = message.store_timestamp
    run._store_host = pack_host(*message.store_host)
    key = (message.topic, message.queue_id)
    store.log.tail.next_queue_offsets[key] = message.queue_offset
    placed, _ = run.add(
        message.topic,
        message.queue_id,
        message.body,
        message.properties_text.encode(),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_ms=message.born_timestamp,
        born_host=pack_host(*message.born_host),
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_transaction_offset,
    )
    assert placed == message.physical_offset
    store.commit(run)
