"""The plain sends of one read, taken in one go: frames in; records, entries and answers out.

A broker under load gets reads full of sends that differ in a few texts only: born time, property
string, opaque. `take` cuts headers at these and knows what is between them from an earlier frame,
so little is parsed and no object is made for a message but its entry. What it does not know, or
what is not plain, it leaves to the general way, in its place among the others.

Its interface is bytes, numbers, tuples and mappings, and it changes only what it is given, so that
a body in another language can take its place.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.node.store.errors import MessageRejected
from rocketbed.node.store.run import FIXED, LogTail
from rocketbed.wire.command import ONEWAY_BIT, RESPONSE_BIT, RequestCode
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.frame import HEAD, PREFIX
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.message import BORN_IPV6, CRC_MASK, STORE_IPV6
from rocketbed.wire.properties import (
    CRC32,
    KEYS,
    NAME_END,
    PAIR_END,
    PROPERTIES_MAX,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    index_keys,
    tag_key,
)
from rocketbed.wire.send_headers import BEGINNINGS, Form, HeaderKey
from rocketbed.wire.sends import read_send

SLOW_PROPERTIES: Final = frozenset(
    {
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "TRAN_MSG",
        "POP_CK",
        "INNER_NUM",
    }
)
"""Properties that may change how a message is taken."""
SHAPES_MAX: Final = 16_384
"""Shapes of headers that are remembered, then all are forgotten; a producer has one a queue."""
HEADER_MAX: Final = 1024
"""The longest header that has a shape, bytes: what peers send takes 16 MiB here at most."""
NAMES_MAX: Final = 512
"""The same for the names of a message's properties."""

HeaderShape = tuple[tuple[str, int], int, bytes, int, int, int]
"""Topic and queue id; magic; topic as a record has it; flag; system flag; whether it is one-way."""
NamesKey = tuple[str, ...]
"""Names of a property string, each but the first behind the end of the pair before it."""
NamesShape = tuple[int, int, int, int, int, int, bytes]
"""Where among names and values UNIQ_KEY, TAGS, KEYS and WAIT have theirs, 0 without one; how many
ends of pairs there are, and how many names and values; what comes behind them in the record."""


class EndOfLog(NamedTuple):
    """Where records go, and what they may be; a plain tuple."""

    position: int
    """Physical offset of the first record."""
    limit: int
    """Where the last one has to end, or before."""
    now_ms: int
    """Store time of all."""
    store_host: bytes
    """Packed."""
    host_text: bytes
    """The same as message ids begin."""
    body_max: int
    record_max: int
    index_tags: bool
    """Whether a tag is one of a record's keys."""


_PAIR_TURN = NAME_END + PAIR_END
_TRIALS = ("1700000000001", "one", 1000001), ("1700000000002", "two", 1000002)
"""Values tried in a header. What has the meaning of both can only be what was put there."""
_crc32 = zlib.crc32
_new_tuple = tuple.__new__


class Headers(dict[HeaderKey, HeaderShape]):
    """Shapes of headers of one encoding. Raises `KeyError` for one that is not of a plain send."""

    def __init__(
        self,
        form: Form,
        tail: LogTail,
        meaning: Callable[[str, str, str, str], tuple[int, int, int]],
    ) -> None:
        """`meaning`: queue id, system flag and flag from texts of topic and these three; raises
        `KeyError`, `ValueError` or `TypeError` for what is not plain."""
        super().__init__()
        self.form = form
        self._tail = tail
        self._meaning = meaning

    def __missing__(self, key: HeaderKey) -> HeaderShape:
        try:
            for born, properties, opaque in _TRIALS:
                header = self.form.join(key, born, properties, opaque)
                if len(header) > HEADER_MAX:
                    raise KeyError(key)
                command = self.form.decode(header, b"")
                send = read_send(command)
                if (
                    command.code != RequestCode.SEND_MESSAGE_V2
                    or command.flag & RESPONSE_BIT
                    or command.opaque != opaque
                    or send.born_ms != born
                    or send.properties != properties
                ):
                    raise KeyError(key)
            queue_id, sys_flag, flag = self._meaning(
                send.topic, send.queue_id, send.sys_flag, send.flag
            )
            tail = self._tail
            head = tail.topic_heads.get(send.topic) or tail.topic_head(send.topic)
        except (
            *(RemoteProtocolError, MessageRejected),
            *(ValueError, TypeError, AttributeError, OverflowError),
        ) as exc:
            raise KeyError(key) from exc
        is_oneway = command.flag & ONEWAY_BIT
        if len(self) >= SHAPES_MAX:
            self.clear()
        shape = self[key] = (send.topic, queue_id), *head, flag, sys_flag, is_oneway
        return shape


class Names(dict[NamesKey, NamesShape | None]):
    """What names of properties ask for; None for more than plain care."""

    def __init__(self, suffix: bytes) -> None:
        """`suffix`: properties that the broker adds."""
        super().__init__()
        self._suffix = suffix

    def __missing__(self, key: NamesKey) -> NamesShape | None:
        shape = self._read(key)
        if sum(map(len, key)) <= NAMES_MAX:
            if len(self) >= SHAPES_MAX:
                self.clear()
            self[key] = shape
        return shape

    def _read(self, key: NamesKey) -> NamesShape | None:
        is_ended = key[-1] == PAIR_END
        names = list(key[:-1] if is_ended else key)
        # Each but the first stands behind the end of the pair before it.
        if not all(name.startswith(PAIR_END) for name in names[1:]):
            return None
        names[1:] = [name[1:] for name in names[1:]]
        if UNIQUE_KEY not in names or len(set(names)) < len(names) or "" in names:
            return None
        if any(name in SLOW_PROPERTIES or name.endswith(CRC32) for name in names):
            return None
        unique_at, tag_at, keys_at, wait_at = (
            2 * names.index(name) + 1 if name in names else 0
            for name in (UNIQUE_KEY, TAGS, KEYS, WAIT)
        )
        suffix = self._suffix if is_ended else PAIR_END.encode() + self._suffix
        pair_ends = len(key) - 1
        return unique_at, tag_at, keys_at, wait_at, pair_ends, 2 * len(names) + is_ended, suffix


def is_near(data: bytes, at: int) -> bool:
    """Whether the frame at `at` may be a plain send: one cheap look at each request."""
    return data.startswith(BEGINNINGS, at + 8)


def take(
    data: bytes,
    at: int,
    headers: Mapping[int, Headers],
    names: Names,
    offsets: dict[tuple[str, int], int],
    next_offsets: dict[tuple[str, int], int],
    born_host: bytes,
    end_of_log: EndOfLog,
) -> tuple[int, list[bytes], list[Entry], list[bytes]]:
    """Take whole frames of `data` from `at` on, up to the first one that is not a plain send.

    Returns where that one begins, the pieces of the records, an entry for each and the pieces of
    the answers, which are true once the records are written. Changes `offsets` and the caches
    only. `offsets`: next offset of each queue that the run has touched; those of others stand in
    `next_offsets`. `born_host` is packed. One loop, since it runs for every message.
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
            unique, tag, keys, properties = _properties(string, names)
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
        if tag and index_tags:
            keys = (*keys, tag_key(tag))
        code = tag_code(tag)
        entry = topic, queue_id, queue_offset, position, size, code, now_ms, keys, ONE_UNIT
        entries.append(_new_tuple(Entry, entry))
        if not is_oneway:
            answer = form.answer(host_text, position, queue_id, queue_offset, unique, opaque)
            length = len(answer)
            answers += (frame_head(length + 4, word & 0xFF000000 | length), answer)
        position += size
        at = stop
    return at, pieces, entries, answers


def _properties(string: str, names: Names) -> tuple[bytes, str | None, tuple[str, ...], bytes]:
    """Unique key, tag and keys of a property string, and the record's. Raises `ValueError`."""
    # Names stand at even places then, each but the first with the end of the pair before it.
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
    return unique.encode(), tag, keys, string.encode() + suffix
