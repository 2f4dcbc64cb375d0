"""Errors of a nameserver."""

from typing import ClassVar

from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import RocketbedError


class RoutingError(RocketbedError):
    """Base of the nameserver's errors."""


class RegistrationRefused(RoutingError):
    """A broker's registration that would leave the tables wrong."""


class TopicNotRouted(RoutingError):
    """No broker serves the topic."""

    response_code: ClassVar[int] = ResponseCode.TOPIC_NOT_EXIST


class ConfigNotFound(RoutingError):
    """No such entry in the key-value table."""

    response_code: ClassVar[int] = ResponseCode.QUERY_NOT_FOUND
