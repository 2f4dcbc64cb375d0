"""JSON as Java's fastjson writes and reads it in bodies and config files (wire.md 1.11).

Two things are not legal JSON: integer keys have no quotes (`{0:"10.0.0.1:10911"}`), and a map from
queues has objects as keys (`{{"brokerName":"b",...}:1}`). Readers of either broker accept the
output of `dumps`; fastjson2 (RocketMQ 5.5) refuses object keys turned into strings. Legal text, by
far the most, goes through orjson both ways.
"""

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, ClassVar, Final

import orjson

from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import LocalProtocolError, ProtocolError

DEPTH_MAX: Final = 100
"""Deepest nesting of objects and arrays that is read; real bodies have fewer than ten levels."""

BYTE_ORDER_MARK: Final = "\ufeff"

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_REFERENCE = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class BodyError(ProtocolError):
    """A body that cannot be read: the request is answered with code 1."""

    response_code: ClassVar[int] = ResponseCode.SYSTEM_ERROR


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object that is the key of a map: its members, by name."""

    __slots__ = ()

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> "ObjectKey":
        """Return the key with these members; their order does not matter."""
        return cls(sorted(members.items()))

    def as_dict(self) -> dict[str, Any]:
        """Return the members."""
        return dict(self)


def dumps(value: Any) -> bytes:
    """Return compact text; integer keys bare, `ObjectKey` keys as objects. Order of maps is
    kept."""
    try:
        return orjson.dumps(value)
    except TypeError:
        parts: list[str] = []
        _write(value, parts)
        return "".join(parts).encode()


def dumps_standard(value: Any) -> bytes:
    """Return legal JSON in ASCII, integer keys quoted: routes for peers that ask for it (wire.md
    3.6)."""
    return json.dumps(value, separators=(",", ":")).encode()


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, ObjectKey):
        value = value.as_dict()
    if isinstance(value, Mapping):
        separator = "{"
        for key, item in value.items():
            parts.append(separator)
            separator = ","
            if isinstance(key, int) and not isinstance(key, bool):
                parts.append(str(key))
            else:
                _write(key, parts)
            parts.append(":")
            _write(item, parts)
        parts.append("{}" if separator == "{" else "}")
    elif isinstance(value, list | tuple):
        separator = "["
        for item in value:
            parts.append(separator)
            separator = ","
            _write(item, parts)
        parts.append("[]" if separator == "[" else "]")
    else:
        try:
            parts.append(orjson.dumps(value).decode())
        except TypeError as exc:
            raise LocalProtocolError(f"cannot be written as JSON: {value!r}") from exc


def loads(data: bytes | str) -> Any:
    """Parse text in either dialect, after a byte order mark, which editors write. Raises
    `BodyError`.

    Keys are text, bare integers included (`{0:1}` and `{"0":1}` read the same), or `ObjectKey`.
    References that fastjson leaves for repeated objects (`{"$ref":"$.a[0]"}`) are resolved; one
    without a target reads as null.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            text = data if isinstance(data, str) else data.decode()
            value = _Reader(text.removeprefix(BYTE_ORDER_MARK)).document()
        except (UnicodeDecodeError, ValueError) as exc:
            raise BodyError(f"JSON cannot be read: {exc}") from exc
    if "$ref" in data if isinstance(data, str) else b"$ref" in data:
        value = _resolve(value, value, 0)
    return value


class _Reader:
    """A recursive reader of the relaxed dialect. Raises `ValueError`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        self._skip()
        if self._position != len(self._text):
            raise ValueError(f"text goes on after the value at character {self._position}")
        return value

    def _skip(self) -> str:
        """Skip white space; return the next character, or an empty text at the end."""
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _expect(self, character: str) -> None:
        if self._skip() != character:
            raise ValueError(f"expected {character!r} at character {self._position}")
        self._position += 1

    def _value(self) -> Any:
        first = self._skip()
        if first in ("{", "["):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise ValueError(f"nested deeper than {DEPTH_MAX}")
            self._position += 1
            nested = self._object() if first == "{" else self._array()
            self._depth -= 1
            return nested
        if first == '"':
            text, self._position = scanstring(self._text, self._position + 1)
            text.encode()  # `ValueError` for half of a surrogate pair
            return text
        match = _NUMBER.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
            number = match.group()
            if len(number) > 400:
                raise ValueError(f"number of {len(number)} digits")
            return float(number) if match.group(1) or match.group(2) else int(number)
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._position):
                self._position += len(word)
                return value
        raise ValueError(f"no value at character {self._position}")

    def _object(self) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        if self._skip() == "}":
            self._position += 1
            return result
        while True:
            key = self._value()
            if isinstance(key, dict):
                key = ObjectKey.of({name: _hashable(item) for name, item in key.items()})
            elif isinstance(key, int) and not isinstance(key, bool):
                key = str(key)
            elif not isinstance(key, str):
                raise ValueError(f"no key before character {self._position}")
            self._expect(":")
            result[key] = self._value()
            if self._skip() == "}":
                self._position += 1
                return result
            self._expect(",")

    def _array(self) -> list[Any]:
        result: list[Any] = []
        if self._skip() == "]":
            self._position += 1
            return result
        while True:
            result.append(self._value())
            if self._skip() == "]":
                self._position += 1
                return result
            self._expect(",")


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return ObjectKey.of({name: _hashable(item) for name, item in value.items()})
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value


def _resolve(value: Any, root: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        return None
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and len(value) == 1:
            return _resolve(_target(reference, root), root, depth + 10)
        return {key: _resolve(item, root, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root, depth + 1) for item in value]
    return value


def _target(reference: str, root: Any) -> Any:
    """Return the target of a path such as `$.a.b[0]`, or None."""
    if not reference.startswith("$"):
        return None
    value = root
    for name, index in _REFERENCE.findall(reference[1:]):
        if name and isinstance(value, dict):
            value = value.get(name)
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return None if value is root else value
