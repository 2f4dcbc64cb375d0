"""What a client is told when something cannot be done at all.

How a send ended is not an error but an `Outcome`; errors are for wrong use, for a cluster that
cannot be reached, and for requests that a peer refused. That a connection broke or an answer did
not come is told by `rocketbed.remoting.errors`.
"""

from typing import ClassVar

from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import RocketbedError


class ClientError(RocketbedError):
    """Root of the client's errors."""


class BadMessage(ClientError):
    """A message that no broker would take, or a wrong argument; nothing was sent."""

    response_code: ClassVar[int] = ResponseCode.MESSAGE_ILLEGAL


class NoNameserver(ClientError):
    """No nameserver answered; the text has what each of them did."""


class NoRoute(ClientError):
    """The nameservers know no broker for the topic."""

    response_code: ClassVar[int] = ResponseCode.TOPIC_NOT_EXIST


class NoBroker(ClientError):
    """The topic is routed, but no broker can be asked for this now."""


class RequestRefused(ClientError):
    """A peer answered with a code that is not success."""

    def __init__(self, what: str, peer: str, code: int, remark: str | None) -> None:
        reason = remark or "no reason given"
        super().__init__(f"{what}: {peer} answered {code_name(code)}: {reason}")
        self.code = code
        """RocketMQ's response code."""
        self.remark = remark or ""


class NotFound(ClientError):
    """No such message."""

    response_code: ClassVar[int] = ResponseCode.QUERY_NOT_FOUND


def code_name(code: int) -> str:
    """`17 (TOPIC_NOT_EXIST)`, or the bare number of an unknown code."""
    try:
        return f"{code} ({ResponseCode(code).name})"
    except ValueError:
        return str(code)
