"""A script of store operations for crash-point enumeration, and what must be true after a crash.

The script rolls segments of log, queues and index, puts batches and inner batches, flushes, raises
the mark, cuts the log, deletes a topic and old segments. `Ledger` lives outside the simulated
process: it knows what was written, what was flushed and what was acknowledged when the end came.
"""

from dataclasses import dataclass, field

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.api import World

ROOT = "/store"
BORN_HOST = b"\x7f\0\0\1\0\0\4\xd2"


def config(**changes: object) -> StoreConfig:
    """Small files, so that every kind of file rolls."""
    settings: dict[str, object] = {
        "root": ROOT,
        "segment_size": 2048,
        "queue_segment_size": 160,
        "batch_queue_segment_size": 92,
        "index_slots": 7,
        "index_entries": 24,
        "flush_interval_ms": 50,
        "mark_interval_ms": 10_000_000,
        "clean_interval_ms": 10_000_000,
        "reserved_ms": 0,
        "delete_batch_max": 1,
        "delete_when": (),
    }
    return StoreConfig(**(settings | changes))  # type: ignore[arg-type]


@dataclass
class Ledger:
    """Facts that clients know of one incarnation."""

    log: dict[int, bytes] = field(default_factory=dict)
    """Records that were committed and not cut, by physical offset."""
    pending_records: dict[int, bytes] = field(default_factory=dict)
    """Records of a commit that has not returned."""
    retired: dict[int, bytes] = field(default_factory=dict)
    """Records of deleted segments; a power loss may bring a file's name back."""
    written: int = 0
    """End of what was committed."""
    flushed: int = 0
    """End of what a flush that returned had covered."""
    cutting: int | None = None
    """Target of a cut that has not returned."""
    began: bool = False
    """Whether `open` had returned."""
    closed: bool = False
    """Whether `close` had returned."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Topics whose deletion has begun, with the end of the log then."""
    number: int = 0

    def possible(self) -> dict[int, bytes]:
        """Every record that may be in the log, by physical offset."""
        return self.log | self.pending_records | self.retired


class Driver:
    """Runs the script on an open store."""

    def __init__(self, store: MessageStore, ledger: Ledger) -> None:
        self.store = store
        self.ledger = ledger
        ledger.written = store.max_offset
        ledger.flushed = store.flushed.value
        store.flushed.subscribe(self._on_flushed)

    def _on_flushed(self, end: int) -> None:
        self.ledger.flushed = end

    def put(
        self, topic: str, queue_id: int, *, size: int = 40, key: str = "", tag: str = ""
    ) -> None:
        """Append a message; its body identifies it."""
        run = self.store.begin()
        self._add(run, topic, queue_id, size, key, tag)
        self._commit(run)

    def _add(self, run: Run, topic: str, queue_id: int, size: int, key: str, tag: str) -> None:
        self.ledger.number += 1
        number = self.ledger.number
        unique = f"U{number:05d}"
        properties = f"UNIQ_KEY\x01{unique}\x02"
        keys: tuple[str, ...] = (unique,)
        if key:
            properties += f"KEYS\x01{key}\x02"
            keys += tuple(key.split(" "))
        if tag:
            properties += f"TAGS\x01{tag}\x02"
        run.add(
            topic,
            queue_id,
            f"body {number} ".encode().ljust(size, b"."),
            properties.encode(),
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=BORN_HOST,
            tag=tag or None,
            keys=keys,
        )

    def put_run(self, topic: str, queue_id: int, count: int) -> None:
        """Several messages with one write."""
        run = self.store.begin()
        for _ in range(count):
            self._add(run, topic, queue_id, 60, "", "")
        self._commit(run)

    def put_batch(self, topic: str, queue_id: int, count: int) -> None:
        """A classic batch."""
        run = self.store.begin()
        items = []
        for _ in range(count):
            self.ledger.number += 1
            unique = f"UNIQ_KEY\x01B{self.ledger.number}\x02KEYS\x01batch\x02"
            items.append(BatchItem(b"batched", 0, unique.encode()))
        run.add_batch(topic, queue_id, items, sys_flag=0, born_ms=1, born_host=BORN_HOST)
        self._commit(run)

    def put_inner_batch(self, topic: str, queue_id: int, count: int) -> None:
        """An inner batch: one record, one 46-byte unit."""
        self.ledger.number += 1
        run = self.store.begin()
        unique = f"I{self.ledger.number}"
        run.add_inner_batch(
            topic,
            queue_id,
            b"inner" * count,
            f"UNIQ_KEY\x01{unique}\x02".encode(),
            count=count,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=BORN_HOST,
            unique_key=unique,
        )
        self._commit(run)

    def _commit(self, run: Run) -> None:
        """Before the write returns the records may or may not be there; after it they are."""
        records: dict[int, bytes] = {}
        for offset, pieces in run.chunks:
            chunk = b"".join(pieces)
            for entry in run.entries:
                at = entry.physical_offset - offset
                if 0 <= at < len(chunk):
                    records[entry.physical_offset] = chunk[at : at + entry.size]
        self.ledger.pending_records = records
        self.store.commit(run)
        self.ledger.pending_records = {}
        self.ledger.log.update(records)
        self.ledger.written = run.position

    async def flush(self) -> None:
        """Wait until everything is flushed."""
        await self.store._flusher.flush()

    async def mark(self) -> None:
        """Dispatch everything and raise the durable mark."""
        while self.store._dispatcher.step():
            await trio.lowlevel.checkpoint()
        await self.store._checkpointer.raise_mark()

    async def cut(self, records: int) -> None:
        """Cut the last `records` records."""
        offsets = sorted(self.ledger.log)
        target = offsets[-records]
        self.ledger.cutting = target
        await self.store.removal.cut(target)
        for offset in offsets[-records:]:
            del self.ledger.log[offset]
        self.ledger.written = target
        self.ledger.flushed = min(self.ledger.flushed, target)
        self.ledger.cutting = None

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues."""
        self.ledger.deleted[topic] = self.store.max_offset
        await self.store.removal.delete_topic(topic)

    async def retain(self) -> None:
        """Delete the oldest segment."""
        self.store.delete_expired()
        await self.store._retention.round()
        low = self.store.min_offset
        for at in [at for at in self.ledger.log if at < low]:
            self.ledger.retired[at] = self.ledger.log.pop(at)


async def script(world: World, ledger: Ledger, settings: StoreConfig) -> None:
    """Fifty operations, then a clean stop."""
    store = await MessageStore.open(world, settings)
    ledger.began = True
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        d = Driver(store, ledger)
        d.put("A", 0, key="k1", tag="TagA")
        d.put("A", 1, key="k1 k2")
        await d.flush()
        d.put_run("A", 0, 3)
        d.put("B", 0, size=400)
        await d.mark()
        d.put("B", 1, key="k3")
        d.put_batch("B", 0, 3)
        await d.flush()
        d.put("A", 0, size=700)
        d.put("A", 1, size=500, tag="TagB")
        await trio.sleep(0.06)
        d.put_inner_batch("C", 0, 4)
        d.put("A", 0)
        await d.mark()
        d.put("D", 0)
        d.put_run("D", 0, 2)
        await d.flush()
        d.put("A", 1, key="k1")
        d.put_inner_batch("C", 0, 2)
        await d.cut(2)
        d.put("A", 1, key="after-cut")
        d.put("A", 0, size=900)
        await d.mark()
        d.put_run("B", 1, 4)
        await d.delete_topic("D")
        d.put("D", 0)
        await d.flush()
        d.put("A", 2, size=300)
        await d.mark()
        await d.cut(1)
        d.put("A", 2, size=310)
        d.put_batch("A", 2, 2)
        await trio.sleep(0.06)
        await d.mark()
        await d.retain()
        d.put("B", 0, key="k1")
        d.put_inner_batch("C", 1, 3)
        d.put("A", 0, size=1200)
        await d.flush()
        await d.mark()
        await d.retain()
        d.put_run("A", 1, 2)
        d.put("A", 0)
        await store.close()
        ledger.closed = True


async def recover(world: World, settings: StoreConfig) -> dict[str, object]:
    """Open the store, look at it, and leave it as a kill would."""
    store = await MessageStore.open(world, settings)
    log = store.log
    return {
        "report": store.recovery,
        "min": store.min_offset,
        "end": store.max_offset,
        "log": b"".join(
            log.segments.read(start, log.segment_size) for start in log.segments.starts
        ),
    }


def derived(image: DiskImage) -> dict[str, bytes]:
    """Queue files by path, and the contents of index files in order."""
    files = {
        path: image.contents(path)
        for path in image.paths()
        if path.startswith((f"{ROOT}/consumequeue/", f"{ROOT}/batchconsumequeue/"))
    }
    names = [path for path in image.paths() if path.startswith(f"{ROOT}/index/")]
    for number, path in enumerate(sorted(names)):
        files[f"index {number}"] = image.contents(path)
    return files
