"""The property string of a message: `name 0x01 value 0x02` repeated, UTF-8 (store.md 2.6)."""

from collections.abc import Iterable, Mapping

NAME_END = "\x01"
PAIR_END = "\x02"
PROPERTIES_MAX = 32767
"""Most bytes of a property string; the length field is a signed short."""

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
UNIQUE_KEY = "UNIQ_KEY"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
CLUSTER = "CLUSTER"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
CRC32 = "__CRC32#"

_TRIMMED = "".join(map(chr, range(0x21)))

CRC_SIZE = 20
"""Bytes of the record checksum property: name, 0x01, ten digits, 0x02 (store.md 2.7)."""


def encode_properties(properties: Mapping[str, str | None] | Iterable[tuple[str, str]]) -> str:
    """Return the property string; pairs with a None value are left out."""
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return "".join(
        [f"{name}{NAME_END}{value}{PAIR_END}" for name, value in pairs if value is not None]
    )


def decode_properties(text: str) -> dict[str, str]:
    """Parse names and values. Short or valueless pieces are skipped; of duplicates the last
    counts."""
    pieces = text.split(PAIR_END)
    if not pieces[-1]:
        pieces.pop()
    try:
        properties = dict([piece.split(NAME_END, 1) for piece in pieces])
    except ValueError:  # a piece without a separator
        return _decode_oddly(pieces)
    return _decode_oddly(pieces) if "" in properties or "" in properties.values() else properties


def _decode_oddly(pieces: list[str]) -> dict[str, str]:
    """Parse a string in which some pieces are to be skipped."""
    properties: dict[str, str] = {}
    for piece in pieces:
        name, separator, value = piece.partition(NAME_END)
        if separator and name and value:
            properties[name] = value
    return properties


def find_property(data: bytes, name: bytes) -> bytes | None:
    """Return the value of one property in stored bytes; `name` ends with 0x01. Of duplicates the
    last counts.

    Made for scans of a whole log, which look for three names in every record.
    """
    at = data.rfind(name)
    if at < 0:
        return None
    value_at = at + len(name)
    end = data.find(b"\x02", value_at)
    value = data[value_at:] if end < 0 else data[value_at:end]
    if value and (at == 0 or data[at - 1] == 2):
        return value
    text = decode_properties(data.decode(errors="surrogateescape")).get(name[:-1].decode())
    return None if text is None else text.encode(errors="surrogateescape")


def text_of(value: bytes | None) -> str | None:
    """Decode stored bytes to text, replacing invalid UTF-8, as Java does."""
    return None if value is None else value.decode(errors="replace")


def tag_key(tag: str) -> str:
    """Return the key by which RocketMQ 5.5.0 also indexes a message's tag, after its keys."""
    return f"T#{tag}"


def index_keys(unique_key: str | None, keys: str | None) -> tuple[str, ...]:
    """Return the keys that the index holds for a message: UNIQ_KEY, then each part of KEYS
    (store.md 4.2)."""
    parts = split_keys(keys)
    return (unique_key, *parts) if unique_key else parts


def split_keys(keys: str | None) -> tuple[str, ...]:
    """Return the parts of KEYS. Only U+0020 separates them, as in Java: others of Unicode's spaces,
    such as U+3000 in a Chinese name, belong to a key."""
    return tuple([part for part in keys.split(" ") if part]) if keys else ()


def trimmed(text: str) -> str:
    """Return a text without the spaces and control characters at its ends that Java's `trim`
    removes; others of Unicode's spaces stay."""
    return text.strip(_TRIMMED)
