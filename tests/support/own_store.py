"""A store directory that rocketbed's own store fills: plain, batch and inner-batch messages."""

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import trio

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.parts import AllTopics
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.real import real_world

BORN = bytes([127, 0, 0, 1]) + struct.pack(">i", 5000)
COUNT = 200


class Topics(AllTopics):
    """A topic table with one batch topic."""

    def exists(self, topic: str) -> bool | None:
        return True

    def is_batch_queue(self, topic: str) -> bool:
        return topic == "Inner"


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=str(root),
        segment_size=16384,
        queue_segment_size=200,
        batch_queue_segment_size=460,
        index_slots=50,
        index_entries=100,
        append_property_crc=True,
        mark_interval_ms=20,
    )


def properties_of(number: int) -> tuple[bytes, str, tuple[str, ...]]:
    unique, key, tag = f"7F000001{number:024X}", f"key{number}", f"tag{number % 5}"
    text = f"UNIQ_KEY\x01{unique}\x02KEYS\x01{key} all\x02TAGS\x01{tag}\x02"
    return text.encode(), tag, (unique, key, "all")


def add(run: Run, number: int) -> None:
    properties, tag, keys = properties_of(number)
    run.add(
        f"Topic{number % 3}",
        number % 4,
        b"body %d" % number * (number % 20),
        properties,
        flag=number,
        sys_flag=0,
        born_ms=1000 + number,
        born_host=BORN if number % 7 else bytes(15) + b"\1" + struct.pack(">i", 5000),
        tag=tag,
        keys=keys,
    )


def inner_body(count: int) -> bytes:
    items = [struct.pack(">5i", 25, 0, 0, 0, 3) + b"abc" + struct.pack(">h", 0)] * count
    return b"".join(items)


async def fill(store: MessageStore) -> None:
    for first in range(0, COUNT, 10):
        run = store.begin()
        for number in range(first, first + 10):
            add(run, number)
        items = [
            BatchItem(b"item %d" % number, 0, properties_of(1000 + first + number)[0])
            for number in range(3)
        ]
        run.add_batch("Batch", 0, items, sys_flag=0, born_ms=1, born_host=BORN)
        store.commit(run)
        run = store.begin()
        run.add_inner_batch(
            "Inner",
            0,
            inner_body(4),
            b"UNIQ_KEY\x01inner%d\x02" % first,
            count=4,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=BORN,
            unique_key=f"inner{first}",
        )
        store.commit(run)
        await trio.lowlevel.checkpoint()
    await store.dispatched.wait_above(store.max_offset - 1)


async def write(root: Path, *, copy_to: Path | None = None, indexed: bool = True) -> None:
    """A store that is filled, once more, and closed; `copy_to` gets a copy from before that."""
    settings = replace(config(root), index_enabled=indexed)
    store = await MessageStore.open(real_world("test"), settings, Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await fill(store)
        if copy_to is not None:
            shutil.copytree(root, copy_to)
        await store.close()
