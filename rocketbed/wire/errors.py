"""The one root of all errors, and those of the protocol itself.

Each folder adds a branch beside its own code (`StoreError`, `ReplicationError`, `RoutingError`,
`ClientError`); each class carries the RocketMQ response code that a peer is answered with.
"""

from typing import ClassVar


class RocketbedError(Exception):
    """Root of everything this project raises on purpose."""

    response_code: ClassVar[int] = 1
    """RocketMQ's response code for a peer that caused it (1: SYSTEM_ERROR)."""


class ProtocolError(RocketbedError):
    """Bytes or fields that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids; its connection is closed."""
