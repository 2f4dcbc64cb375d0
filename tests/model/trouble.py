"""A disk that fails, is full, or has no descriptor left, for one call or some: what a store does
then, what it says, and that nothing is missing once the trouble is over.

What passes is passed over: every message that was taken is there when it has passed, and one that
was refused is nowhere. What may have lost bytes ends the store, and the next start has all that was
on disk.
"""

import errno
import os
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import PutFailed, StoreFailed
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.answers import ask
from tests.model.mending import answers_of, serve
from tests.model.model import Model
from tests.model.store import BATCHES, FLUSHED_S, Life, Topics, look_at, settings

NO_ROOM, NO_DESCRIPTOR, BROKEN = errno.ENOSPC, errno.EMFILE, errno.EIO
BEFORE, DURING, AFTER = 8, 14, 6
"""Writes before the trouble, in it, and behind it."""
DURING_MAX: Final = 60
"""Writes in it, if it does not come to that sooner."""
PASSES_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    operation: str
    path: str
    error: int
    ends: bool
    """Whether the store has to end."""


TROUBLES: Final = (
    Trouble("create", "*/rocketbed.tmp/*", NO_ROOM, False),
    Trouble("allocate", "*/rocketbed.tmp/*", NO_ROOM, False),
    Trouble("truncate", "*/rocketbed.tmp/*", NO_ROOM, False),
    Trouble("write", "*/commitlog/*", NO_ROOM, False),
    Trouble("write", "*consumequeue/*", NO_ROOM, False),
    Trouble("write", "*/index/*", NO_ROOM, False),
    Trouble("write", "*/rocketbed.flushed", NO_ROOM, False),
    Trouble("write", "*/rocketbed.flushed", NO_DESCRIPTOR, False),
    Trouble("rename", "*/rocketbed.ckpt.new", NO_ROOM, False),
    Trouble("sync", "*/rocketbed.ckpt.new", NO_ROOM, False),
    Trouble("open", "*", NO_DESCRIPTOR, False),
    Trouble("sync", "*/commitlog/*", BROKEN, True),
    Trouble("sync", "*consumequeue/*", BROKEN, True),
)


def run_trouble(seed: int) -> str:
    digest = ""
    for number, trouble in enumerate(TROUBLES):
        troubled = Troubled(f"trouble/{seed}/{number}", trouble)
        digest += troubled.run()
    return digest


class Troubled:
    """One store, and what happens to its disk."""

    def __init__(self, name: str, trouble: Trouble) -> None:
        self._random, self._trouble = Random(name), trouble
        self._config = settings(Random(name), reserved_ms=10**10, append_property_crc=False)
        self.model = Model(segment=self._config.segment_size)
        self.life = Life(self.model, Random(name), 0, power=False)
        self._disk: SimDisk | None = None
        self._what = f"{trouble.operation} of {trouble.path}, {errno.errorcode[trouble.error]}"

    def run(self) -> str:
        run = run_alone(self._main, self._config, prepare=self._take)
        if self.life.wrong is not None:
            raise self.life.wrong
        look = partial(answers_of, model=self.model)
        if not self._trouble.ends:
            look_at(run.image)
            return run.digest
        model = self.model
        disk = SimDisk(run.image)
        disk.power_cut("strict")
        again = Life(model, Random(1), 0, power=True)
        started = run_alone(partial(again.main, stops=True), self._config, image=disk.image(),
                            boots=2)  # fmt: skip
        if again.wrong is not None:
            raise again.wrong
        found = run_alone(serve, self._config, look, image=started.image)
        assert not found.value, f"answers: {self._what}, at the next start: {found.value}"
        look_at(started.image)
        return run.digest + started.digest

    def _take(self, disk: SimDisk) -> None:
        self._disk = disk

    async def _main(self, world: World, config: StoreConfig) -> None:
        store = await MessageStore.open(world, config, Topics())
        store.flushed.subscribe(self.life.flushed_to)
        failed: list[StoreFailed] = []
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                await self._work(store)
                await store.close()
                self.model.closed = True
                nursery.cancel_scope.cancel()
        except* StoreFailed as group:
            failed += _leaves(group)
        assert bool(failed) == self._trouble.ends, f"ends: {self._what}: {failed}"

    async def _work(self, store: MessageStore) -> None:
        disk, trouble = self._disk, self._trouble
        assert disk is not None
        for _ in range(BEFORE):
            await self._put(store, fails=False)
        await trio.sleep(2 * FLUSHED_S)
        if trouble.operation == "open":
            await self._without_descriptors(store, disk)
            return
        fault = SimFault(
            operation=trouble.operation, path=trouble.path, error=trouble.error, times=None
        )
        disk.faults.append(fault)
        for number in range(DURING_MAX):
            if number < DURING or not fault.fired:
                await self._put(store, fails=True)
        await trio.sleep(PASSES_S)
        assert not trouble.ends, f"ends: {self._what}: the store goes on"
        disk.faults.clear()
        assert fault.fired > 0, f"load: {self._what}: it never came to that"
        await trio.sleep(PASSES_S)
        await ask(store, self.model, self._random, BATCHES)
        for _ in range(AFTER):
            await self._put(store, fails=False)
        await ask(store, self.model, self._random, BATCHES)

    async def _without_descriptors(self, store: MessageStore, disk: SimDisk) -> None:
        """Others of the process have them all: the store goes on with those that it has."""
        disk.descriptors = disk.open_files
        for _ in range(DURING):
            await self._put(store, fails=False)
        await ask(store, self.model, self._random, BATCHES)
        disk.descriptors = None
        await trio.sleep(PASSES_S)
        for _ in range(AFTER):
            await self._put(store, fails=False)
        await ask(store, self.model, self._random, BATCHES)

    async def _put(self, store: MessageStore, *, fails: bool) -> None:
        end = store.max_offset
        try:
            await self.life.put_any(store)
        except PutFailed as exc:
            assert fails, f"refused: {self._what}: {exc}, when it was over"
            why = os.strerror(self._trouble.error)
            assert why in str(exc), f"refused: {self._what}: {exc}, and not for {why!r}"
            assert store.max_offset == end, f"refused: {self._what}: the log has grown"
            self.model.pending = []
        await trio.sleep(0.02)


def _leaves(group: BaseExceptionGroup[Any]) -> list[Any]:
    found: list[Any] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found
