"""Properties of a message, and the numbers that RocketMQ derives from them.

A property string repeats `name 0x01 value 0x02`. Tag codes and index keys are Java string hashes,
which Python computes slowly. So a scan searches for three names only, without splitting the string,
and hashes keys from a cached prefix (most keys are client ids that differ in their last
characters).

Sources: store.md 2.6, 2.8, 4.1 (RocketMQ: `MessageDecoder.string2messageProperties`,
`MessageExtBrokerInner.tagsString2tagsCode`, `IndexFile.indexKeyHashMethod`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS_DEFAULT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(513)][::-1]
"""31 to the 512th down to the 0th, modulo 2 to the 32nd."""
_UNITS_MAX = len(_POWERS) - 1
_TAIL = 8
"""Characters at the end of a key that are hashed each time; the others are cached."""
_TAIL_POWER = pow(31, _TAIL, 1 << 32)
_HALF_POWER = pow(31, _TAIL // 2, 1 << 32)
_REMEMBERED_MAX = 4096


def parse_properties(raw: bytes) -> dict[str, str]:
    """Parse properties by name. Pieces without a name or value are left out; of duplicates the last
    counts."""
    return properties_of(raw.decode(errors="replace"))


def properties_of(text: str) -> dict[str, str]:
    """Parse properties from text, as `parse_properties` does from bytes."""
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        if len(piece) < 3:
            continue
        name, separator, value = piece.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


class DispatchProperties:
    """The three properties that dispatch reads, found in a message's property bytes."""

    __slots__ = ("keys", "tags", "unique_key")

    def __init__(self, properties: bytes) -> None:
        padded = b"\x02" + properties
        self.tags = find_value(padded, b"\x02TAGS\x01")
        self.keys = find_value(padded, b"\x02KEYS\x01")
        self.unique_key = find_value(padded, b"\x02UNIQ_KEY\x01")

    def index_keys(self) -> list[bytes]:
        """Return the keys that a 5.3 broker indexes, in order: the unique key, then the parts of
        KEYS."""
        keys = [self.unique_key] if self.unique_key else []
        if self.keys:
            keys += [part for part in self.keys.split(b" ") if part]
        return keys


def find_value(padded: bytes, mark: bytes) -> bytes:
    """Return the value of one property; `padded` has an 0x02 before the first, `mark` is 0x02 name
    0x01."""
    at = padded.rfind(mark)
    if at < 0:
        return b""
    begin = at + len(mark)
    end = padded.find(b"\x02", begin)
    value = padded[begin:] if end < 0 else padded[begin:end]
    if value:
        return value
    return parse_properties(padded).get(mark[1:-1].decode(), "").encode()


def java_hash(text: str) -> int:
    """Compute Java's `String.hashCode`: 31-fold over UTF-16 units, signed 32 bits."""
    return signed(_hash_units(text))


def signed(value: int) -> int:
    """Return a 32-bit pattern as a signed number."""
    return value - (1 << 32) if value & 0x80000000 else value


def _hash_units(text: str) -> int:
    units: Sequence[int]
    try:
        units = text.encode("ascii")
    except UnicodeEncodeError:
        wide = text.encode("utf-16-be", "surrogatepass")
        units = memoryview(wide).cast("B").tolist()
        units = [high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True)]
    value = 0
    while len(units) > _UNITS_MAX:
        value = _extend(value, units[:_UNITS_MAX])
        units = units[_UNITS_MAX:]
    return _extend(value, units)


def _extend(value: int, units: Sequence[int]) -> int:
    """Extend the hash `value` by up to 512 further units; unsigned."""
    if not units:
        return value
    added = sum(map(mul, units, _POWERS[-len(units) :]))
    return int(value * _POWERS[-len(units) - 1] + added) & 0xFFFFFFFF


@lru_cache(1 << 17)
def _word(units: bytes) -> int:
    """Hash half of a key's tail; counters repeat the same halves."""
    return _extend(0, units)


class TopicHash:
    """Hashes of the index keys `topic#key` of one topic, with cached prefixes."""

    __slots__ = ("_prefixes", "_start", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._start = _hash_units(topic + "#")
        self._prefixes: dict[bytes, int] = {}

    def key_hash(self, key: bytes) -> int:
        """Return the absolute hash that index entries hold; -2^31 becomes 0 (store.md 4.1)."""
        if not key.isascii():
            value = _hash_units(f"{self._topic}#{key.decode(errors='replace')}")
        elif len(key) > _UNITS_MAX:
            value = _hash_units(f"{self._topic}#{key.decode()}")
        elif len(key) <= 2 * _TAIL:
            value = _extend(self._start, key)
        else:
            half = _TAIL // 2
            value = self._prefix(key[:-_TAIL]) * _TAIL_POWER
            value += _word(key[-_TAIL:-half]) * _HALF_POWER + _word(key[-half:])
            value &= 0xFFFFFFFF
        value = signed(value)
        return 0 if value == -(1 << 31) else abs(value)

    def _prefix(self, prefix: bytes) -> int:
        value = self._prefixes.get(prefix)
        if value is None:
            if len(self._prefixes) >= _REMEMBERED_MAX:
                self._prefixes.clear()
            value = self._prefixes[prefix] = _extend(self._start, prefix)
        return value


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash of one key of a topic, as index entries hold it."""
    value = java_hash(f"{topic}#{key}")
    return 0 if value == -(1 << 31) else abs(value)


def delay_levels(text: str) -> dict[int, int]:
    """Parse RocketMQ's `messageDelayLevel`: delay in milliseconds by level, from 1.

    Raises `ValueError` for a piece that is not a number followed by s, m, h or d.
    """
    levels: dict[int, int] = {}
    for number, piece in enumerate(text.split(), start=1):
        unit = _UNIT_MS.get(piece[-1:])
        if unit is None or not piece[:-1].isdigit():
            raise ValueError(f"messageDelayLevel: {piece!r} is not a number and one of s, m, h, d")
        levels[number] = int(piece[:-1]) * unit
    return levels


def tag_code(
    topic: str, tags: bytes, properties: bytes, store_ms: int, levels: Mapping[int, int]
) -> int:
    """Return the tags field of a queue unit: the tag's hash, or the delivery time of a delayed
    message."""
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level >= 1:
            level = min(level, max(levels, default=0))
            return store_ms + levels.get(level, 1000)
    return java_hash(tags.decode(errors="replace")) if tags else 0


def _delay_level(properties: bytes) -> int:
    text = find_value(b"\x02" + properties, b"\x02DELAY\x01")
    return int(text[:9]) if text.isdigit() else 0
