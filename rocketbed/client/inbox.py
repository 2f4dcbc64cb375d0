"""Messages that a consumer has received: batches of its queues, handed out whole or one by one."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from rocketbed.client.connections import CLOSED
from rocketbed.client.errors import ClientError
from rocketbed.client.flow import Batch, key_of
from rocketbed.client.messages import Received
from rocketbed.client.progress import SEEN, Progress, at_once, is_alive, poller
from rocketbed.wire.bodies import MessageQueue

POLLERS_MAX: Final = 128
"""Number of pollers above which those that have ended are forgotten; their messages count as
unfinished."""


@dataclass(frozen=True, slots=True, eq=False)
class _InHand:
    """Messages that a poller has received."""

    progress: Progress
    messages: list[Received]
    batch: Batch
    is_seen: Callable[[], bool] = at_once
    """True once the messages have reached the poller."""

    @property
    def is_current(self) -> bool:
        """True if its queue is still being read from there."""
        flow = self.batch.flow
        return flow.progress is self.progress and not flow.is_stopped

    @property
    def is_open(self) -> bool:
        """True if a message of it is unfinished."""
        return self.progress.has(map(key_of, self.messages))


class Inbox:
    """Receives the batches of all queues and hands their messages out."""

    def __init__(self, *, is_ordered: bool) -> None:
        """`is_ordered`: hand out one message of a queue at a time."""
        self.batches, self._arrivals = trio.open_memory_channel[Batch | None](0)
        """Channel into which flows put batches; None only wakes a waiting call."""
        self._is_ordered = is_ordered
        self._ready: deque[Batch] = deque()
        """Batches with messages to hand out."""
        self._returned: deque[_InHand] = deque()
        """Messages that never reached their caller; they are handed out before all others."""
        self._in_hand: dict[object, list[_InHand]] = {}
        """Messages in hand by poller, since its last call that finished messages; several entries
        if it polls concurrently."""
        self._waiting: list[_InHand] = []
        """Ordered only: messages on which the remaining messages of their batch wait."""
        self._last: dict[MessageQueue, tuple[object, _InHand]] = {}
        """Ordered only: for each queue the poller and the messages handed out last. While those are
        in hand, nothing else of the queue is handed out, wherever the queue has been moved
        since."""
        self._pollers_max = POLLERS_MAX
        self._turn = trio.Lock()
        """Serializes callers: each sees what the previous one has not taken."""

    async def batch(self) -> list[Received]:
        """Wait for the messages of a batch, or those not handed out yet. Raises as `message`."""
        async with self._turn:
            return self._whole(await self._receive())

    def batch_now(self) -> list[Received]:
        """Return the messages of a batch if there is one now, else none."""
        ready = None if self._turn.locked() else self._receive_now()
        return [] if ready is None else self._whole(ready)

    def _whole(self, ready: Batch | _InHand) -> list[Received]:
        if isinstance(ready, _InHand):
            return self._hand_over(ready, len(ready.messages))
        return self._hand_out(ready, 1 if self._is_ordered else len(ready.messages))

    async def message(self) -> Received:
        """Wait for the next message. Raises `RequestRefused` and other `ClientError`, or
        `ProtocolError`, when a broker does not serve a queue; the caller may continue."""
        async with self._turn:
            ready = await self._receive()
            if isinstance(ready, _InHand):
                return self._hand_over(ready, 1)[0]
            return self._hand_out(ready, 1)[0]

    def finish_own(self, *, is_left: bool = False) -> None:
        """Mark the messages that the caller received last as finished, or with `is_left` as left to
        the member that has the queue now."""
        owner = poller()
        entries = self._in_hand.pop(owner, [])
        if unseen := [entry for entry in entries if not entry.is_seen()]:
            self._in_hand[owner] = unseen
        for own in entries:
            if own in unseen:
                continue
            end = own.progress.give_up if is_left else own.progress.finish
            for message in own.messages:
                end(key_of(message))
        self.go_on()

    def go_on(self) -> None:
        """Ordered only: release messages that waited for one that is now finished."""
        waiting = [entry for entry in self._waiting if entry.is_current]
        self._waiting = [entry for entry in waiting if entry.is_open]
        free = [entry.batch for entry in waiting if not entry.is_open]
        self._ready.extend(free)
        if free or (self._is_ordered and self._ready):
            self.wake()

    def finish(self, message: Received) -> None:
        """Ordered only: mark a message as finished that may have been handed out before its queue
        was moved."""
        _, last = self._last.get(message.queue, (None, None))
        if last is not None:
            last.progress.finish(key_of(message))

    def give_back(self, messages: Received | list[Received]) -> None:
        """Take back messages that did not reach the caller."""
        own = self._in_hand.get(poller(), [])
        for entry in own:
            if entry.messages is messages or entry.messages[0] is messages:
                own.remove(entry)
                self._returned.append(entry)
                self.wake()
                return

    def close(self) -> None:
        """Close the inbox; waiting calls raise."""
        self.batches.close()

    def wake(self) -> None:
        """Wake a waiting call, which looks for messages again."""
        with suppress(trio.WouldBlock, trio.ClosedResourceError):  # no call waits
            self.batches.send_nowait(None)

    async def _receive(self) -> Batch | _InHand:
        """Wait for a batch with messages to hand out, or for messages that were given back."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            ready = self._next_ready()
            if ready is not None:
                return ready
            try:
                batch = await self._arrivals.receive()
            except trio.EndOfChannel:
                raise ClientError(CLOSED) from None
            self._arrived(batch)

    def _receive_now(self) -> Batch | _InHand | None:
        while True:
            ready = self._next_ready()
            if ready is not None:
                return ready
            try:
                self._arrived(self._arrivals.receive_nowait())
            except trio.WouldBlock:
                return None
            except trio.EndOfChannel:
                raise ClientError(CLOSED) from None

    def _next_ready(self) -> Batch | _InHand | None:
        if self._returned:
            self._returned = deque(entry for entry in self._returned if entry.is_current)
        for returned in self._returned:
            if not returned.batch.flow.is_paused:
                return returned
        while self._ready and not self._ready[0].flow.is_current(self._ready[0]):
            self._ready.popleft()
        if not self._is_ordered:
            return self._ready[0] if self._ready else None
        free = (batch for batch in self._ready if not self._is_in_hand(batch.flow.queue))
        return next((batch for batch in free if batch.flow.is_current(batch)), None)

    def _is_in_hand(self, queue: MessageQueue) -> bool:
        """True if a live poller has a message of an ordered queue in hand."""
        owner, last = self._last.get(queue, (None, None))
        if last is None or (
            last.is_open and is_alive(owner) and last in self._in_hand.get(owner, ())
        ):
            return last is not None
        del self._last[queue]
        return False

    def _arrived(self, batch: Batch | None) -> None:
        if batch is None or not batch.flow.is_current(batch):
            return
        if batch.failure is not None:
            raise batch.failure
        if batch.messages:
            self._ready.append(batch)
        else:
            batch.flow.move_to(batch.next_offset)

    def _hand_out(self, batch: Batch, limit: int) -> list[Received]:
        begin, end = batch.handed_out, min(batch.handed_out + limit, len(batch.messages))
        messages, batch.handed_out = list(batch.messages[begin:end]), end
        if end == len(batch.messages) or self._is_ordered:
            self._ready.remove(batch)
        batch.flow.hand_out(messages, batch.ends[begin:end])
        in_hand = _InHand(batch.flow.progress, messages, batch, SEEN.get())
        if self._is_ordered and end < len(batch.messages):
            self._waiting.append(in_hand)
        self._give(in_hand)
        return messages

    def _hand_over(self, returned: _InHand, limit: int) -> list[Received]:
        """Hand out returned messages again; they are already counted as handed out."""
        messages, remaining = returned.messages[:limit], returned.messages[limit:]
        self._returned.remove(returned)
        if remaining:
            self._returned.appendleft(replace(returned, messages=remaining))
        self._give(replace(returned, messages=messages, is_seen=SEEN.get()))
        return messages

    def _give(self, entry: _InHand) -> None:
        self._in_hand.setdefault(poller(), []).append(entry)
        if self._is_ordered:
            self._last[entry.batch.flow.queue] = poller(), entry
        if len(self._in_hand) > self._pollers_max:
            self._in_hand = {owner: own for owner, own in self._in_hand.items() if is_alive(owner)}
            self._pollers_max = max(2 * len(self._in_hand), POLLERS_MAX)
