"""Collect the problems of a question to a cluster while it is retried, for the final error."""

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
"""Minimum timeout of one request; a retry waits twice as long."""
CHARACTERS_MAX: Final = 200
TIMEOUT_S: Final[ContextVar[float]] = ContextVar("rocketbed_timeout", default=ANSWER_S)
"""Timeout of one request of a question."""
OTHERS_MAX: Final = 4
"""Maximum number of earlier problems in an error, besides the last one."""
TROUBLES: Final[ContextVar[list[str]]] = ContextVar("rocketbed_troubles")
"""Problems of a question and of its sub-questions; the newest last."""


async def send_request(
    session: Session, address: Address, command: Command, *, timeout_s: float | None = None
) -> Command:
    """Send a request within the question's `TIMEOUT_S` and return the answer. Raises
    `RemotingError`. Records a missing answer as a problem, also when cancelled."""
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
    """Raise `RemotingError` for a member's answer that cannot be decoded in the block: another
    member may work."""
    try:
        yield
    except ProtocolError as exc:
        trouble = f"{address[0]}:{address[1]} gives an answer that cannot be read: {exc}"
        TROUBLES.get([]).append(trouble)
        raise RemotingError(trouble) from exc


def before_that(troubles: Sequence[str]) -> str:
    """Describe the problems that differ from the last one, newest first; empty if there are
    none."""
    texts = [_shortly(troubles[-1])]
    for trouble in map(_shortly, reversed(troubles)):
        if not any(_is_in(trouble, other) or _is_in(other, trouble) for other in texts):
            texts.append(trouble)
    return "; ".join(texts[1 : OTHERS_MAX + 1])


def _is_in(trouble: str, earlier: str) -> bool:
    """True if `earlier` names the same problem, whatever the request was."""
    text = re.escape(trouble.partition(" to request ")[0])
    return re.search(rf"{text}(?!\d)", earlier) is not None


def _shortly(trouble: str) -> str:
    """Shorten a problem, without the waiting time, which differs between retries."""
    return shorten(trouble.partition(" within ")[0], CHARACTERS_MAX, placeholder="...")
