"""Java's properties text: `broker.conf`, and the bodies of 25, 26, 318 and 319.

A `key=value` per line (`:` or white space separate too), `#` and `!` begin comments, a backslash
escapes and joins lines. Java: `java.util.Properties.load`.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPACES = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> list[tuple[int, str, str]]:
    """Yield line number (from 1), key and value of each entry. Raises `ValueError` for a bad
    escape, and for a key or value that is not UTF-8."""
    return [(number, *_entry(line, number)) for number, line in _logical_lines(text)]


def decode_file(data: bytes) -> str:
    """Return the text of a properties file, without a byte order mark.

    Comments may hold any bytes, as for Java: each that is not UTF-8 is half of a character here,
    which `encode_file` writes as it was.
    """
    return data.removeprefix(BOM_UTF8).decode("utf-8", "surrogateescape")


def encode_file(text: str) -> bytes:
    """Return the bytes of a properties file, those of `decode_file` among them."""
    return text.encode("utf-8", "surrogateescape")


def render_properties(values: Mapping[str, object]) -> str:
    """Return a line for each value, as Java brokers answer 26: only line ends are escaped."""
    return "".join(f"{key}={_flat(str(value))}\n" for key, value in values.items())


def with_properties(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its values replaced by these, and new keys at its end; comments stay.

    Raises `ValueError` for a bad escape.
    """
    lines = _lines(text)
    additions = {key: render_properties({key: value}) for key, value in values.items()}
    entries = {number: key for number, key, _ in parse_properties(text) if key in values}
    result, number = "", 0
    while number < len(lines):
        number += 1
        key = entries.get(number)
        if key is None:
            result += lines[number - 1] + "\n"
            continue
        result += additions.pop(key, "")
        while _goes_on(lines[number - 1]) and number < len(lines):
            number += 1
    return result + "".join(additions.values())


def _lines(text: str) -> list[str]:
    """Split a text at Java's line ends; others of Unicode's, such as U+2028, are in a line."""
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _flat(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    joined = ""
    start = 0
    for number, raw in enumerate(_lines(text), 1):
        line = raw.lstrip(_SPACES)
        if not joined:
            start = number
            if not line or line[0] in "#!":
                continue
        if _goes_on(line):
            joined += line[:-1]
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: str, number: int) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _SPACES:
        position += 2 if line[position] == "\\" else 1
    key = line[:position]
    value = line[position:].lstrip(_SPACES)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_SPACES)
    return _whole(_unescape(key, number), number), _whole(_unescape(value, number), number)


def _whole(text: str, number: int) -> str:
    """Return a text with a character for each pair of escapes that stands for one, as in Java.
    Raises `ValueError` for half of a pair, as bytes that are not UTF-8 leave it."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(f"line {number}: text that is not UTF-8: {text!a}") from None


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    result: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                try:
                    character = chr(int(digits, 16))
                except ValueError:
                    raise ValueError(f"line {number}: bad escape \\u{digits}") from None
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        result.append(character)
    return "".join(result)
