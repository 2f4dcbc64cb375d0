"""Conversion of body classes to JSON and back (wire.md 1.11, 2.7).

A body is a dataclass; an attribute's name in JSON is the same in camel case unless the field gives
another. Members are written in alphabetical order and None is left out, as Java does. Missing
members, null and unknown members are accepted: defaults apply. Values that fastjson coerces (`"4"`
for 4) are coerced here too; any other value of the wrong type is a `BodyError`.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Final, Self

from rocketbed.wire.encoding.json_dialect import DEPTH_MAX, BodyError, ObjectKey, dumps, loads

Convert = Callable[[Any], Any]
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Member:
    attribute: str
    name: str
    read: Convert
    write: Convert


class Body:
    """Base of all body classes."""

    __slots__ = ()
    _members: ClassVar[dict[type, tuple[_Member, ...]]] = {}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return a body from a parsed value. Raises `BodyError`."""
        if value is None:
            value = {}
        if isinstance(value, ObjectKey):
            value = value.as_dict()
        if not isinstance(value, dict):
            raise BodyError(f"{cls.__name__} has to be an object, not {value!r:.60}")
        arguments = {}
        for member in _members_of(cls):
            item = value.get(member.name)
            if item is not None:
                try:
                    arguments[member.attribute] = member.read(item)
                except (TypeError, ValueError) as exc:
                    raise BodyError(f"{cls.__name__}.{member.name}: {exc}") from exc
        try:
            return cls(**arguments)
        except TypeError as exc:
            raise BodyError(f"{cls.__name__} lacks a member: {exc}") from exc

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return a body from its bytes; no bytes count as `{}`. Raises `BodyError`."""
        return cls.from_json(loads(data) if data else {})

    def to_json(self) -> dict[str, Any]:
        """Return a value for `json_dialect.dumps`."""
        result = {}
        for member in _members_of(type(self)):
            value = getattr(self, member.attribute)
            if value is not None:
                result[member.name] = member.write(value)
        return result

    def encode(self) -> bytes:
        """Return the bytes of the body."""
        return dumps(self.to_json())


def _members_of(cls: type) -> tuple[_Member, ...]:
    members = Body._members.get(cls)
    if members is None:
        hints = typing.get_type_hints(cls)
        rows = [
            _Member(
                item.name,
                item.metadata.get("name", _camel(item.name)),
                _reader(hints[item.name]),
                _writer(hints[item.name]),
            )
            for item in dataclasses.fields(cls)
        ]
        members = Body._members[cls] = tuple(sorted(rows, key=lambda row: row.name))
    return members


def _camel(name: str) -> str:
    first, *following = name.split("_")
    return first + "".join(part.capitalize() for part in following)


def _plain(hint: Any) -> Any:
    """Return the type without `| None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _reader(hint: Any) -> Convert:
    hint = _plain(hint)
    origin = typing.get_origin(hint)
    if origin is list:
        read = _reader(typing.get_args(hint)[0])
        return lambda value: [read(item) for item in _a(list, value)]
    if origin is dict:
        key, item = (_reader(part) for part in typing.get_args(hint))
        return lambda value: {
            key(name): item(member)
            for name, member in _a(dict, value).items()
            if member is not None
        }
    if isinstance(hint, type) and issubclass(hint, Body):
        return hint.from_json
    simple: dict[Any, Convert] = {int: _int, bool: _bool, float: float, str: _text}
    return simple.get(hint, _anything)


def _writer(hint: Any) -> Convert:
    hint = _plain(hint)
    origin = typing.get_origin(hint)
    if origin is list:
        write = _writer(typing.get_args(hint)[0])
        return lambda value: [write(item) for item in value]
    if origin is dict:
        key_type = typing.get_args(hint)[0]
        write = _writer(typing.get_args(hint)[1])
        if isinstance(key_type, type) and issubclass(key_type, Body):
            return lambda value: {
                ObjectKey.of(key.to_json()): write(item) for key, item in value.items()
            }
        return lambda value: {key: write(item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Body):
        return lambda value: value.to_json()
    return lambda value: value


def _a(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, not {value!r:.60}")
    return value


def _anything(value: Any, depth: int = 0) -> Any:
    """Accept a value without a declared type unchanged, if it can be written again."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    if isinstance(value, int):
        _int(int(value))
    if isinstance(value, dict):
        for key in value:
            _a(str, key)
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _anything(item, depth + 1)
    return value


def _int(value: Any) -> int:
    if value.__class__ is int and INT64_MIN <= value <= INT64_MAX:
        return value  # a table may have a million of them
    if isinstance(value, bool | float | list | dict):
        raise TypeError(f"expected a number, not {value!r:.60}")
    number = int(value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{number} has more than 64 bits")
    return number


def _bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    if not isinstance(value, int):
        raise TypeError(f"expected true or false, not {value!r:.60}")
    return bool(value)


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        raise TypeError(f"expected a text, not {value!r:.60}")
    return value if isinstance(value, str) else dumps(value).decode()
