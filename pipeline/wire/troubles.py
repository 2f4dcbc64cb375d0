"""What was in the way of who asks a cluster until there is an answer, for the error in the end."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import shorten
from typing import Final

import trio

from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import Command
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Address

ANSWER_S: Final = 5.0
"""For one request, at least; then it is tried again, twice as long."""
CHARACTERS_MAX: Final = 200
TIMEOUT_S: Final[ContextVar[float]] = ContextVar("rocketbed_timeout", default=ANSWER_S)
"""For one request of a question."""
OTHERS_MAX: Final = 4
"""Troubles that are told beside the last one."""
TROUBLES: Final[ContextVar[list[str]]] = ContextVar("rocketbed_troubles")
"""Of one question, and of those that it leads to; the newest last."""


async def asked(
    session: Session, address: Address, command: Command, *, timeout_s: float | None = None
) -> Command:
    """A member's answer, within the question's `TIMEOUT_S`. Raises `RemotingError`. Where none came
    that is noted, also if nobody waits for it any longer."""
    troubles = TROUBLES.get([])
    try:
        return await session.ask(address, command, timeout_s=timeout_s or TIMEOUT_S.get())
    except RemotingError as exc:
        troubles.append(str(exc))
        raise
    except trio.Cancelled:
        troubles.append(f"no answer from {address[0]}:{address[1]} to request {command.code}")
        raise


@contextmanager
def reading(address: Address) -> Iterator[None]:
    """Within it a member's answer is read. Raises `RemotingError` for one that cannot be: another
    member may be well."""
    try:
        yield
    except ProtocolError as exc:
        trouble = f"{address[0]}:{address[1]} gives an answer that cannot be read: {exc}"
        TROUBLES.get([]).append(trouble)
        raise RemotingError(trouble) from exc


def before_that(troubles: Sequence[str]) -> str:
    """Troubles that are others than the last one, in a few words, the newest first; or nothing."""
    told = [_shortly(troubles[-1])]
    for one in map(_shortly, reversed(troubles)):
        if not any(_is_in(one, other) or _is_in(other, one) for other in told):
            told.append(one)
    return "; ".join(told[1 : OTHERS_MAX + 1])


def _is_in(trouble: str, other: str) -> bool:
    """Whatever was asked for: a member that hangs gives no answer to anything."""
    what = re.escape(trouble.partition(" to request ")[0])
    return re.search(rf"{what}(?!\d)", other) is not None


def _shortly(trouble: str) -> str:
    """Without how long was waited: that is longer from time to time."""
    return shorten(trouble.partition(" within ")[0], CHARACTERS_MAX, placeholder="...")
