"""A disk that does not give one of its files, or has no descriptor left for it: what the scrub
says, who is refused what, and that all is there, and nothing is named, once it gives it again.

Of a file of the log nobody gets what lies behind the place that was not given; of any other file
the log is whole, whatever is said of the index or of the messages of that queue.
"""

import errno
from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.damage import Filled, filled
from tests.model.mending import answers_of, serve
from tests.model.model import Kept
from tests.model.store import (
    FEW_DESCRIPTORS,
    ROOT,
    Topics,
    ensure_closed,
    look_at,
)

BROKEN, NO_DESCRIPTOR = errno.EIO, errno.EMFILE
LOG, INDEX = "commitlog", "index"
KINDS: Final = (LOG, INDEX, "consumequeue", "batchconsumequeue")
PASSES_S: Final = 3.0
SCRUBBED_S: Final = 10.0


def run_unread(seed: int) -> str:
    random, digest = Random(f"unread/{seed}"), ""
    full = filled(seed, append_property_crc=False)
    for kind in KINDS:
        files = [path for path in full.image.paths() if path.startswith(f"{ROOT}/{kind}/")]
        for error in (BROKEN, NO_DESCRIPTOR):
            if files:
                digest += Unread(full, kind, random.choice(files), error).run()
    return digest


class Unread:
    """One file, and why it is not given."""

    def __init__(self, full: Filled, kind: str, path: str, error: int) -> None:
        self._full, self._kind, self._path, self._error = full, kind, path, error
        self._what = f"{path}, {errno.errorcode[error]}"
        self._disk: SimDisk | None = None

    def run(self) -> str:
        digest, image = "", self._full.image
        run = run_alone(self._main, self._full.config, image=image, prepare=self._take)
        for _ in range(2):
            image, digest = run.image, digest + run.digest
            run = run_alone(partial(serve, stops=True), self._full.config, self._whole, image=image)
        look_at(run.image)
        return digest + run.digest

    def _take(self, disk: SimDisk) -> None:
        self._disk = disk

    async def _main(self, world: World, config: StoreConfig) -> None:
        disk = self._disk
        assert disk is not None
        world.process.descriptors = FEW_DESCRIPTORS
        store = await MessageStore.open(world, config, Topics())
        operation = "open" if self._error == NO_DESCRIPTOR else "read"
        fault = SimFault(operation=operation, path=self._path, error=self._error, times=None)
        disk.faults.append(fault)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await trio.sleep(PASSES_S)
            if self._error == NO_DESCRIPTOR:
                disk.faults.clear()
            with trio.fail_after(SCRUBBED_S):
                await store.scrubber.finished.wait()
            self._says(store, fault)
            await self._gives(store)
            disk.faults.clear()
            await store.close()
            nursery.cancel_scope.cancel()
        ensure_closed(world)

    def _says(self, store: MessageStore, fault: SimFault) -> None:
        """What cannot be read is named as what it is; that it could not be opened is no damage."""
        scrubber, is_broken = store.scrubber, self._error == BROKEN and fault.fired > 0
        damaged = [(one.start, one.end) for one in scrubber.damage]
        assert bool(damaged) == (is_broken and self._kind == LOG), f"scrub: {self._what}: {damaged}"
        if damaged:
            start = int(self._path.rpartition("/")[2])
            end = min(start + self._full.size, self._full.model.written)
            assert start <= damaged[0][0] and damaged[-1][1] == end, (
                f"scrub: {self._what}: {damaged} of {start} to {end}"
            )
        told = bool(scrubber.index_damage)
        assert told == (is_broken and self._kind == INDEX), f"scrub: {self._what}: {told}"
        topic = self._path.split("/")[3]
        assert set(scrubber.unqueued) <= ({topic} if is_broken else set()), (
            f"scrub: {self._what}: {scrubber.unqueued}"
        )
        assert not scrubber.healed, f"scrub: {self._what}: {scrubber.healed} units"

    async def _gives(self, store: MessageStore) -> None:
        """Every message that does not stand there, as it was; of one that does, nothing wrong."""
        for kept in self._full.model.queues().values():
            for one in kept:
                try:
                    ranges = store.get_messages(*one.place, one.offset, 1).ranges
                    data = await store.read(ranges)
                except (CorruptRecord, OSError) as exc:
                    is_there = self._error == BROKEN and self._is_of_it(one)
                    assert is_there, f"pull: {self._what}: {one.physical} is refused: {exc}"
                else:
                    assert data == one.data, f"pull: {self._what}: another record"

    def _is_of_it(self, one: Kept) -> bool:
        if self._kind == LOG:
            return (
                int(self._path.rpartition("/")[2])
                == one.physical // self._full.size * self._full.size
            )
        return f"/{self._kind}/{one.put.topic}/{one.put.queue}/" in self._path

    async def _whole(self, store: MessageStore) -> None:
        """When it is given again."""
        scrubber = store.scrubber
        found = [*scrubber.damage, *scrubber.unqueued, scrubber.healed, scrubber.index_damage]
        assert not any(found), f"scrub: {self._what}, that is given again: {found}"
        wrong = await answers_of(store, self._full.model)
        assert not wrong, f"answers: {self._what}, that is given again: {wrong}"
