"""Which messages of a queue were handed out, to whom, and which of them are dealt with."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Final

import trio

NEVER: Final = 1 << 63
"""Beyond all offsets."""

POLLER: ContextVar[object] = ContextVar("rocketbed_poller")
"""Who polls, where that is not the task."""


def at_once() -> bool:
    """What is given is shown at once."""
    return True


SEEN: ContextVar[Callable[[], bool]] = ContextVar("rocketbed_seen", default=at_once)
"""Whether what is given now has been shown to who polls: what has not is in nobody's hand yet."""


def poller() -> object:
    """Whoever is given messages now: what one has in hand, another one must not commit."""
    return POLLER.get(None) or trio.lowlevel.current_task()


def is_alive(who: object) -> bool:
    """Whether a poller may poll again: a task of trio or asyncio, or a thread."""
    if isinstance(who, trio.lowlevel.Task):
        return getcoroutinestate(who.coro) != CORO_CLOSED
    lives, done = getattr(who, "is_alive", None), getattr(who, "done", None)
    return bool(lives()) if lives else not (done and done())


Key = tuple[int, int]
"""Of a message in its queue: where its record begins, and its queue offset. The offset alone may be
another's too: a RocketMQ broker that lost its power has records that say so."""


class Progress:
    """One queue's reading from an offset on."""

    def __init__(self, offset: int) -> None:
        self._end = offset
        """Behind everything that was handed out."""
        self._changed = trio.Event()
        self._given_up = NEVER
        """Where the first message begins that is left to whoever reads the queue next."""
        self._unfinished: dict[Key, int] = {}
        """Message -> what was the end when it was handed out, which never falls."""

    @property
    def done(self) -> int:
        """Nothing below is left to do: what may be committed."""
        return min(next(iter(self._unfinished.values()), self._end), self._given_up)

    def hand_out(self, messages: Iterable[tuple[Key, int]], end: int) -> None:
        """Messages, each with the end behind it, and then the end behind all of them."""
        for key, behind in messages:
            assert self._end <= behind <= end, (self._end, behind, end)
            self._unfinished[key] = self._end
            self._end = behind
        self._end = end

    def has(self, messages: Iterable[Key]) -> bool:
        """Whether any of these is still to be dealt with."""
        return any(key in self._unfinished for key in messages)

    def finish(self, key: Key) -> None:
        """A message is dealt with; one that is not known makes no difference."""
        self._unfinished.pop(key, None)
        self._tell()

    def give_up(self, key: Key) -> None:
        """A message is not dealt with here."""
        self._given_up = min(self._unfinished.pop(key, NEVER), self._given_up)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def reaches(self, offset: int) -> None:
        """Wait until nothing below an offset is left to do."""
        while self.done < offset:
            await self._changed.wait()

    async def idle(self) -> None:
        """Wait until nothing that was handed out is in anybody's hand."""
        while self._unfinished:
            await self._changed.wait()
