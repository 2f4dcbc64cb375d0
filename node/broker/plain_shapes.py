"""Caches of earlier plain sends: of their texts, their headers, their properties.

Each is a mapping that parses a missing key in the general way, and keeps the result: `plain_run`
and `send` only look things up. All have a limit, as peers choose the keys.
"""

from collections.abc import Mapping
from typing import Final

from rocketbed.node.store.errors import MessageRejected
from rocketbed.node.store.run import LogTail
from rocketbed.wire.command import ONEWAY_BIT, RESPONSE_BIT, RequestCode
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.properties import CRC32, KEYS, PAIR_END, TAGS, UNIQUE_KEY, WAIT
from rocketbed.wire.send_headers import Form, HeaderKey
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
        "REPLY_TO_CLIENT",
        "__LITE_TOPIC",
        "_SYS_MSG_PRIORITY_",
        "INNER_MULTI_DISPATCH",
    }
)
"""Properties that may change how a message is handled."""
SLOW_SYS_FLAGS: Final = 0xFC
"""Transaction, host family and inner batch bits: none is set in a plain message."""
MEANINGS_MAX: Final = 65_536
SHAPES_MAX: Final = 16_384
"""Most header shapes in the cache, which is then emptied; a producer has one a queue."""
HEADER_MAX: Final = 1024
"""Longest header that is cached, bytes: a peer's header may have up to 16 MiB."""
NAMES_MAX: Final = 512
"""The same for the names of a message's properties."""

HeaderShape = tuple[tuple[str, int], int, bytes, int, int, int]
"""Topic and queue id; magic; topic as a record has it; flag; system flag; one-way bit."""
NamesKey = tuple[str, ...]
"""Names of a property string, each but the first after the end of the previous pair."""
NamesShape = tuple[int, int, int, int, int, int, bytes]
"""Positions of the values of UNIQ_KEY, TAGS, KEYS and WAIT among names and values, 0 if absent;
number of pair ends; number of names and values; the bytes that follow them in the record."""


_TRIALS = ("1700000000001", "one", 1000001), ("1700000000002", "two", 1000002)
"""Values tried in a header. Fields that decode to both can only be the ones tried."""


class Meanings(dict[tuple[str, str, str, str], tuple[int, int, int]]):
    """Queue id, system flag and flag of plain sends by the texts of topic and these three.

    Raises `KeyError`, `ValueError`, `TypeError` or `OverflowError` for a send that is not plain.
    """

    def __init__(self, sendable: Mapping[str, int]) -> None:
        """`sendable`: topics whose sends need no more checks, with the number of their queues."""
        super().__init__()
        self._sendable = sendable

    def __missing__(self, texts: tuple[str, str, str, str]) -> tuple[int, int, int]:
        queues = self._sendable[texts[0]]
        queue_id, sys_flag, flag = map(int, texts[1:])
        if (
            not 0 <= queue_id < queues
            or sys_flag & SLOW_SYS_FLAGS
            or not 0 <= sys_flag <= 0x7FFFFFFF
            or not -0x80000000 <= flag <= 0x7FFFFFFF
        ):
            raise ValueError("not plain")
        if len(self) >= MEANINGS_MAX:
            self.clear()
        self[texts] = queue_id, sys_flag, flag
        return queue_id, sys_flag, flag


class Headers(dict[HeaderKey, HeaderShape]):
    """Shapes of headers of one encoding. Raises `KeyError` for a header that is not of a plain
    send."""

    def __init__(
        self,
        form: Form,
        tail: LogTail,
        meanings: Meanings,
    ) -> None:
        super().__init__()
        self.form = form
        self._tail = tail
        self._meanings = meanings

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
            texts = send.topic, send.queue_id, send.sys_flag, send.flag
            queue_id, sys_flag, flag = self._meanings[texts]
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
    """Shapes of property names; None if they ask for more than the plain way does."""

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
        # Each but the first follows the end of the previous pair.
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
