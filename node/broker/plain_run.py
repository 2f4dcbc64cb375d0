"""The plain sends of one read, taken in one go: frames in; records, entries and answers out.

A broker under load gets reads full of sends that differ in a few texts only: born time, property
string, opaque. `take` cuts headers at these and knows the text between them from an earlier frame,
so little is parsed and the only object created for a message is its entry. Any other frame is left
to the general way, in its place among the plain ones.

Its interface is bytes, numbers, tuples and mappings, and it changes only its arguments, so that a
function in C can replace it.
"""

import zlib
from collections.abc import Callable
from typing import NamedTuple

from rocketbed.node.broker.plain_shapes import Headers, Names
from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.node.store.run import FIXED
from rocketbed.wire.frame import HEAD, PREFIX
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.message import BORN_IPV6, CRC_MASK, STORE_IPV6
from rocketbed.wire.properties import (
    NAME_END,
    PAIR_END,
    PROPERTIES_MAX,
    index_keys,
    tag_key,
)
from rocketbed.wire.send_headers import BEGINNINGS


class EndOfLog(NamedTuple):
    """Position of new records and their limits; a plain tuple."""

    position: int
    """Physical offset of the first record."""
    limit: int
    """Offset at or before which the last record has to end."""
    now_ms: int
    """Store time of all of them."""
    store_host: bytes
    """Packed."""
    host_text: bytes
    """The same as the beginning of message ids."""
    body_max: int
    record_max: int
    index_tags: bool
    """True if a tag is one of a record's keys."""


Offsets = dict[tuple[str, int], int]
Body = Callable[
    [bytes, int, dict[int, Headers], Names, Offsets, Offsets, bytes, EndOfLog],
    tuple[int, bytes, list[Entry], bytes],
]
"""Type of `take` and of its C counterpart."""

_PAIR_TURN = NAME_END + PAIR_END
_crc32 = zlib.crc32
_new_tuple = tuple.__new__


def is_near(data: bytes, at: int) -> bool:
    """True if the frame at `at` may be a plain send: one cheap check of each request."""
    return data.startswith(BEGINNINGS, at + 8)


def take(
    data: bytes,
    at: int,
    headers: dict[int, Headers],
    names: Names,
    offsets: Offsets,
    next_offsets: Offsets,
    born_host: bytes,
    end_of_log: EndOfLog,
) -> tuple[int, bytes, list[Entry], bytes]:
    """Take whole frames of `data` from `at` on, up to the first one that is not a plain send.

    Returns the position of that one, the records, an entry for each and the answers' frames, which
    are true once the records are written. Changes `offsets` and the caches only. `offsets`: next
    offset of each queue that the run has touched; `next_offsets` has all other queues'. `born_host`
    is packed. A single loop, since it runs for every message.
    """
    position, limit, now_ms, store_host, host_text, body_max, record_max, index_tags = end_of_log
    pack, frame_head = FIXED[len(born_host), len(store_host)].pack, HEAD.pack
    hosts = BORN_IPV6 if len(born_host) == 20 else 0
    hosts |= STORE_IPV6 if len(store_host) == 20 else 0
    fixed_size = 74 + len(born_host) + len(store_host)
    pieces: list[bytes] = []
    entries: list[Entry] = []
    answers: list[bytes] = []
    end = len(data)
    while at + 8 <= end:
        length, word = PREFIX.unpack_from(data, at)
        body_at, stop = at + 8 + (word & 0xFFFFFF), at + 4 + length
        shapes = headers.get(word >> 24)
        if body_at >= stop or stop > end or shapes is None:
            break
        form = shapes.form
        try:
            key, born_ms, string, opaque = form.cut(data[at + 8 : body_at])
            queue, magic, topic_head, flag, sys_flag, is_oneway = shapes[key]
            unique, code, keys, properties = _properties(string, names, index_tags)
        except (LookupError, ValueError, TypeError):
            break
        body = data[body_at:stop]
        body_length, properties_length = len(body), len(properties)
        size = fixed_size + body_length + len(topic_head) + properties_length
        if (
            position + size > limit
            or properties_length > PROPERTIES_MAX
            or body_length > body_max
            or size > record_max
        ):
            break
        queue_offset = offsets.get(queue)
        if queue_offset is None:
            queue_offset = next_offsets.get(queue, 0)
        offsets[queue] = queue_offset + 1
        topic, queue_id = queue
        pieces += (
            pack(
                size, magic, _crc32(body) & CRC_MASK, queue_id, flag, queue_offset, position,
                sys_flag | hosts, born_ms, born_host, now_ms, store_host, 0, 0, body_length,
            ),
            body, topic_head, properties_length.to_bytes(2, "big"), properties,
        )  # fmt: skip
        entry = topic, queue_id, queue_offset, position, size, code, now_ms, keys, ONE_UNIT
        entries.append(_new_tuple(Entry, entry))
        if not is_oneway:
            answer = form.answer(host_text, position, queue_id, queue_offset, unique, opaque)
            length = len(answer)
            answers += (frame_head(length + 4, word & 0xFF000000 | length), answer)
        position += size
        at = stop
    return at, b"".join(pieces), entries, b"".join(answers)


def _properties(
    string: str, names: Names, index_tags: bool
) -> tuple[bytes, int, tuple[str, ...], bytes]:
    """Return unique key, tag code and keys of a property string, and its form in the record. Raises
    `ValueError`."""
    # Names are then at even places, each but the first preceded by the end of the previous pair.
    parts = string.replace(PAIR_END, _PAIR_TURN).split(NAME_END)
    shape = names[tuple(parts[::2])]
    if shape is None:
        raise ValueError("it asks for more than plain care")
    unique_at, tag_at, keys_at, wait_at, pair_ends, length, suffix = shape
    if string.count(PAIR_END) != pair_ends or len(parts) != length:
        raise ValueError("a name without a value")
    unique = parts[unique_at]
    if not (unique.isalnum() and unique.isascii()):
        raise ValueError("a key that answers have to escape")
    if wait_at and parts[wait_at] != "true":
        raise ValueError("it does not wait")
    keys = index_keys(unique, parts[keys_at]) if keys_at else (unique,)
    tag = parts[tag_at] if tag_at else None
    if tag and index_tags:
        keys = (*keys, tag_key(tag))
    return unique.encode(), tag_code(tag), keys, string.encode() + suffix
