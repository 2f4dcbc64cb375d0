"""Progress in a queue: messages handed out, their pollers, and which of them are finished."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Final

import trio

NEVER: Final = 1 << 63
"""Larger than every offset."""

POLLER: ContextVar[object] = ContextVar("rocketbed_poller")
"""The poller, if that is not the current task."""


def at_once() -> bool:
    """Return True: messages reach a poller of this thread as soon as they are returned."""
    return True


SEEN: ContextVar[Callable[[], bool]] = ContextVar("rocketbed_seen", default=at_once)
"""Function that tells if the messages being handed out have reached the poller; until then they are
not in its hand."""


def poller() -> object:
    """Return the poller that receives messages now. Its messages in hand must not be committed by
    another poller."""
    return POLLER.get(None) or trio.lowlevel.current_task()


def is_alive(poller: object) -> bool:
    """True if a poller may poll again: a task of trio or asyncio, or a thread."""
    if isinstance(poller, trio.lowlevel.Task):
        return getcoroutinestate(poller.coro) != CORO_CLOSED
    lives, done = getattr(poller, "is_alive", None), getattr(poller, "done", None)
    return bool(lives()) if lives else not (done and done())


Key = tuple[int, int]
"""Start of a message's record, and its queue offset. The offset alone is not unique: a RocketMQ
broker that lost its power has repeated offsets."""


class Progress:
    """Progress of reading one queue from an offset on."""

    def __init__(self, offset: int) -> None:
        self._end = offset
        """Offset after all messages handed out."""
        self._changed = trio.Event()
        self._given_up = NEVER
        """Start of the first message that is left to the queue's next reader."""
        self._unfinished: dict[Key, int] = {}
        """Unfinished message -> value of `_end` when it was handed out, which never falls."""

    @property
    def done(self) -> int:
        """Offset that may be committed: every message below it is finished."""
        return min(next(iter(self._unfinished.values()), self._end), self._given_up)

    def hand_out(self, messages: Iterable[tuple[Key, int]], end: int) -> None:
        """Record messages as handed out, each with the offset after it; `end` is the offset after
        all of them."""
        for key, message_end in messages:
            assert self._end <= message_end <= end, (self._end, message_end, end)
            self._unfinished[key] = self._end
            self._end = message_end
        self._end = end

    def has(self, messages: Iterable[Key]) -> bool:
        """True if any of these messages is unfinished."""
        return any(key in self._unfinished for key in messages)

    def finish(self, key: Key) -> None:
        """Mark a message as finished; an unknown one is ignored."""
        self._unfinished.pop(key, None)
        self._tell()

    def give_up(self, key: Key) -> None:
        """Record that a message will not be finished here."""
        self._given_up = min(self._unfinished.pop(key, NEVER), self._given_up)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def reaches(self, offset: int) -> None:
        """Wait until every message below an offset is finished."""
        while self.done < offset:
            await self._changed.wait()

    async def idle(self) -> None:
        """Wait until no message is in hand."""
        while self._unfinished:
            await self._changed.wait()
