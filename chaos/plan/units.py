"""Durations and sizes as people write them: `200ms`, `3s`, `64KiB`."""

import re
from typing import Final

_NUMBER: Final = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-zµ%]*)")
PARTS: Final = {"us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1.0}
"""Number of each unit in a second: dividing by it rounds right, multiplying by 1e-6 does not."""
SECONDS: Final = {"m": 60.0, "min": 60.0, "h": 3600.0}
BYTES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


def parse_duration(text: str) -> float:
    """Return seconds. Raises `ValueError` for anything but a number with a unit of time (or plain
    0)."""
    number, unit = _split(text, "a duration such as 200ms or 3s")
    if unit not in SECONDS and unit not in PARTS and not (number == 0 and not unit):
        raise ValueError(f"{text!r} needs a unit of time: {', '.join([*PARTS, *SECONDS])}")
    return round(number / PARTS.get(unit, 1.0) * SECONDS.get(unit, 1.0), 6)


def parse_size(text: str) -> int:
    """Return bytes. Raises `ValueError`."""
    number, unit = _split(text, "a size such as 64KiB")
    if unit not in BYTES:
        raise ValueError(f"{text!r} has an unknown unit: one of {', '.join(filter(None, BYTES))}")
    return int(number * BYTES[unit])


def show_duration(seconds: float) -> str:
    """Return the shortest text that reads back to the same number of microseconds."""
    micros = round(seconds * 1e6)
    if micros % 1000:
        return f"{micros}us"
    if micros % 1_000_000:
        millis = micros // 1000
        return f"{millis}ms" if abs(millis) < 1000 else f"{millis / 1000:.3f}".rstrip("0") + "s"
    return f"{micros // 1_000_000}s"


def show_size(size: int) -> str:
    """Return bytes in the largest binary unit that divides them."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return f"{size}B"


def _split(text: str, kind: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not {kind}")
    return float(match[1]), match[2]
