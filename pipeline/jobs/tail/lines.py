"""A stored message as one line: for people, or as JSON for programs.

Rows come as dictionaries of the data source's columns, times as milliseconds since 1970, UTC.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final

BODY_MAX: Final = 200
"""Characters of a body in a line for people."""
_IN_PLACE: Final = frozenset(
    (
        "store_timestamp",
        "broker",
        "topic",
        "queue_id",
        "queue_offset",
        "body",
        "_corrupt",
        "physical_offset",
    )
)
"""Columns that have a place of their own in a line."""


def text_line(row: dict[str, Any]) -> str:
    """Time, place, tags and keys, body; of what is no record, where it is and why."""
    if bad := bad_range(row):
        return f"! {row.get('broker') or '?'} offset {bad['offset']}: {bad['reason']}"
    words = [moment(row["store_timestamp"])] if row.get("store_timestamp") is not None else []
    place = [row.get("broker"), row.get("topic"), row.get("queue_id"), row.get("queue_offset")]
    if position := "/".join(str(part) for part in place if part is not None):
        words.append(position)
    words += [
        f"{name}={_short(value)}"
        for name, value in row.items()
        if name not in _IN_PLACE and value not in (None, [], "")
    ]
    if row.get("_corrupt"):
        words.append(f"!{row['_corrupt']['reason']}")
    if row.get("body") is not None:
        words.append(shown_body(row["body"]))
    return " ".join(words)


def json_line(row: dict[str, Any]) -> str:
    """All columns; bytes that are no UTF-8 text are in Base64, under NAME_base64."""
    return json.dumps(_plain(row), ensure_ascii=False)


def shown_body(body: bytes) -> str:
    """A body's text if it is one, without line ends and not too long; else how many bytes it
    has."""
    text = _text(body)
    if text is None:
        return f"<{len(body)} bytes>"
    text = _printable(text)
    return text if len(text) <= BODY_MAX else f"{text[:BODY_MAX]}... <{len(body)} bytes>"


def bad_range(row: dict[str, Any]) -> dict[str, Any] | None:
    """Where and why, of a row that is no record. A record with a wrong checksum is one."""
    bad = row.get("_corrupt")
    return bad if isinstance(bad, dict) and row.get("topic") is None else None


def moment(time_ms: int) -> str:
    """UTC, ISO 8601 with milliseconds."""
    text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes | bytearray):
            text = _text(bytes(value))
            if text is None:
                plain[f"{name}_base64"] = base64.b64encode(value).decode()
            else:
                plain[name] = text
        elif isinstance(value, dict):
            plain[name] = _plain(value)
        elif name.endswith("_timestamp") and value is not None:
            plain[name] = moment(value)
        else:
            plain[name] = value
    return plain


def _text(body: bytes) -> str | None:
    try:
        return bytes(body).decode()
    except UnicodeDecodeError:
        return None


def _short(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return shown_body(bytes(value))
    return _printable(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _printable(text: str) -> str:
    """What a producer chose drives no terminal and makes no line."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
