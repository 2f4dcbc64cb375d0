"""A life of a store beside a model: drawn writes, cuts, deletions and expiry, all compared.

Small files, so that every kind of file rolls; plain and batch topics, with and without tags, keys
and IPv6 hosts. `lives` strings lives together, `at_rest` changes the disk in between.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

import trio

from rocketbed.node.store.aside import CUT_DIR
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.files import file_size
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.api import World
from tests.model.answers import ask
from tests.model.model import Model, Put
from tests.model.store_settings import (
    BATCHES,
    FEW_DESCRIPTORS,
    FLUSHED_S,
    HOST,
    MARKED_S,
    RESERVED_MS,
    ROOT,
    Topics,
    settings,
)

__all__ = ["BATCHES", "HOST", "ROOT", "Life", "Topics", "ensure_closed", "settings"]
HOSTS: Final = (HOST, bytes(15) + b"\1\0\0\x2a\x9f")
"""An IPv4 and an IPv6 host."""
FOREIGN_CRC: Final = b"__CRC32#\x01123\x02"
"""A property that only the store writes."""
TAGS: Final = ("", "red", "violet")
EXPIRED_S: Final = 12.0
"""Longer than the twenty rounds of an order to delete expired files."""


class Life:
    """A process that has the store open and does drawn work."""

    def __init__(self, model: Model, random: Random, steps: int, *, power: bool) -> None:
        self.model, self._random, self._steps = model, random, steps
        self._power = power
        """True if a power cut ended the life before."""
        self.wrong: AssertionError | None = None
        self.own = ""
        """Further properties of every message."""
        self._number = 0

    async def main(self, world: World, config: StoreConfig, *, stops: bool) -> None:
        model = self.model
        was_closed = model.closed
        if self._random.random() < 0.5:
            world.process.descriptors = FEW_DESCRIPTORS
        store = await MessageStore.open(world, config, Topics())
        try:
            self.check_start(store, was_closed=was_closed)
            model.opened = True
            store.flushed.subscribe(self.flushed_to)
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                await self._work(store)
                if stops and self.wrong is None:
                    await store.close()
                    model.closed = True
                nursery.cancel_scope.cancel()
            if model.closed:
                ensure_closed(world)
        except AssertionError as exc:
            self.wrong = exc

    async def fill(self, world: World, config: StoreConfig, *, count: int, **options: bool) -> None:
        """Open the store, write, and end as a kill does."""
        await self.filled(await MessageStore.open(world, config, Topics()), count, **options)

    async def filled(
        self, store: MessageStore, count: int, *, mixed: bool = False, is_flushed: bool = True
    ) -> None:
        """Write to plain topics or to all kinds, and wait until that is synced."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                for _ in range(count):
                    await (self.put_any(store) if mixed else self._put_some(store))
                if is_flushed:
                    await trio.sleep(2 * FLUSHED_S)
                nursery.cancel_scope.cancel()
            if is_flushed:
                self._ensure_flushed(store, store.max_offset)
        except AssertionError as exc:
            self.wrong = exc

    def flushed_to(self, end: int) -> None:
        self.model.flushed = end

    def check_start(self, store: MessageStore, *, was_closed: bool | None) -> None:
        """Compare what a start recovered with the model."""
        log, report = store.log, store.recovery
        starts = log.segments.starts
        data = b"".join(log.segments.read(start, log.segment_size) for start in starts)
        self.model.recovered(store.min_offset, store.max_offset, data, power=self._power)
        if was_closed is not None:
            assert report.was_clean == was_closed, f"start: clean: {report.was_clean}"
        if was_closed:
            assert not report.findings, f"start: after a clean stop: {report.findings}"

    async def _work(self, store: MessageStore) -> None:
        try:
            await self._ask(store)
            with trio.fail_after(600):
                await store.scrubber.finished.wait()
            damage = [*store.scrubber.damage, *store.scrubber.unqueued, store.scrubber.index_damage]
            assert not any(damage), f"scrub: an undamaged disk: {damage}"
            for _ in range(self._steps):
                await self._step(store)
            await self._ask(store)
        except AssertionError as exc:
            self.wrong = exc

    async def _step(self, store: MessageStore) -> None:
        acts: dict[Callable[[MessageStore], Any], int] = {
            self._put_some: 10, self._put_batch: 3, self._put_inner: 3, self._pause: 3,
            self._cut: 1, self.delete: 1, self._expire: 1, self._ask: 1,
        }  # fmt: skip
        await self._random.choices(list(acts), list(acts.values()))[0](store)

    # --- writes

    async def put_any(self, store: MessageStore) -> None:
        """Write a message or batch of any kind. Raises `PutFailed`."""
        await self._random.choice((self._put_some, self._put_batch, self._put_inner))(store)

    def put_in(self, store: MessageStore, topic: str, queue: int) -> None:
        self.put(store, replace(self._message(topic), queue=queue))

    def put_one(self, store: MessageStore, topic: str) -> None:
        self.put(store, self._message(topic))

    def put(self, store: MessageStore, put: Put) -> None:
        run = store.begin()
        self._add(run, put)
        self._commit(store, run, [put])

    def _message(self, topic: str) -> Put:
        random = self._random
        self._number += 1
        unique = f"U{self._number}-{random.getrandbits(32)}"
        keys = (unique, *random.sample(("k1", "k2", "k3"), random.choice((0, 0, 1, 2))))
        tag = random.choice(TAGS)
        text = f"UNIQ_KEY\x01{unique}\x02" + self.own
        text += f"KEYS\x01{' '.join(keys[1:])}\x02" if keys[1:] else ""
        text += f"TAGS\x01{tag}\x02" if tag else ""
        body = f"body {unique} ".encode() + bytes(random.choice((5, 40, 300, 700)))
        return Put(topic, random.randrange(2), body, text.encode(), keys, tag)

    async def _put_some(self, store: MessageStore) -> None:
        run, puts = store.begin(), []
        for _ in range(self._random.choice((1, 1, 3, 8))):
            puts.append(self._message(self._random.choice("AABD")))
            self._add(run, puts[-1])
        self._commit(store, run, puts)
        await trio.sleep(self._random.choice((0, 0.001, 1.5)))

    def _add(self, run: Run, put: Put) -> None:
        foreign = ((b"", b""), (b"", FOREIGN_CRC), (FOREIGN_CRC, FOREIGN_CRC))
        before, after = self._random.choice(foreign)
        run.add(
            put.topic, put.queue, put.body, before + put.properties + after, flag=0, sys_flag=0,
            born_ms=1, born_host=self._host(), tag=put.tag or None, keys=put.keys,
        )  # fmt: skip

    def _host(self) -> bytes:
        return self._random.choice(HOSTS)

    async def _put_batch(self, store: MessageStore) -> None:
        items, puts, queue = [], [], self._random.randrange(2)
        for number in range(self._random.randint(2, 4)):
            unique = f"B{self._random.getrandbits(32)}"
            text = f"UNIQ_KEY\x01{unique}\x02".encode()
            items.append(BatchItem(b"%d of a batch" % number, 0, text))
            puts.append(Put("B", queue, items[-1].body, text, (unique,)))
        run = store.begin()
        run.add_batch("B", queue, items, sys_flag=0, born_ms=1, born_host=self._host())
        self._commit(store, run, puts)

    async def _put_inner(self, store: MessageStore) -> None:
        count, queue = self._random.randint(1, 4), self._random.randrange(2)
        unique = f"I{self._random.getrandbits(32)}"
        end = self._random.choice(("", "\x02"))  # some clients leave it out
        text = f"UNIQ_KEY\x01{unique}{end}".encode()
        run = store.begin()
        run.add_inner_batch(
            "C", queue, b"inner" * count, text, count=count, flag=0, sys_flag=0, born_ms=1,
            born_host=self._host(), unique_key=unique,
        )  # fmt: skip
        data = b"".join(piece for _, pieces in run.chunks for piece in pieces)
        expected = f"{unique}\x02INNER_NUM\x01{count}\x02".encode()
        assert expected in data, f"append: properties of a batch: {data[-90:]!r}"
        put = Put("C", queue, b"inner" * count, text, (unique,), count=count)
        self._commit(store, run, [put])

    def _commit(self, store: MessageStore, run: Run, puts: list[Put]) -> None:
        model = self.model
        chunks = [(at, b"".join(pieces)) for at, pieces in run.chunks]
        model.pending = model.expect(puts, chunks)
        assert all(FOREIGN_CRC not in data for _, data in chunks), "append: a foreign checksum"
        store.commit(run)
        model.wrote()
        assert store.max_offset == model.written, f"append: the log ends at {store.max_offset}"

    # --- other acts

    async def _ask(self, store: MessageStore) -> None:
        await ask(store, self.model, self._random, BATCHES)

    async def _pause(self, store: MessageStore) -> None:
        """Wait until even a small write has to be synced."""
        end = store.max_offset
        await trio.sleep(self._random.choice((MARKED_S, FLUSHED_S)) + FLUSHED_S)
        self._ensure_flushed(store, end)
        ahead = store.log.segments.end - store.max_offset
        assert ahead < 2 * self.model.segment, f"ahead: {ahead} bytes of files without a record"

    def _ensure_flushed(self, store: MessageStore, end: int) -> None:
        flushed = store.flushed.value
        assert flushed >= end, f"flush: {end - flushed} bytes are not synced yet"

    async def _cut(self, store: MessageStore) -> None:
        count = self._random.randint(1, 3)
        if len(self.model.kept) <= count + 2:
            return
        at = self.model.cut(count)
        await store.removal.cut(at)
        self.model.was_cut()
        assert store.max_offset == at, f"cut: at {at}, the log ends at {store.max_offset}"
        disk, place = store._world.disk, f"{ROOT}/{CUT_DIR}"
        files = disk.listdir(place) if disk.is_dir(place) else []
        size = str(sum(file_size(store._world, f"{place}/{name}") for name in files))
        actual = store.runtime_info()["keptCutBytes"]
        assert actual == size, f"cut: {actual} bytes are reported as kept, {size} are"

    async def delete(self, store: MessageStore) -> None:
        await store.dispatched.wait_for(store.max_offset)
        self.model.deleting = "D"
        await store.removal.delete_topic("D")
        self.model.was_deleted()
        for queue in range(2):
            assert store.queue_max("D", queue) == 0, f"deletion: queue D/{queue} remains"

    async def _expire(self, store: MessageStore) -> None:
        """Order expired files to be deleted: those whose last record is old go, and no others."""
        await trio.sleep(self._random.choice((1, RESERVED_MS / 1000 + 3)))
        model, before_ms, size = self.model, self._now_ms(store), store.log.segment_size
        starts = sorted(store.log.segments.starts)
        store.delete_expired()
        await trio.sleep(EXPIRED_S)
        low = store.min_offset
        for start in starts:
            inside = [one.stored_ms for one in model.kept if start <= one.physical < start + size]
            after = [one.stored_ms for one in model.kept if one.physical >= start + size]
            if start < low:
                is_old = bool(inside) and inside[-1] + RESERVED_MS <= self._now_ms(store)
                assert is_old, f"retention: the file at {start} is deleted too early"
            elif not after or after[0] + RESERVED_MS > before_ms:
                break
            else:
                raise AssertionError(f"retention: the file at {start} remains")
        model.expired(low)

    def _now_ms(self, store: MessageStore) -> int:
        return store._world.clock.wall_ms()


def ensure_closed(world: World) -> None:
    """Check that no file is open after a store was closed."""
    disk: Any = world.disk
    assert not disk.open_files, f"closed: {disk.open_files} files are open"
