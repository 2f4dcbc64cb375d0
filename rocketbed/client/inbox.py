"""What a consumer has received: batches of its queues, handed out whole or message by message."""

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
"""Above so many, those who have ended are forgotten; what they were given is not dealt with."""


@dataclass(frozen=True, slots=True, eq=False)
class _InHand:
    """What somebody was given."""

    progress: Progress
    messages: list[Received]
    batch: Batch
    is_seen: Callable[[], bool] = at_once
    """Whether it has reached them."""

    @property
    def is_current(self) -> bool:
        """Whether its queue is still read on from there."""
        flow = self.batch.flow
        return flow.progress is self.progress and not flow.is_stopped

    @property
    def is_open(self) -> bool:
        """Whether it is still to be dealt with."""
        return self.progress.has(map(key_of, self.messages))


class Inbox:
    """Takes batches from the flows of all queues."""

    def __init__(self, *, is_ordered: bool) -> None:
        """`is_ordered`: of each queue one message is handed out at a time."""
        self.batches, self._arrivals = trio.open_memory_channel[Batch | None](0)
        """Where flows put theirs; None only wakes who waits for one."""
        self._is_ordered = is_ordered
        self._ready: deque[Batch] = deque()
        """Those of which something is left to hand out."""
        self._returned: deque[_InHand] = deque()
        """What never reached who asked for it; to be handed out before all else."""
        self._in_hand: dict[object, list[_InHand]] = {}
        """By who polls, what it was given since it said that it is done: by several calls where
        it makes them at once."""
        self._held: list[_InHand] = []
        """With order: messages of whose batch the rest waits until they are dealt with."""
        self._last: dict[MessageQueue, tuple[object, _InHand]] = {}
        """With order: of each queue what was handed out last, and to whom; wherever the queue was
        sent since, nothing else of it is handed out while that is in a hand."""
        self._pollers_max = POLLERS_MAX
        self._turn = trio.Lock()
        """Of those who ask: each sees what the one before has left."""

    async def batch(self) -> list[Received]:
        """The messages of a batch, or what is left of it. Raises as `message`."""
        async with self._turn:
            return self._whole(await self._receive())

    def batch_now(self) -> list[Received]:
        """The same if there is one now, else nothing."""
        found = None if self._turn.locked() else self._receive_now()
        return [] if found is None else self._whole(found)

    def _whole(self, found: Batch | _InHand) -> list[Received]:
        if isinstance(found, _InHand):
            return self._hand_over(found, len(found.messages))
        return self._hand_out(found, 1 if self._is_ordered else len(found.messages))

    async def message(self) -> Received:
        """The next message. Raises `RequestRefused` and other `ClientError`, or `ProtocolError`,
        where a broker does not serve a queue; one may go on."""
        async with self._turn:
            found = await self._receive()
            if isinstance(found, _InHand):
                return self._hand_over(found, 1)[0]
            return self._hand_out(found, 1)[0]

    def finish_own(self, *, is_left: bool = False) -> None:
        """What our caller was given last is dealt with; or `is_left` to the member that has its
        queue now."""
        who = poller()
        given = self._in_hand.pop(who, [])
        if unseen := [one for one in given if not one.is_seen()]:
            self._in_hand[who] = unseen
        for own in given:
            if own in unseen:
                continue
            end = own.progress.give_up if is_left else own.progress.finish
            for message in own.messages:
                end(key_of(message))
        self.go_on()

    def go_on(self) -> None:
        """Something was dealt with: with order, what waited for it can be handed out."""
        held = [one for one in self._held if one.is_current]
        self._held = [one for one in held if one.is_open]
        free = [one.batch for one in held if not one.is_open]
        self._ready.extend(free)
        if free or (self._is_ordered and self._ready):
            self.wake()

    def finish(self, message: Received) -> None:
        """With order: a message is dealt with that may have been handed out before its queue was
        sent elsewhere."""
        _, last = self._last.get(message.queue, (None, None))
        if last is not None:
            last.progress.finish(key_of(message))

    def give_back(self, given: Received | list[Received]) -> None:
        """What a call of our caller was given did not reach it."""
        own = self._in_hand.get(poller(), [])
        for one in own:
            if one.messages is given or one.messages[0] is given:
                own.remove(one)
                self._returned.append(one)
                self.wake()
                return

    def close(self) -> None:
        """Nothing will come any more: who waits is told so."""
        self.batches.close()

    def wake(self) -> None:
        """Something may be there for who waits."""
        with suppress(trio.WouldBlock, trio.ClosedResourceError):  # nobody waits
            self.batches.send_nowait(None)

    async def _receive(self) -> Batch | _InHand:
        """A batch of which something is left to hand out, or what was given back."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            found = self._there()
            if found is not None:
                return found
            try:
                batch = await self._arrivals.receive()
            except trio.EndOfChannel:
                raise ClientError(CLOSED) from None
            self._arrived(batch)

    def _receive_now(self) -> Batch | _InHand | None:
        while True:
            found = self._there()
            if found is not None:
                return found
            try:
                self._arrived(self._arrivals.receive_nowait())
            except trio.WouldBlock:
                return None
            except trio.EndOfChannel:
                raise ClientError(CLOSED) from None

    def _there(self) -> Batch | _InHand | None:
        if self._returned:
            self._returned = deque(one for one in self._returned if one.is_current)
        for returned in self._returned:
            if not returned.batch.flow.is_paused:
                return returned
        while self._ready and not self._ready[0].flow.is_current(self._ready[0]):
            self._ready.popleft()
        if not self._is_ordered:
            return self._ready[0] if self._ready else None
        free = (one for one in self._ready if not self._is_in_hand(one.flow.queue))
        return next((one for one in free if one.flow.is_current(one)), None)

    def _is_in_hand(self, queue: MessageQueue) -> bool:
        """Whether somebody who lives has a message of an ordered queue."""
        who, last = self._last.get(queue, (None, None))
        if last is None or (last.is_open and is_alive(who) and last in self._in_hand.get(who, ())):
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

    def _hand_out(self, batch: Batch, most: int) -> list[Received]:
        begin, end = batch.given, min(batch.given + most, len(batch.messages))
        given, batch.given = list(batch.messages[begin:end]), end
        if end == len(batch.messages) or self._is_ordered:
            self._ready.remove(batch)
        batch.flow.hand_out(given, batch.ends[begin:end])
        in_hand = _InHand(batch.flow.progress, given, batch, SEEN.get())
        if self._is_ordered and end < len(batch.messages):
            self._held.append(in_hand)
        self._give(in_hand)
        return given

    def _hand_over(self, returned: _InHand, most: int) -> list[Received]:
        """What was handed out before counts already."""
        given, rest = returned.messages[:most], returned.messages[most:]
        self._returned.remove(returned)
        if rest:
            self._returned.appendleft(replace(returned, messages=rest))
        self._give(replace(returned, messages=given, is_seen=SEEN.get()))
        return given

    def _give(self, what: _InHand) -> None:
        self._in_hand.setdefault(poller(), []).append(what)
        if self._is_ordered:
            self._last[what.batch.flow.queue] = poller(), what
        if len(self._in_hand) > self._pollers_max:
            self._in_hand = {who: own for who, own in self._in_hand.items() if is_alive(who)}
            self._pollers_max = max(2 * len(self._in_hand), POLLERS_MAX)
