"""Errors of the client.

The result of a send is an `Outcome`, not an error. Errors are for wrong use, for a cluster that
cannot be reached, and for requests that a peer refused. Broken connections and missing responses
are in `rocketbed.remoting.errors`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import LocalProtocolError, ProtocolError, RocketbedError


class ClientError(RocketbedError):
    """Root of the client's errors."""


class BadMessage(ClientError):
    """A message that no broker would accept, or an invalid argument; nothing was sent."""

    response_code: ClassVar[int] = ResponseCode.MESSAGE_ILLEGAL


class NoNameserver(ClientError):
    """No nameserver answered; the text lists the failure of each."""


class NoRoute(ClientError):
    """No nameserver has a route for the topic."""

    response_code: ClassVar[int] = ResponseCode.TOPIC_NOT_EXIST


class NoBroker(ClientError):
    """The topic has a route, but no broker can serve the request now."""


class RequestRefused(ClientError):
    """A peer answered with an error code."""

    def __init__(self, what: str, peer: str, code: int, remark: str | None) -> None:
        reason = remark or "no reason given"
        super().__init__(f"{what}: {peer} answered {code_name(code)}: {reason}")
        self.code = code
        """RocketMQ's response code."""
        self.remark = remark or ""


class MissingLibrary(ClientError):
    """A message can be read only with a library that is not installed; the text names it."""


class NotFound(ClientError):
    """No such message, or no such group."""

    response_code: ClassVar[int] = ResponseCode.QUERY_NOT_FOUND


class NotSent(ClientError):
    """A send did not end as `Sent`; raised by `raise_for_outcome`."""

    def __init__(self, reason: str, code: int | None, message_ids: tuple[str, ...]) -> None:
        super().__init__(reason)
        self.code = code
        """RocketMQ's response code; None without an answer."""
        self.message_ids = message_ids


class SendRefused(NotSent):
    """The message is not stored and will not be."""


class SendUnknown(NotSent):
    """The message may be stored, now or later."""


@contextmanager
def reading(action: str, broker: str) -> Iterator[None]:
    """Turn errors in reading a broker's answer inside the block into `ClientError`."""
    try:
        yield
    except ProtocolError as exc:
        reason = f"broker {broker} gives an answer that cannot be read: {exc}"
        raise ClientError(f"{action}: {reason}") from exc


@contextmanager
def writing() -> Iterator[None]:
    """Turn errors in writing a request inside the block into `BadMessage`: it contains text that
    UTF-8 cannot hold, or too much."""
    try:
        yield
    except (LocalProtocolError, UnicodeEncodeError) as exc:
        raise BadMessage(f"the request cannot be written: {exc}") from exc


def code_name(code: int) -> str:
    """Return `17 (TOPIC_NOT_EXIST)`, or the bare number of an unknown code."""
    try:
        return f"{code} ({ResponseCode(code).name})"
    except ValueError:
        return str(code)
