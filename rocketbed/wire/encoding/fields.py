"""Conversion of header classes to ext fields and back (wire.md 1.7).

A header is a frozen dataclass whose attributes have RocketMQ's field names; the annotation gives
the type on the wire, a default makes a field optional. Values are text on the wire; `ali-ons` sends
JSON numbers and booleans, which count as their text.
"""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Self

from rocketbed.wire.command import ResponseCode, field_text
from rocketbed.wire.errors import ProtocolError

Int = Annotated[int, 32]
"""A signed 32-bit number."""
Long = Annotated[int, 64]
"""A signed 64-bit number."""

_RANGES = {32: (-(2**31), 2**31 - 1), 64: (-(2**63), 2**63 - 1)}


class HeaderError(ProtocolError):
    """A field is missing or of the wrong type: the request is answered with code 1, not run."""

    response_code: ClassVar[int] = ResponseCode.SYSTEM_ERROR


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """Reader and writer of one field."""

    attribute: str
    name: str
    """Name on the wire; the attribute's unless `metadata["name"]` gives another."""
    parse: Callable[[str, object], Any]
    default: Any
    """`MISSING` for a mandatory field."""
    is_number: bool


class Header:
    """Base of all header classes."""

    __slots__ = ()

    @classmethod
    def decode(cls, values: Mapping[str, object]) -> Self:
        """Return a header from ext fields. Raises `HeaderError`; unknown fields are ignored."""
        arguments = {}
        for plan in plans(cls):
            value = values.get(plan.name)
            if value is not None:
                # Most numbers are short, and are parsed here without a call.
                if (
                    plan.is_number
                    and type(value) is str
                    and len(value) < 10
                    and value.isascii()
                    and value.isdigit()
                ):
                    arguments[plan.attribute] = int(value)
                else:
                    arguments[plan.attribute] = plan.parse(plan.name, value)
            elif plan.default is MISSING:
                raise HeaderError(f"the custom field <{plan.name}> is null")
        return cls(**arguments)

    def encode(self) -> dict[str, str]:
        """Return the ext fields, without those that are None."""
        result = {}
        for plan in plans(type(self)):
            value = getattr(self, plan.attribute)
            if value is not None:
                result[plan.name] = value if type(value) is str else field_text(value)
        return result


_plans: dict[type, tuple[FieldPlan, ...]] = {}


def plans(cls: type) -> tuple[FieldPlan, ...]:
    """Return the fields of a header class, in the order of the class."""
    cached = _plans.get(cls)
    if cached is None:
        cached = _plans[cls] = _make_plans(cls)
    return cached


def _make_plans(cls: type) -> tuple[FieldPlan, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        FieldPlan(
            attribute=item.name,
            name=item.metadata.get("name", item.name),
            parse=_parser(hints[item.name]),
            default=item.default,
            is_number=_parser(hints[item.name]) in (_parse_int, _parse_long),
        )
        for item in fields(cls)
    )


def _parser(hint: Any) -> Callable[[str, object], Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if hint == Int:
        return _parse_int
    if hint == Long:
        return _parse_long
    return _parse_bool if hint is bool else _parse_text


def _parse_text(name: str, value: object) -> str:
    return value if isinstance(value, str) else field_text(value)


def _parse_bool(name: str, value: object) -> bool:
    return _parse_text(name, value).lower() == "true"


def _parse_int(name: str, value: object) -> int:
    return parse_number(name, value, 32)


def _parse_long(name: str, value: object) -> int:
    return parse_number(name, value, 64)


def parse_number(name: str, value: object, bits: int) -> int:
    """Parse a decimal number of 32 or 64 bits as Java does. Raises `HeaderError`."""
    text = _parse_text(name, value)
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isdigit() or not digits.isascii() or len(digits) > 40:
        raise HeaderError(f"the custom field <{name}> is not a number: {text[:60]!r}")
    number = int(text)
    low, high = _RANGES[bits]
    if not low <= number <= high:
        raise HeaderError(f"the custom field <{name}> does not fit {bits} bits: {text[:60]}")
    return number
