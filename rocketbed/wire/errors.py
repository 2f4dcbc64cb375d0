"""The common base of all errors, and errors of the protocol itself.

Each folder adds a branch in its own code (`StoreError`, `ReplicationError`, `RoutingError`,
`ClientError`); each class has the RocketMQ response code with which a peer is answered.
"""

from collections.abc import Iterator
from typing import ClassVar


class RocketbedError(Exception):
    """Base of all errors that this project raises on purpose."""

    response_code: ClassVar[int] = 1
    """RocketMQ's response code for a peer that caused the error (1: SYSTEM_ERROR)."""


class ProtocolError(RocketbedError):
    """Bytes or fields that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """The caller asked to send something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids; its connection is closed."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, of groups in it too; of any other error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
