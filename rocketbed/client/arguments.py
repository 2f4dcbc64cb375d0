"""Checks of the arguments that a program gives to the client; errors name the argument."""

import math
from collections.abc import Callable
from typing import Any

from rocketbed.client.errors import BadMessage
from rocketbed.wire.bodies import MessageQueue

OFFSET_MAX = (1 << 63) - 1
RETRIES_MAX = (1 << 31) - 1
"""Largest number that the request's field holds."""


def check_queue(queue: MessageQueue) -> None:
    """Raise `BadMessage` for a value that is no queue, such as a queue number alone."""
    if not isinstance(queue, MessageQueue):
        raise BadMessage(f"a queue must be one of those that `queues` gives: {queue!r}")


def check_offset(offset: int) -> None:
    """Raise `BadMessage` for a value that is no offset of a queue."""
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise BadMessage(f"an offset must be a number from 0 on: {offset!r}")


def check_time(time_ms: int) -> None:
    """Raise `BadMessage` for a value that is no Unix time in milliseconds."""
    if type(time_ms) is not int or not 0 <= time_ms <= OFFSET_MAX:
        raise BadMessage(f"a time must be a whole number of milliseconds since 1970: {time_ms!r}")


def check_hold(hold_s: float) -> None:
    """Raise `BadMessage` for a value that is no time for a long poll, seconds."""
    if not _is_number(hold_s) or not 0 <= hold_s < math.inf:
        raise BadMessage(f"hold_s must be a number of seconds, 0 or more: {hold_s!r}")


def check_listening(
    handler: Callable[..., object], workers: int, max_retries: int, timeout_s: float
) -> None:
    """Raise `BadMessage` for arguments that `listen` cannot use."""
    if not callable(handler):
        raise BadMessage(f"the handler must be a function of a message: {handler!r}")
    if type(workers) is not int or workers < 1:
        raise BadMessage(f"workers must be a number from 1 on: {workers!r}")
    if type(max_retries) is not int or not 0 <= max_retries <= RETRIES_MAX:
        raise BadMessage(f"max_retries must be a number from 0 to {RETRIES_MAX}: {max_retries!r}")
    check_timeout(timeout_s)


def check_timeout(timeout_s: float) -> None:
    """Raise `BadMessage` for a value that is no time to wait for an answer, seconds."""
    if not _is_number(timeout_s) or not timeout_s > 0:
        raise BadMessage(f"timeout_s must be a positive number of seconds: {timeout_s!r}")


def check_method(name: str, value: object, method: str) -> None:
    """Raise `BadMessage` for an object without the method for which it is needed."""
    if value is not None and not callable(getattr(value, method, None)):
        raise BadMessage(f"{name} has no method {method!r}: {value!r}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
