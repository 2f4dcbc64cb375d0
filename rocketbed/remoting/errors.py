"""Errors of requests between two ends of a connection."""

from rocketbed.wire.errors import RocketbedError


class RemotingError(RocketbedError):
    """A request got no answer; whether the peer ran it is unknown."""


class ConnectionLost(RemotingError):
    """The connection ended before the answer came."""


class RequestTimeout(RemotingError):
    """No answer came in time; the connection itself may be intact."""


class NotConnected(RemotingError):
    """The peer could not be reached; it never saw the request."""
