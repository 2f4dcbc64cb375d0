"""Lives of one store: drawn work, then a clean stop, a kill or a power cut, and a start again.

    run_lives(7)

Small files, so that every kind of file rolls; plain and batch topics, batches, cuts, a deleted
topic, expired files. After each start and in between the store is asked everything
(`answers.ask`), and in the end the independent reader looks at the directory.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.inspect import Severity, check_store, open_directory
from rocketbed.node.store.aside import CUT_DIR
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.files import file_size
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.api import World
from tests.model.answers import ask
from tests.model.model import Model, Put

ROOT: Final = "/store"
HOST: Final = b"\x7f\0\0\1\0\0\x2a\x9f"
HOSTS: Final = (HOST, bytes(15) + b"\1\0\0\x2a\x9f")
"""Of IPv4 and of IPv6."""
NOT_OURS: Final = b"__CRC32#\x01123\x02"
"""A property that only the store writes."""
BATCHES: Final = ("C",)
"""Topics with batch queues."""
TAGS: Final = ("", "red", "violet")
LIVES: Final = 5
ENDS: Final = ("clean", "kill", "power-random", "power-strict", "power-prefix", "power-reorder")
RESERVED_MS: Final = 20_000
FEW_DESCRIPTORS: Final = 20
"""Of them the store keeps eight files open."""
FLUSHED_S: Final = 1.2
"""Time after which a change, however small, is on disk: a bit more than two of the settings."""
MARKED_S: Final = 0.8
EXPIRED_S: Final = 12.0
"""Longer than the twenty rounds of an order."""


class Topics:
    """A topic table in which every topic stands."""

    def exists(self, topic: str) -> bool | None:
        return True

    def is_batch_queue(self, topic: str) -> bool:
        return topic in BATCHES

    def remarks(self, queues: Iterable[tuple[str, int, bool]]) -> list[str]:
        return []


def settings(random: Random, **changes: Any) -> StoreConfig:
    """Files that hold a few messages, and a ring that holds few."""
    values: dict[str, Any] = {
        "root": ROOT,
        "segment_size": random.choice((2048, 4096)),
        "queue_segment_size": 160,
        "batch_queue_segment_size": 92,
        "index_slots": 7,
        "index_entries": random.choice((24, 60)),
        "sync_flush": random.random() < 0.5,
        "flush_interval_ms": 50,
        "flush_thorough_interval_ms": 1000,
        "mark_interval_ms": 300,
        "clean_interval_ms": 500,
        "reserved_ms": RESERVED_MS,
        "delete_when": (),
        "delete_batch_max": 2,
        "dispatch_ring": random.choice((4, 65_536)),
        "scrub_rate": 1 << 30,
        "append_property_crc": random.random() < 0.3,
        "store_host": random.choice(("127.0.0.1", "::1")),
    }
    return StoreConfig(**(values | changes))


class Life:
    """One process: what it does is drawn."""

    def __init__(self, model: Model, random: Random, steps: int, *, power: bool) -> None:
        self.model, self._random, self._steps = model, random, steps
        self._power = power
        """How the process before it ended."""
        self.wrong: AssertionError | None = None
        self.own = ""
        """Properties that every message has besides."""
        self._number = 0

    async def main(self, world: World, config: StoreConfig, *, stops: bool) -> None:
        model = self.model
        was_closed = model.closed
        if self._random.random() < 0.5:
            world.process.descriptors = FEW_DESCRIPTORS
        store = await MessageStore.open(world, config, Topics())
        try:
            self._look(store, was_closed=was_closed)
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

    async def fill(
        self,
        world: World,
        config: StoreConfig,
        *,
        count: int,
        mixed: bool = False,
        is_flushed: bool = True,
    ) -> None:
        """So many writes to plain topics, or of every kind, on disk, and the end of the process."""
        await self.filled(
            await MessageStore.open(world, config, Topics()),
            count,
            mixed=mixed,
            is_flushed=is_flushed,
        )

    async def put_any(self, store: MessageStore) -> None:
        """A write of any kind. Raises `PutFailed`."""
        await self._random.choice((self._put_some, self._put_batch, self._put_inner))(store)

    async def filled(
        self, store: MessageStore, count: int, *, mixed: bool = False, is_flushed: bool = True
    ) -> None:
        """The same of a store that is open."""
        kinds = (self._put_some, self._put_batch, self._put_inner)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                for _ in range(count):
                    await (self._random.choice(kinds) if mixed else self._put_some)(store)
                if is_flushed:
                    await trio.sleep(2 * FLUSHED_S)
                nursery.cancel_scope.cancel()
            if is_flushed:
                self._ensure_flushed(store, store.max_offset)
        except AssertionError as exc:
            self.wrong = exc

    async def remake(self, world: World, config: StoreConfig) -> None:
        """A topic is deleted, the end of the log is cut, and the topic's next message stands just
        there; then a kill."""
        store = await MessageStore.open(world, config, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            try:
                self._look(store, was_closed=False)
                for topic in ("D", "A", "A"):
                    self._put_one(store, topic)
                await self._delete(store)
                at = self.model.cut(1)
                await store.removal.cut(at)
                self.model.was_cut()
                self._put_one(store, "D")
            except AssertionError as exc:
                self.wrong = exc
            nursery.cancel_scope.cancel()

    def flushed_to(self, end: int) -> None:
        self.model.flushed = end

    def _look(self, store: MessageStore, *, was_closed: bool | None) -> None:
        """What the start found; None: of a clean stop, or of a start that ended before its time."""
        log, report = store.log, store.recovery
        starts = log.segments.starts
        data = b"".join(log.segments.read(start, log.segment_size) for start in starts)
        self.model.recovered(store.min_offset, store.max_offset, data, power=self._power)
        if was_closed is not None:
            assert report.was_clean == was_closed, f"start: clean: {report.was_clean}"
        if was_closed:
            assert not report.findings, f"start: behind a clean stop: {report.findings}"

    async def _work(self, store: MessageStore) -> None:
        try:
            await ask(store, self.model, self._random, BATCHES)
            with trio.fail_after(600):
                await store.scrubber.finished.wait()
            found = [*store.scrubber.damage, *store.scrubber.unqueued, store.scrubber.index_damage]
            assert not any(found), f"scrub: of a disk that kept everything: {found}"
            for _ in range(self._steps):
                await self._step(store)
            await ask(store, self.model, self._random, BATCHES)
        except AssertionError as exc:
            self.wrong = exc

    async def _step(self, store: MessageStore) -> None:
        random = self._random
        doings: list[tuple[int, Callable[[MessageStore], Any]]] = [
            (10, self._put_some), (3, self._put_batch), (3, self._put_inner), (3, self._rest),
            (1, self._cut), (1, self._delete), (1, self._expire), (1, self._ask),
        ]  # fmt: skip
        weights, calls = zip(*doings, strict=True)
        await random.choices(calls, weights)[0](store)

    def _put(self, topic: str) -> Put:
        random = self._random
        self._number += 1
        unique = f"U{self._number}-{random.getrandbits(32)}"
        keys = (unique, *random.sample(("k1", "k2", "k3"), random.choice((0, 0, 1, 2))))
        tag = random.choice(TAGS)
        text = f"UNIQ_KEY\x01{unique}\x02"
        text += self.own
        text += f"KEYS\x01{' '.join(keys[1:])}\x02" if keys[1:] else ""
        text += f"TAGS\x01{tag}\x02" if tag else ""
        body = f"body {unique} ".encode() + bytes(random.choice((5, 40, 300, 700)))
        return Put(topic, random.randrange(2), body, text.encode(), keys, tag)

    async def _put_some(self, store: MessageStore) -> None:
        run, puts = store.begin(), []
        for _ in range(self._random.choice((1, 1, 3, 8))):
            put = self._put(self._random.choice("AABD"))
            self._add(run, put)
            puts.append(put)
        self._commit(store, run, puts)
        await trio.sleep(self._random.choice((0, 0.001, 1.5)))

    def _put_one(self, store: MessageStore, topic: str) -> None:
        self.put(store, self._put(topic))

    def put_in(self, store: MessageStore, topic: str, queue: int) -> None:
        """One message to this queue."""
        self.put(store, replace(self._put(topic), queue=queue))

    def put_body(self, store: MessageStore, body: bytes) -> None:
        """One plain message with this body, without a key."""
        self.put(store, Put("A", 0, body, b"own\x01x\x02"))

    def put(self, store: MessageStore, put: Put) -> None:
        run = store.begin()
        self._add(run, put)
        self._commit(store, run, [put])

    def _add(self, run: Run, put: Put) -> None:
        before, behind = self._random.choice(((b"", b""), (b"", NOT_OURS), (NOT_OURS, NOT_OURS)))
        run.add(
            put.topic, put.queue, put.body, before + put.properties + behind, flag=0, sys_flag=0,
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
        ends = self._random.choice(("", "\x02"))  # some clients leave it out
        text = f"UNIQ_KEY\x01{unique}{ends}".encode()
        run = store.begin()
        run.add_inner_batch(
            "C", queue, b"inner" * count, text, count=count, flag=0, sys_flag=0, born_ms=1,
            born_host=self._host(), unique_key=unique,
        )  # fmt: skip
        whole = b"".join(piece for _, pieces in run.chunks for piece in pieces)
        want = f"{unique}\x02INNER_NUM\x01{count}\x02".encode()
        assert want in whole, f"append: properties of a batch: {whole[-90:]!r}"
        put = Put("C", queue, b"inner" * count, text, (unique,), count=count)
        self._commit(store, run, [put])

    def _commit(self, store: MessageStore, run: Run, puts: list[Put]) -> None:
        model = self.model
        chunks = [(at, b"".join(pieces)) for at, pieces in run.chunks]
        model.pending = model.expect(puts, chunks)
        assert all(NOT_OURS not in data for _, data in chunks), "append: a checksum of others"
        store.commit(run)
        model.wrote()
        assert store.max_offset == model.written, f"append: the log ends at {store.max_offset}"

    async def _rest(self, store: MessageStore) -> None:
        """Whatever was written has to be on disk soon, even if it is little."""
        end = store.max_offset
        await trio.sleep(self._random.choice((MARKED_S, FLUSHED_S)) + FLUSHED_S)
        self._ensure_flushed(store, end)
        ahead = store.log.segments.end - store.max_offset
        assert ahead < 2 * self.model.segment, f"ahead: {ahead} bytes of files without a record"

    def _ensure_flushed(self, store: MessageStore, end: int) -> None:
        flushed = store.flushed.value
        assert flushed >= end, f"flush: {end - flushed} bytes are not on disk yet"

    async def _cut(self, store: MessageStore) -> None:
        count = self._random.randint(1, 3)
        if len(self.model.kept) > count + 2:
            at = self.model.cut(count)
            await store.removal.cut(at)
            self.model.was_cut()
            assert store.max_offset == at, f"cut: at {at}, the log ends at {store.max_offset}"
            disk, place = store._world.disk, f"{ROOT}/{CUT_DIR}"
            files = disk.listdir(place) if disk.is_dir(place) else []
            kept = str(sum(file_size(store._world, f"{place}/{name}") for name in files))
            told = store.runtime_info()["keptCutBytes"]
            assert told == kept, f"cut: {told} of {kept} bytes are kept"

    async def _delete(self, store: MessageStore) -> None:
        await store.dispatched.wait_for(store.max_offset)
        self.model.deleting = "D"
        await store.removal.delete_topic("D")
        self.model.was_deleted()
        for queue in range(2):
            assert store.queue_max("D", queue) == 0, f"deletion: D/{queue} is there still"

    async def _expire(self, store: MessageStore) -> None:
        """An operator's order: files go whose last record is old, and no other."""
        await trio.sleep(self._random.choice((1, RESERVED_MS / 1000 + 3)))
        now_ms = self._now_ms(store)
        firsts = {
            start: next(
                (one.stored_ms for one in self.model.kept if one.physical >= start + size), None
            )
            for size in (store.log.segment_size,)
            for start in store.log.segments.starts
        }
        store.delete_expired()
        await trio.sleep(EXPIRED_S)
        low = store.min_offset
        for start, first_ms in sorted(firsts.items()):
            last = [o for o in self.model.kept if start <= o.physical < start + self.model.segment]
            is_young = not last or last[-1].stored_ms + RESERVED_MS > self._now_ms(store)
            if start < low:
                assert not is_young, f"retention: the file at {start} is gone too early"
            elif first_ms is None or first_ms + RESERVED_MS > now_ms:
                break
            else:
                raise AssertionError(f"retention: the file at {start} is there still")
        self.model.expired(low)

    def _now_ms(self, store: MessageStore) -> int:
        return store._world.clock.wall_ms()

    async def _ask(self, store: MessageStore) -> None:
        await ask(store, self.model, self._random, BATCHES)


def run_lives(seed: int, *, lives: int = LIVES, **changes: Any) -> tuple[DiskImage, Model, str]:
    """All lives of a seed; the disk in the end, what is on it, and a digest of what happened."""
    random = Random(f"lives/{seed}")
    config = settings(random, **changes)
    model = Model(segment=config.segment_size)
    image, boots, digests, end, power = None, 1, [], "clean", False
    for number in range(lives):
        is_last = number == lives - 1
        power = end.startswith("power") or (power and not model.opened)
        model.opened = False
        end = "clean" if is_last else random.choice(ENDS)
        steps = 4 if is_last else random.randint(5, 25)
        life = Life(model, Random(f"{seed}/{number}"), steps, power=power)
        cause, _, mode = end.partition("-")
        run: SoloRun = run_solo(
            partial(life.main, stops=end == "clean"),
            config,
            image=image,
            boots=boots,
            seed=f"{seed}/{number}",
            crash_at=None if end == "clean" else random.randint(30, 400),
            kind=cause if cause == "power" else "kill",
            mode=mode or "random",
        )
        if life.wrong is not None:
            raise life.wrong
        assert run.outcome != "still running", f"hang: life {number}"
        if run.outcome == "ended" and end != "clean":
            end = "kill"  # it came to the end of its work before the event
        if model.closed and not model.opened:
            model.closed = None
        boots += end.startswith("power")
        image = run.image
        digests.append(run.digest)
    assert image is not None
    look_at(image)
    return image, model, " ".join(digests)


def run_remade(seed: int) -> str:
    """A topic made again where the log was cut, before and after a kill."""
    config = settings(Random(f"remade/{seed}"))
    model, image, digest = Model(segment=config.segment_size), None, ""
    for number in range(3):
        life = Life(model, Random(f"remade/{seed}/{number}"), 0, power=False)
        main = partial(life.main, stops=True) if number == 2 else life.remake
        run = run_solo(main, config, image=image, seed=seed)
        if life.wrong is not None:
            raise life.wrong
        image, digest = run.image, digest + run.digest
    look_at(run.image)
    return digest


def ensure_closed(world: World) -> None:
    """A store that was closed has no file open."""
    disk: Any = world.disk
    assert not disk.open_files, f"closed: {disk.open_files} files are open"


def look_at(image: DiskImage, *, but: Sequence[str] = ()) -> None:
    """By the independent reader, after a clean stop, `but` for some rules."""
    with tempfile.TemporaryDirectory(prefix="rocketbed-session-") as place:
        image.export(place)
        directory = open_directory(str(Path(place) / ROOT.lstrip("/")))
        try:
            for finding in check_store(directory).findings:
                if finding.severity >= Severity.TAIL and finding.rule not in but:
                    raise AssertionError(f"{finding.rule}: {finding.file}: {finding.text}")
        finally:
            directory.close()
