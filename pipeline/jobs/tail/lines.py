"""Formats of a stored message as a line: text for people, or JSON for programs.

Rows are dictionaries of the data source's columns, with times in milliseconds since 1970, UTC.
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
"""Columns with a fixed place in a line."""


def text_line(row: dict[str, Any]) -> str:
    """Return a line with time, place, tags, keys and body; of a bad range, its place and reason."""
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
    """Return all columns as JSON; bytes that are not UTF-8 are in Base64, as NAME_base64."""
    return json.dumps(_plain(row), ensure_ascii=False)


def shown_body(body: bytes) -> str:
    """Return the text of a body, shortened and without line ends; if it is not UTF-8, its size."""
    text = _text(body)
    if text is None:
        return f"<{len(body)} bytes>"
    text = _printable(text)
    return text if len(text) <= BODY_MAX else f"{text[:BODY_MAX]}... <{len(body)} bytes>"


def bad_range(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return place and reason of a row that is not a record; None for a record.

    A record with a wrong checksum is a record.
    """
    bad = row.get("_corrupt")
    return bad if isinstance(bad, dict) and row.get("topic") is None else None


def moment(time_ms: int) -> str:
    """Format a time: UTC, ISO 8601 with milliseconds."""
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
    """Escape control characters: a producer's text must not control the terminal or end a line."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
