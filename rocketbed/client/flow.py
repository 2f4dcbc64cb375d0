"""Continuous reading of one queue: a task that pulls and hands batches over, at most one ahead.

Batches of all queues go through one channel without a buffer, so a program that polls slowly also
stops the pulls. `seek` invalidates pulls under way, whose batches are recognized by their number.
"""

from collections.abc import Callable, Sequence
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
"""Most messages of one pull; brokers send no more by default."""
PAUSE_S: Final = 0.05
"""Pause after a failed pull, seconds; it doubles up to `PAUSE_MAX_S`."""
PAUSE_MAX_S: Final = 1.0
EMPTY_PAUSE_S: Final = 0.05
"""Pause, seconds, after an empty answer that came at once: from a slave that redirects the client,
or a broker with too many long polls."""

PASSING_CODES: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    )
)
"""Refusals that are temporary, so that the pull is repeated (wire.md 11, trap 17)."""
WITHDRAWN_CODES: Final = frozenset(
    (ResponseCode.INVALID_PARAMETER, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION)
)
"""Refusals of a queue that an operator may have withdrawn: by fewer queues, another permission, or
a deletion of the topic."""
REFUSED_S: Final = 5.0
"""Time, seconds, in which such a queue leaves the route; then the program gets the refusal."""


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """Prefetched messages of one queue, or the error that stopped the pulls."""

    flow: "Flow"
    number: int
    """Number of moves (`seek`, `pause` ...) of the flow before this was pulled."""
    messages: tuple[Received, ...] = ()
    ends: tuple[int, ...] = ()
    """Committable offset of the queue once each of the messages, and all before it, are
    finished."""
    begin: int = 0
    """Offset at which it was pulled."""
    next_offset: int = 0
    """Offset at which to continue if there are no messages."""
    failure: ClientError | ProtocolError | None = None
    handed_out: int = 0
    """Number of messages that the program has received."""


class Flow:
    """Reader of one queue."""

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
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        """`is_ordered`: hand over a batch only when all messages before it are finished.
        `on_refused`: called when the queue may have been withdrawn; None: such a refusal is the
        program's at once."""
        self.queue = queue
        self.position = offset
        """Offset after the messages that were handed out."""
        self.progress = Progress(offset)
        """Finished and unfinished messages among them; replaced at each move."""
        self.committed: int | None = None
        """Offset whose commit the broker has confirmed."""
        self.reported: int | None = None
        """Group's position that pulls report to the broker: the latest commit, confirmed or under
        way, since a pull with an older one would take the commit back."""
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
        self.refused_code: int | None = None
        """Code by which the broker refuses the queue now, if it may have been withdrawn."""
        self._refused_at_s = 0.0
        self._on_refused = on_refused
        self._scope: trio.CancelScope | None = None

    def is_current(self, batch: Batch) -> bool:
        """True if a batch was pulled after the last move."""
        return batch.number == self._moves and not self.is_stopped

    def hand_out(self, messages: Sequence[Received], ends: Sequence[int]) -> None:
        """Record that the program receives these messages; `ends` are the queue's offsets after
        each."""
        self.progress.hand_out(zip(map(key_of, messages), ends, strict=True), ends[-1])
        self.position = ends[-1]

    def move_to(self, offset: int) -> None:
        """Skip to an offset: there are no messages before it, or the queue ends there because it
        was truncated or recreated."""
        if offset < self.position:
            self.progress = Progress(offset)
        else:
            self.progress.hand_out((), offset)
        self.position = offset

    def seek(self, offset: int) -> None:
        """Continue at another offset."""
        self.position = offset
        self.progress = Progress(offset)
        self._restart()

    @property
    def is_paused(self) -> bool:
        """True if no messages are to be handed out."""
        return not self._may_run.is_set()

    def pause(self) -> None:
        """Stop reading until `resume`, which reads again what is being pulled now."""
        if not self.is_paused:
            self._may_run = trio.Event()
            self._restart()

    def resume(self) -> None:
        """Continue after the messages that were handed out."""
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
            # An answer that had arrived before a move belongs to the old offset.
            number = self._moves
            try:
                batch = await self._pull(number)
                pause_s = PAUSE_S
                self.refused_code = None
            except RequestRefused as exc:
                if exc.code in PASSING_CODES or self._may_leave(exc.code):
                    self._log(exc)
                    batch = None
                else:
                    batch = Batch(flow=self, number=number, failure=exc)
            except (ProtocolError, MissingLibrary) as exc:  # a retry would not help
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

    def _may_leave(self, code: int) -> bool:
        """True if the queue was refused a short time ago, and may leave the route."""
        if self._on_refused is None or code not in WITHDRAWN_CODES:
            return False
        if self.refused_code is None:
            self._refused_at_s = trio.current_time()
        self.refused_code = code
        may_leave = trio.current_time() < self._refused_at_s + REFUSED_S
        if may_leave:
            self._on_refused()  # each time: the broker may change before the route does
        return may_leave

    async def _pull(self, number: int) -> Batch | None:
        """Pull once and return the batch; None if the flow was moved meanwhile. Raises as
        `Puller.pull`."""
        began = trio.current_time()
        pulled = await self._puller.pull(
            self.queue,
            self._next,
            self._tags,
            count=COUNT,
            hold_s=self._hold_s,
            commit=lambda: self.reported,
        )
        if number != self._moves:
            return None
        if pulled.status is PullStatus.MOVED:
            self._world.log.warning(
                "client.offset_moved",
                queue=describe(self.queue),
                wanted=self._next,
                next=pulled.next_offset,
            )
        begin, self._next = self._next, pulled.next_offset
        if pulled.messages and begin <= self._next:
            return Batch(
                flow=self,
                number=number,
                messages=pulled.messages,
                begin=begin,
                ends=_ends(begin, pulled.messages, self._next),
            )
        if self._next != begin:
            return Batch(flow=self, number=number, begin=begin, next_offset=self._next)
        if trio.current_time() - began < EMPTY_PAUSE_S:
            await trio.sleep(EMPTY_PAUSE_S)
        return Batch(flow=self, number=number, begin=begin, next_offset=begin)

    def _log(self, error: Exception) -> None:
        self._world.log.info("client.pull_failed", queue=describe(self.queue), error=str(error))


def key_of(message: Received) -> Key:
    """Return a key that identifies a message in its queue."""
    return message.physical_offset, message.queue_offset


def _ends(begin: int, messages: Sequence[Received], end: int) -> tuple[int, ...]:
    """Return the queue's offset after each message of a batch: the next offset if offsets rise.
    Otherwise the batch only counts as a whole, since only the broker knows its messages' places."""
    offsets = [message.queue_offset for message in messages]
    if all(before < after for before, after in pairwise((begin - 1, *offsets, end))):
        return (*(offset + 1 for offset in offsets[:-1]), end)
    return (*(begin for _ in offsets[:-1]), end)
