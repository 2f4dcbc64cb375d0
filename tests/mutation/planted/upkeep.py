"""Bugs in what the store does while it runs and stops: marks, segments, store times."""

import contextlib
from typing import Any

import trio

from rocketbed.node.store.run import Run
from rocketbed.wire.message import BLANK, MAGIC_BLANK
from tests.mutation.planted.mutant import mutant, planted, swap

LATE = 5

_CLOSE = "rocketbed.node.store.store:MessageStore.close"
_REMOVE = "rocketbed.node.store.checkpoint:Witnesses.remove_abort"
_ADD = "rocketbed.node.store.run:Run.add"
_FIT = "rocketbed.node.store.run:Run._fit"
_ROLL = "rocketbed.node.store.run:Run._roll"


@mutant(
    "M6",
    "checkpoint before data",
    "rocketbed.node.store.checkpointer:Checkpointer.raise_mark",
    bug="the checkpoint speaks of bytes that are not on disk yet (678, 4559)",
    edit="mark and checkpoint are stored first, then log, queues and index are synced",
    caught_by=(
        "checkpoint-not-ahead",
        "marks-not-ahead",
        "queue-entries-complete",
        "unseen-message",
        "recovered-end",
        "lost-write",
    ),
    family="power-lone",
)
async def _checkpoint_before_data(original: Any, self: Any) -> bool:
    async with self.lock:
        parts = self._parts
        if self._dispatcher.settled:
            with contextlib.suppress(OSError):
                changes = self._snapshot(parts.dispatched.value)
                parts.index.write()
                await parts.marks.update(**changes, index=parts.index.mark())
                await self.store_checkpoint()
    done: bool = await original(self)
    return done


@planted(
    "M8",
    "abort file removed too early",
    bug="a crash within a shutdown looks like a clean stop",
    edit="`abort` is removed before the last dispatch and flush",
    caught_by=(
        "abort-file",
        "abort-file-law",
        "store-images",
        "nothing-beyond-log",
        "queue-entries-complete",
    ),
    family="abort-file",
    targets=(
        _CLOSE,
        _REMOVE,
    ),
)
def _abort_removed_early() -> None:
    async def close(self: Any) -> None:
        await remove(self._parts.witnesses)
        await original(self)

    async def remove_again(self: Any) -> None:
        if self._world.disk.exists(self._abort):
            await remove(self)

    original = swap(_CLOSE, close)
    remove = swap(_REMOVE, remove_again)


@planted(
    "M12",
    "off by one at segment roll",
    bug="a record may end so near the segment's end that no filler fits behind it (6904)",
    edit="the room for the filler is forgotten, which then takes what there is",
    caught_by=(
        "log-files-tile",
        "no-silent-damage",
        "store-images",
        "no-unexpected-exit",
        "equal-logs",
    ),
    family="abort-file",
    targets=(
        _ADD,
        _FIT,
        _ROLL,
    ),
)
def _roll_off_by_one() -> None:
    def roll(self: Any) -> None:
        room = self._segment_end - self.position
        self._pieces.append(BLANK.pack(room, MAGIC_BLANK)[:room])
        self.position = self._segment_end
        self._segment_end += self._tail.segment_size
        self._pieces = []
        self.chunks.append((self.position, self._pieces))

    swap("rocketbed.node.store.run:BLANK_SIZE", 0)
    swap(_ROLL, roll)


@mutant(
    "M22",
    "store time from the wall clock",
    "rocketbed.node.store.commitlog:CommitLog.begin",
    bug="store times fall when the clock is set back, and a search by time goes wrong (T17)",
    edit="a run's store time is the wall clock's, whatever the record before it says",
    caught_by=("time-search", "store-times-rise"),
    family="clock-jump",
)
def _store_time_of_the_clock(_original: Any, self: Any) -> Run:
    return Run(self.tail, self.written.value, self._world.clock.wall_ms())


@mutant(
    "E1",
    "old marks",
    "rocketbed.node.store.checkpointer:Checkpointer.run",
    bug="none: recovery begins further back, at a mark that was raised after the flush",
    edit="the mark rises five times more rarely",
)
async def _old_marks(_original: Any, self: Any) -> None:
    while True:
        await trio.sleep(LATE * self._parts.config.mark_interval_ms / 1000)
        if self._parts.dispatched.value > self._parts.marks.mark.offset:
            await self.raise_mark()
