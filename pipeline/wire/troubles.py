"""What was in the way of who asks a cluster until there is an answer, for the error in the end."""

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
"""For one request; then it is tried again, a pull twice as long."""
CHARACTERS_MAX: Final = 200
TROUBLES: Final[ContextVar[list[str]]] = ContextVar("rocketbed_troubles")
"""Of one question, and of those that it leads to; the newest last."""


async def asked(
    session: Session, address: Address, command: Command, *, timeout_s: float = ANSWER_S
) -> Command:
    """A member's answer. Raises `RemotingError`. Where none came that is noted, also if nobody
    waits for it any longer."""
    troubles = TROUBLES.get([])
    try:
        return await session.ask(address, command, timeout_s=timeout_s)
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
    """The newest trouble that is not the last one, in a few words; or nothing."""
    last, what = _shortly(troubles[-1]), _asked_what(troubles[-1])
    others = [
        one for one in map(_shortly, troubles) if _asked_what(one) not in last and what not in one
    ]
    return others[-1] if others else ""


def _asked_what(trouble: str) -> str:
    """Without what was asked for: a member that hangs gives no answer to anything."""
    return _shortly(trouble).partition(" to request ")[0]


def _shortly(trouble: str) -> str:
    """Without how long was waited: that is longer from time to time."""
    return shorten(trouble.partition(" within ")[0], CHARACTERS_MAX, placeholder="...")
