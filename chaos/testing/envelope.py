"""Values of a test as bodies of messages: what names the attempt, then the value itself.

Checkers recognise each attempt by the head that the workload of every trial writes
(`chaos.workload`), so a value can be sent twice and each copy is still told from the other.
"""

from typing import Any

import msgpack

from rocketbed.chaos.testing.errors import TestingError
from rocketbed.chaos.workload import BODY_SIZE_MIN, Writer, decode_body, sign_body

Value = Any
"""An int, text, bytes, float, bool, None, or a tuple of those."""


def wrap(writer: Writer, value: Value) -> bytes:
    """The body of one attempt. Raises `TestingError` for what no body can hold."""
    try:
        return sign_body(writer, msgpack.packb(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise TestingError(
            f"{value!r} cannot be sent: a value is a number, a text, bytes, or a tuple of those"
            f" ({error})"
        ) from None


def unwrap(body: bytes) -> Value:
    """The value again; the bytes themselves where somebody else wrote the body."""
    if decode_body(body) is None:
        return body
    try:
        return msgpack.unpackb(body[BODY_SIZE_MIN:], use_list=False, strict_map_key=False)
    except ValueError:
        return body
