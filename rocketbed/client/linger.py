"""Sends that wait briefly for others to the same place, to go together as one batch."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from rocketbed.client.attempts import NOBODY_TOOK_IT
from rocketbed.client.envelope import Envelope, Envelopes, Item
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Refused, Sent, Unknown
from rocketbed.wire.bodies import MessageQueue

BATCH_BYTES: Final = 32 << 10
"""Largest batch, bytes; the limit of RocketMQ's accumulator."""
ALONE: Final = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG"})
"""Properties by which a broker treats a message specially; it reads only those of the whole
batch."""
OVERHEAD: Final = 32
"""Upper bound of a message's bytes in a batch apart from body and properties."""

Place = tuple[str, MessageQueue | None, str | None, float]
"""Topic, queue, order key and timeout: sends that share these may be batched."""
Deliver = Callable[[Envelope, float], Awaitable[Outcome]]
"""Sends an envelope until a deadline."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A message that waits for its batch."""

    message: Message
    item: Item
    outcome: Outcome | None = None
    error: Exception | None = None
    """Exception of its send, instead of an outcome."""

    @property
    def size(self) -> int:
        """Approximate bytes in a batch."""
        return len(self.item[1].body) + len(self.item[1].properties) + OVERHEAD


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages that will be sent together."""

    deadline: float
    deliver: Deliver
    entries: list[_Entry] = field(default_factory=list)
    size: int = 0
    is_sent: bool = False
    """True once no message may join or leave."""
    has_begun: bool = False
    """True once a broker may have received it."""
    full: trio.Event = field(default_factory=trio.Event)
    done: trio.Event = field(default_factory=trio.Event)


class Linger:
    """Batches the messages of one producer, which have their ids."""

    def __init__(self, envelopes: Envelopes, *, linger_s: float, batch_bytes: int) -> None:
        self._envelopes = envelopes
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._open: dict[Place, _Batch] = {}
        """Batches that further messages may join."""
        self._begun: dict[_Batch, None] = {}
        """Batches whose send has not ended."""

    def takes(self, message: Message, left_s: float) -> bool:
        """True if a message with this much time may wait for others, and another message of its
        size fits in its batch."""
        is_small = 2 * (len(message.body) + OVERHEAD) <= self._batch_bytes
        is_plain = not message.delay_level and not self._envelopes.packs(message)
        is_plain = is_plain and ALONE.isdisjoint(message.properties)
        return is_small and is_plain and 2 * self._linger_s <= left_s

    async def send(
        self,
        message: Message,
        place: Place,
        deliver: Deliver,
        *,
        deadline: float,
        nursery: trio.Nursery,
    ) -> Outcome:
        """Send a message with others. The batch is sent by a task of `nursery`, so that cancelling
        one caller does not end it.

        A message that is cancelled before its batch goes is not sent. Raises `BadMessage`, and
        errors of `deliver`.
        """
        item = self._envelopes.item(message)
        entry = _Entry(message, item)
        batch = self._open.get(place)
        if batch is not None and (
            batch.size + entry.size > self._batch_bytes
            or batch.deadline + self._linger_s < deadline  # the batch has long waited for room
        ):
            batch.full.set()
            batch = None
        if batch is None:
            batch = _Batch(deadline, deliver)
            nursery.start_soon(self._run, place, batch)
            self._open[place] = batch
            self._begun[batch] = None
        batch.entries.append(entry)
        batch.size += entry.size
        try:
            await batch.done.wait()
        except trio.Cancelled:
            if not batch.is_sent:
                batch.entries.remove(entry)
                batch.size -= entry.size
            raise
        if entry.error is not None:
            raise entry.error
        assert entry.outcome is not None
        return entry.outcome

    async def _run(self, place: Place, batch: _Batch) -> None:
        try:
            with trio.move_on_after(self._linger_s):
                await batch.full.wait()
            self._close(place, batch)
            batch.has_begun = True
            await self._send(batch)
        finally:
            self._close(place, batch)
            for entry in batch.entries:
                if entry.outcome is None and entry.error is None:
                    kind, attempts = (Unknown, 1) if batch.has_begun else (Refused, 0)
                    reason = "the producer was closed meanwhile"
                    ids = (entry.item[0],)
                    entry.outcome = kind(
                        reason=reason, code=None, message_ids=ids, attempts=attempts
                    )
            del self._begun[batch]
            batch.done.set()

    async def flush(self) -> None:
        """Send the waiting batches, and wait until they have ended."""
        for batch in list(self._begun):
            batch.full.set()
        for batch in list(self._begun):
            await batch.done.wait()

    def _close(self, place: Place, batch: _Batch) -> None:
        batch.is_sent = True
        if self._open.get(place) is batch:
            del self._open[place]

    async def _send(self, batch: _Batch) -> None:
        entries = batch.entries
        if len(entries) > 1:
            try:
                envelope = self._envelopes.of_items(
                    entries[0].message.topic, [entry.item for entry in entries]
                )
                whole = await batch.deliver(envelope, batch.deadline)
            except (
                Exception
            ) as exc:  # a selector of the program raised; this must not concern other sends
                for entry in entries:
                    entry.error = exc
                return
            if not isinstance(whole, Refused) or whole.code in NOBODY_TOOK_IT:
                _share_out(whole, entries)
                return
        # A message that the broker refuses must not fail the others.
        async with trio.open_nursery() as nursery:
            for entry in entries:
                nursery.start_soon(self._send_alone, batch, entry)

    async def _send_alone(self, batch: _Batch, entry: _Entry) -> None:
        try:
            envelope = self._envelopes.of_one(entry.message)
            entry.outcome = await batch.deliver(envelope, batch.deadline)
        except Exception as exc:
            entry.error = exc


def _share_out(whole: Outcome, entries: Sequence[_Entry]) -> None:
    """Give each message its part of a batch's outcome."""
    for number, entry in enumerate(entries):
        ids = (whole.message_ids[number],)
        if isinstance(whole, Sent):
            entry.outcome = replace(
                whole,
                message_ids=ids,
                offset_ids=whole.offset_ids[number : number + 1],
                queue_offset=whole.queue_offset + number if whole.queue_offset >= 0 else -1,
            )
        else:
            entry.outcome = replace(whole, message_ids=ids)
