"""Opening a store in simulation for one test: `session(work, image=...)` runs `work(store)`.

The work sees an open store with its tasks running; whatever it returns is the run's value. The
store is left as a kill would leave it, unless the work closes it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.parts import TopicSource
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import StoredMessage, decode_messages
from rocketbed.world.api import World

ROOT = "/store"
HOST = b"\x7f\0\0\1\0\0\4\xd2"
Work = Callable[[MessageStore], Awaitable[Any]]


def settings(**changes: Any) -> StoreConfig:
    """A store with 4 KiB segments whose timers are far away."""
    values: dict[str, Any] = {
        "root": ROOT,
        "segment_size": 4096,
        "queue_segment_size": 200,
        "index_slots": 10,
        "index_entries": 50,
        "mark_interval_ms": 10_000_000,
        "clean_interval_ms": 10_000_000,
        "delete_when": (),
    }
    return StoreConfig(**(values | changes))


async def _main(world: World, config: StoreConfig, work: Work, topics: TopicSource | None) -> Any:
    store = await MessageStore.open(world, config, topics)
    result: Any = None
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        result = await work(store)
        nursery.cancel_scope.cancel()
    return result


def session(
    work: Work,
    *,
    config: StoreConfig | None = None,
    image: DiskImage | None = None,
    topics: TopicSource | None = None,
    boots: int = 1,
    prepare: Callable[[SimDisk], None] | None = None,
    **crash: Any,
) -> SoloRun:
    """Run `work` on a store; `boots=2` after a power cut."""
    return run_solo(
        _main,
        config or settings(),
        work,
        topics,
        image=image,
        boots=boots,
        prepare=prepare,
        **crash,
    )


def put(
    store: MessageStore,
    topic: str = "T",
    queue_id: int = 0,
    *,
    body: bytes = b"body",
    properties: str = "",
    tag: str | None = None,
    keys: tuple[str, ...] = (),
) -> tuple[int, int]:
    """Put one message; its physical and queue offset."""
    text = properties
    if keys:
        text += f"UNIQ_KEY\x01{keys[0]}\x02"
    if keys[1:]:
        text += f"KEYS\x01{' '.join(keys[1:])}\x02"
    if tag:
        text += f"TAGS\x01{tag}\x02"
    run = store.begin()
    placed = run.add(
        topic, queue_id, body, text.encode(), flag=0, sys_flag=0, born_ms=1, born_host=HOST,
        tag=tag, keys=keys,
    )  # fmt: skip
    store.commit(run)
    return placed


async def settle(store: MessageStore) -> None:
    """Flush and dispatch everything, and raise the mark."""
    await store._flusher.flush()
    while store._dispatcher.step():
        await trio.lowlevel.checkpoint()
    await store._checkpointer.raise_mark()


def pull(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """Read all messages of a queue, from its minimum on."""
    messages: list[StoredMessage] = []
    offset = store.queue_min(topic, queue_id)
    while offset < store.queue_max(topic, queue_id):
        result = store.get_messages(topic, queue_id, offset, 32)
        messages += decode_messages(store.read_cached(result.ranges) or b"")
        assert result.next_offset > offset
        offset = result.next_offset
    return messages


def edited(image: DiskImage, change: Callable[[SimDisk], None]) -> DiskImage:
    """An image after somebody's hand was in it."""
    disk = SimDisk(image)
    change(disk)
    return disk.image()


def flip_bit(disk: SimDisk, path: str, bit: int) -> None:
    """Damage one bit of a file behind everyone's back."""
    data = bytearray(disk.contents(path))
    data[bit // 8] ^= 1 << bit % 8
    disk.replace_contents(path, bytes(data))
