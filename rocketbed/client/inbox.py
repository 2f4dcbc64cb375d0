"""What a consumer has received: batches of its queues, handed out whole or message by message."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.client.flow import Batch, key_of
from rocketbed.client.messages import Received
from rocketbed.client.progress import Progress, poller

POLLERS_MAX: Final = 1000
"""What tasks that ended were given is remembered for so many; it is not dealt with."""


@dataclass(frozen=True, slots=True)
class _InHand:
    """What somebody was given."""

    progress: Progress
    messages: list[Received]
    batch: Batch


class Inbox:
    """Takes batches from the flows of all queues."""

    def __init__(self, *, is_ordered: bool) -> None:
        """`is_ordered`: of each queue one message is handed out at a time."""
        self.batches, self._arrivals = trio.open_memory_channel[Batch | None](0)
        """Where flows put theirs; None only wakes who waits for one."""
        self._is_ordered = is_ordered
        self._ready: deque[Batch] = deque()
        """Those of which something is left to hand out."""
        self._in_hand: dict[object, _InHand] = {}
        """By who polls, what it was given last."""

    async def batch(self) -> list[Received]:
        """The messages of a batch, or what is left of it. Raises as `message`."""
        found = await self._receive()
        return self._hand_out(found, 1 if self._is_ordered else len(found.messages))

    async def message(self) -> Received:
        """The next message. Raises `RequestRefused` and other `ClientError`, or `ProtocolError`,
        where a broker does not serve a queue; one may go on."""
        return self._hand_out(await self._receive(), 1)[0]

    def finish_own(self, *, is_left: bool = False) -> None:
        """What our caller was given last is dealt with; or `is_left` to the member that has its
        queue now."""
        own = self._in_hand.pop(poller(), None)
        if own is None:
            return
        end = own.progress.give_up if is_left else own.progress.finish
        for message in own.messages:
            end(key_of(message))
        batch = own.batch
        if batch.given < len(batch.messages) and self._is_ordered:
            self._ready.append(batch)
            with suppress(trio.WouldBlock):  # nobody waits
                self.batches.send_nowait(None)

    async def _receive(self) -> Batch:
        """A batch of which something is left to hand out."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while self._ready and not self._ready[0].flow.is_current(self._ready[0]):
                self._ready.popleft()
            if self._ready:
                return self._ready[0]
            batch = await self._arrivals.receive()
            if batch is None or not batch.flow.is_current(batch):
                continue
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
        self._in_hand[poller()] = _InHand(batch.flow.progress, given, batch)
        if len(self._in_hand) > POLLERS_MAX:
            del self._in_hand[next(iter(self._in_hand))]
        return given
