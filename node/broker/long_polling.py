"""Pulls that found nothing and wait for a message (design.md 6, wire.md 5.5).

One table by topic and queue. A held pull is executed again when a message that fits its tags has
been dispatched, when its time is over, and every few seconds when its queue went on without a
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
"""How often deadlines are looked at; RocketMQ needs up to 5 s more than asked, we 1 s."""
ADVANCE_EVERY: Final = 5
"""Sweeps between two executions of pulls whose queue only got messages that did not fit."""


@dataclass(slots=True)
class HeldPull:
    command: Command
    connection: Connection
    offset: int
    """First queue offset wanted."""
    tag_codes: frozenset[int] | None
    deadline: float
    """On trio's clock."""
    outlived: bool = False
    """Its topic was deleted meanwhile: the offset is one of a queue that is gone."""


class LongPolls:
    """The table, its sweep, and the pulls that are due."""

    def __init__(
        self,
        *,
        limit: int,
        queue_max: Callable[[str, int], int],
        execute: Callable[[HeldPull], None],
    ) -> None:
        """`execute` runs a pull again; it must not hold it a second time."""
        self._limit = limit
        self._queue_max = queue_max
        self._execute = execute
        self._table: dict[tuple[str, int], list[HeldPull]] = {}
        self._count = 0
        self._due: list[HeldPull] = []
        self._wake = trio.Event()

    def __len__(self) -> int:
        return self._count

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> bool:
        """Keep a pull; False when too many are kept: answer it at once."""
        if self._count >= self._limit:
            return False
        self._table.setdefault((topic, queue_id), []).append(pull)
        self._count += 1
        return True

    def on_arrival(self, entries: list[Entry]) -> None:
        """Records were dispatched: pulls that one of them fits are due."""
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
        due: list[HeldPull] = []
        keep: list[HeldPull] = []
        for pull in held:
            fits = pull.tag_codes is None or tag_code in pull.tag_codes
            (due if fits and next_offset > pull.offset else keep).append(pull)
        if due:
            self._take(topic, queue_id, keep, due)

    async def run(self) -> None:
        """Execute what is due, and sweep, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep_forever)
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                self._execute_due()

    def release(self, topic: str, queue_id: int) -> None:
        """Execute the held pulls of a queue now."""
        if held := self._table.get((topic, queue_id)):
            self._take(topic, queue_id, [], held)

    def topic_gone(self, topic: str) -> None:
        """It was deleted; its pulls wait for the end of their time, or for `topic_there`."""
        for key, held in self._table.items():
            for pull in held if key[0] == topic else ():
                pull.outlived = True

    def topic_kept(self, topic: str) -> None:
        """Its deletion failed, and all of its messages are there: pulls wait on."""
        for key, held in self._table.items():
            for pull in held if key[0] == topic else ():
                pull.outlived = False

    def topic_there(self, topic: str, queues: int) -> None:
        """Execute what was held before the topic was deleted: it is made again."""
        for queue_id in range(queues):
            held = self._table.get((topic, queue_id), ())
            if due := [pull for pull in held if pull.outlived]:
                self._take(topic, queue_id, [one for one in held if not one.outlived], due)

    def release_all(self) -> None:
        """Execute every held pull now (the node stops)."""
        for (topic, queue_id), held in list(self._table.items()):
            self._take(topic, queue_id, [], held)
        self._execute_due()

    def _execute_due(self) -> None:
        due, self._due = self._due, []
        for pull in due:
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
            due, keep = [], []
            for pull in held:
                if pull.connection.is_closed:
                    self._count -= 1
                elif pull.deadline <= now or high > pull.offset:
                    due.append(pull)
                else:
                    keep.append(pull)
            if len(keep) < len(held):
                self._take(topic, queue_id, keep, due)

    def _take(self, topic: str, queue_id: int, keep: list[HeldPull], due: list[HeldPull]) -> None:
        if keep:
            self._table[topic, queue_id] = keep
        else:
            self._table.pop((topic, queue_id), None)
        self._count -= len(due)
        self._due += due
        self._wake.set()
