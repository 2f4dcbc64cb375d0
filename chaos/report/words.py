"""Figures as people read them: moments as m:ss, thousands apart."""

import re
from typing import Final

_LONG: Final = re.compile(r"(?<![\w.,:/=-])\d{4,}(?![\w.:/-])")


def clock(time_s: float, digits: int = 0) -> str:
    """A moment of the scenario: `1:05`, with digits `0:01.715`."""
    scale = 10**digits
    units = round(abs(time_s) * scale)
    minutes, rest = divmod(units, 60 * scale)
    seconds, part = divmod(rest, scale)
    sign = "-" if time_s < 0 and units else ""
    return f"{sign}{minutes}:{seconds:02}" + (f".{part:0{digits}}" if digits else "")


def grouped(text: object) -> str:
    """A number, or a text with numbers, with thousands apart: `12,569`."""
    return _LONG.sub(lambda found: f"{int(found[0]):,}", str(text))


def length(seconds: float) -> str:
    """How long something took: `40 ms`, `1.7 s`, `2:05`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{clock(seconds)} min"


def count_of(number: int, one: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {one}" + ("" if number == 1 else "s")


def failing(found: int, examined: int, unit: str) -> str:
    """How much of what a check looked at does not hold: `fails for 2 of 9 reads`."""
    if found > examined:  # several findings of one
        return f"fails {count_of(found, 'time')} in {examined:,} {unit}"
    return f"fails for {found:,} of {examined:,} {unit}"
