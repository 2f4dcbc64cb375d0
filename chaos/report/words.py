"""Figures for people: times as m:ss, thousands separated."""

import re
from typing import Final

_LONG: Final = re.compile(r"(?<![\w.,:/=-])\d{4,}(?![\w.:/-])")


def clock(time_s: float, digits: int = 0) -> str:
    """Return a time of the scenario: `1:05`, with digits `0:01.715`."""
    scale = 10**digits
    units = round(abs(time_s) * scale)
    minutes, remainder = divmod(units, 60 * scale)
    seconds, part = divmod(remainder, scale)
    sign = "-" if time_s < 0 and units else ""
    return f"{sign}{minutes}:{seconds:02}" + (f".{part:0{digits}}" if digits else "")


def grouped(text: object) -> str:
    """Return a number, or a text with numbers, with thousands separated: `12,569`."""
    return _LONG.sub(lambda match: f"{int(match[0]):,}", str(text))


def length(seconds: float) -> str:
    """Return a duration: `40 ms`, `1.7 s`, `2:05`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{clock(seconds)} min"


def count_of(number: int, unit: str) -> str:
    """Return a count with its unit: `1 message`, `1,200 messages`."""
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def failing(failures: int, examined: int, unit: str) -> str:
    """Return the share of what a check examined that fails: `fails for 2 of 9 reads`."""
    if failures > examined:  # several findings about one thing
        return f"fails {count_of(failures, 'time')} in {examined:,} {unit}"
    return f"fails for {failures:,} of {examined:,} {unit}"
