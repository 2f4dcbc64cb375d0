"""Reading one queue on and on: a task that pulls and hands batches over, at most one ahead.

Batches of all queues go through one channel without a buffer, so a program that polls slowly
stops the pulling. `seek` makes what is under way worthless; its batches are told by their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import trio

from rocketbed.client.errors import ClientError, MissingLibrary, RequestRefused
from rocketbed.client.messages import Received
from rocketbed.client.progress import Key, Progress
from rocketbed.client.pulls import Puller, PullStatus, TagFilter, describe
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import World

COUNT: Final = 32
"""Messages of one pull; brokers give no more by default."""
PAUSE_S: Final = 0.05
"""After a failed pull; doubles up to `PAUSE_MAX_S`."""
PAUSE_MAX_S: Final = 1.0
EMPTY_PAUSE_S: Final = 0.05
"""After an answer that came at once and brought nothing: a slave sends us away so, a broker that
holds too many pulls does not hold ours."""

PASSING_CODES: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    )
)
"""Refusals that end by themselves (wire.md 11, trap 17)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """Messages of one queue prefetched for the program, or the error that stopped the pulling."""

    flow: "Flow"
    number: int
    """How often the flow had been moved when this was pulled."""
    messages: tuple[Received, ...] = ()
    ends: tuple[int, ...] = ()
    """Where the queue is to be read on when each of them is dealt with, and all before it."""
    begin: int = 0
    """Where it was pulled."""
    next_offset: int = 0
    """Where to go on, without messages."""
    failure: ClientError | ProtocolError | None = None
    given: int = 0
    """Messages that the program was given."""


class Flow:
    """The reading of one queue."""

    def __init__(
        self,
        world: World,
        puller: Puller,
        queue: MessageQueue,
        tags: TagFilter,
        offset: int,
        batches: trio.MemorySendChannel[Batch | None],
        *,
        hold_s: float,
        is_ordered: bool = False,
    ) -> None:
        """`is_ordered`: a batch is handed over when all before it is dealt with."""
        self.queue = queue
        self.position = offset
        """Behind the messages that were handed out."""
        self.progress = Progress(offset)
        """Which of them are dealt with; another one after each move."""
        self.committed: int | None = None
        """What its broker has confirmed."""
        self.told: int | None = None
        """What pulls say of the group's position: the latest commit, confirmed or under way, or a
        pull that follows it would take it back."""
        self._world = world
        self._puller = puller
        self._tags = tags
        self._batches = batches
        self._hold_s = hold_s
        self._is_ordered = is_ordered
        self._next = offset
        self._moves = 0
        self._may_run = trio.Event()
        self._may_run.set()
        self.is_stopped = False
        self._scope: trio.CancelScope | None = None

    def is_current(self, batch: Batch) -> bool:
        """Whether a batch was pulled after the last move."""
        return batch.number == self._moves and not self.is_stopped

    def hand_out(self, messages: Sequence[Received], ends: Sequence[int]) -> None:
        """The program is given these; behind each of them its queue is at such an end."""
        self.progress.hand_out(zip(map(key_of, messages), ends, strict=True), ends[-1])
        self.position = ends[-1]

    def move_to(self, offset: int) -> None:
        """There is nothing up to an offset; or the queue ends there, since it was cut, or made
        again."""
        if offset < self.position:
            self.progress = Progress(offset)
        else:
            self.progress.hand_out((), offset)
        self.position = offset

    def seek(self, offset: int) -> None:
        """Go on at another offset."""
        self.position = offset
        self.progress = Progress(offset)
        self._restart()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be handed out."""
        return not self._may_run.is_set()

    def pause(self) -> None:
        """Read nothing until `resume`; what is under way is read again then."""
        if not self.is_paused:
            self._may_run = trio.Event()
            self._restart()

    def resume(self) -> None:
        """Go on behind what was handed out."""
        self._may_run.set()

    def _restart(self) -> None:
        self._next = self.position
        self._moves += 1
        if self._scope is not None:
            self._scope.cancel()

    def stop(self) -> None:
        """End the task."""
        self.is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Pull until stopped or cancelled."""
        while not self.is_stopped:
            with trio.CancelScope() as self._scope:
                await self._run()

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            await self._may_run.wait()
            # An answer that was there already when we were moved belongs to the old place.
            number = self._moves
            try:
                batch = await self._pull(number)
                pause_s = PAUSE_S
            except RequestRefused as exc:
                if exc.code in PASSING_CODES:
                    self._log(exc)
                    batch = None
                else:
                    batch = Batch(flow=self, number=number, failure=exc)
            except (ProtocolError, MissingLibrary) as exc:  # trying again would not help
                batch = Batch(flow=self, number=number, failure=exc)
            except (ClientError, RemotingError) as exc:
                self._log(exc)
                batch = None
            if batch is not None:
                if self._is_ordered:
                    await self.progress.reaches(batch.begin)
                await self._batches.send(batch)
            if batch is None or batch.failure is not None:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _pull(self, number: int) -> Batch | None:
        """One pull, and what it amounts to; None when we were moved meanwhile. Raises as
        `Puller.pull`."""
        began = trio.current_time()
        found = await self._puller.pull(
            self.queue,
            self._next,
            self._tags,
            count=COUNT,
            hold_s=self._hold_s,
            commit=lambda: self.told,
        )
        if number != self._moves:
            return None
        if found.status is PullStatus.MOVED:
            self._world.log.warning(
                "client.offset_moved",
                queue=describe(self.queue),
                wanted=self._next,
                next=found.next_offset,
            )
        begin, self._next = self._next, found.next_offset
        if found.messages and begin <= self._next:
            return Batch(
                flow=self,
                number=number,
                messages=found.messages,
                begin=begin,
                ends=_ends(begin, found.messages, self._next),
            )
        if self._next != begin:
            return Batch(flow=self, number=number, begin=begin, next_offset=self._next)
        if trio.current_time() - began < EMPTY_PAUSE_S:
            await trio.sleep(EMPTY_PAUSE_S)
        return Batch(flow=self, number=number, begin=begin, next_offset=begin)

    def _log(self, error: Exception) -> None:
        self._world.log.info("client.pull_failed", queue=describe(self.queue), error=str(error))


def key_of(message: Received) -> Key:
    """A message in its queue."""
    return message.physical_offset, message.queue_offset


def _ends(begin: int, messages: Sequence[Received], end: int) -> tuple[int, ...]:
    """The end behind each message of a batch: behind it where offsets rise as they should, else the
    batch counts as a whole, since only the broker knows where its messages stand."""
    offsets = [message.queue_offset for message in messages]
    if all(one < other for one, other in pairwise((begin - 1, *offsets, end))):
        return (*(offset + 1 for offset in offsets[:-1]), end)
    return (*(begin for _ in offsets[:-1]), end)
