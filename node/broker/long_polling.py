"""Long polls: pulls that found nothing and wait for a message (design.md 6, wire.md 5.5).

One table by topic and queue. A waiting pull is executed again when a message that matches its tags
has been dispatched, when its time is over, and every few seconds when its queue grew without a
match, so that its offset advances over filtered messages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.node.store.entry import NO_UNIT, Entry
from rocketbed.remoting.connection import Connection
from rocketbed.wire.command import Command

SWEEP_S: Final = 1.0
"""Pause between checks of the deadlines; RocketMQ is up to 5 s late, we are 1 s."""
ADVANCE_EVERY: Final = 5
"""Sweeps between two executions of pulls whose queue only got messages that did not match."""


@dataclass(slots=True)
class LongPoll:
    command: Command
    connection: Connection
    offset: int
    """First queue offset that is requested."""
    tag_codes: frozenset[int] | None
    deadline: float
    """On trio's clock."""
    outlived: bool = False
    """True if its topic was deleted meanwhile: the offset is one of a queue that no longer
    exists."""


class LongPolls:
    """The table, its sweep, and the pulls to execute."""

    def __init__(
        self,
        *,
        limit: int,
        queue_max: Callable[[str, int], int],
        execute: Callable[[LongPoll], None],
    ) -> None:
        """`execute` runs a pull again; it must not add it a second time."""
        self._limit = limit
        self._queue_max = queue_max
        self._execute = execute
        self._table: dict[tuple[str, int], list[LongPoll]] = {}
        self._count = 0
        self._ready: list[LongPoll] = []
        self._wake = trio.Event()

    def __len__(self) -> int:
        return self._count

    def add(self, topic: str, queue_id: int, pull: LongPoll) -> bool:
        """Let a pull wait; False if too many wait already: answer it at once."""
        if self._count >= self._limit:
            return False
        self._table.setdefault((topic, queue_id), []).append(pull)
        self._count += 1
        return True

    def on_arrival(self, entries: list[Entry]) -> None:
        """Schedule the pulls that one of the dispatched records matches."""
        if not self._table:
            return
        for entry in entries:
            if entry.units != NO_UNIT:
                next_offset = entry.queue_offset + abs(entry.units)
                self._arrive(entry.topic, entry.queue_id, next_offset, entry.tag_code)

    def _arrive(self, topic: str, queue_id: int, next_offset: int, tag_code: int) -> None:
        held = self._table.get((topic, queue_id))
        if held is None:
            return
        ready: list[LongPoll] = []
        keep: list[LongPoll] = []
        for pull in held:
            fits = pull.tag_codes is None or tag_code in pull.tag_codes
            (ready if fits and next_offset > pull.offset else keep).append(pull)
        if ready:
            self._take(topic, queue_id, keep, ready)

    async def run(self) -> None:
        """Execute scheduled pulls, and sweep, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep_forever)
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                self._execute_ready()

    def release(self, topic: str, queue_id: int) -> None:
        """Execute the long polls of a queue now."""
        if held := self._table.get((topic, queue_id)):
            self._take(topic, queue_id, [], held)

    def topic_deleted(self, topic: str) -> None:
        """Mark the pulls of a deleted topic; they wait for their deadline, or for
        `topic_recreated`."""
        for key, held in self._table.items():
            for pull in held if key[0] == topic else ():
                pull.outlived = True

    def topic_kept(self, topic: str) -> None:
        """Unmark the pulls of a topic whose deletion failed: all of its messages are still
        there."""
        for key, held in self._table.items():
            for pull in held if key[0] == topic else ():
                pull.outlived = False

    def topic_recreated(self, topic: str, queues: int) -> None:
        """Execute pulls that waited since before the topic was deleted: it exists again."""
        for queue_id in range(queues):
            held = self._table.get((topic, queue_id), ())
            if ready := [pull for pull in held if pull.outlived]:
                self._take(topic, queue_id, [pull for pull in held if not pull.outlived], ready)

    def release_all(self) -> None:
        """Execute every long poll now (the node stops)."""
        for (topic, queue_id), held in list(self._table.items()):
            self._take(topic, queue_id, [], held)
        self._execute_ready()

    def _execute_ready(self) -> None:
        ready, self._ready = self._ready, []
        for pull in ready:
            if not pull.connection.is_closed:
                self._execute(pull)

    async def _sweep_forever(self) -> None:
        sweeps = 0
        while True:
            await trio.sleep(SWEEP_S)
            sweeps += 1
            self._sweep(advance=sweeps % ADVANCE_EVERY == 0)

    def _sweep(self, *, advance: bool) -> None:
        now = trio.current_time()
        for (topic, queue_id), held in list(self._table.items()):
            high = self._queue_max(topic, queue_id) if advance else -1
            ready, keep = [], []
            for pull in held:
                if pull.connection.is_closed:
                    self._count -= 1
                elif pull.deadline <= now or high > pull.offset:
                    ready.append(pull)
                else:
                    keep.append(pull)
            if len(keep) < len(held):
                self._take(topic, queue_id, keep, ready)

    def _take(self, topic: str, queue_id: int, keep: list[LongPoll], ready: list[LongPoll]) -> None:
        if keep:
            self._table[topic, queue_id] = keep
        else:
            self._table.pop((topic, queue_id), None)
        self._count -= len(ready)
        self._ready += ready
        self._wake.set()
