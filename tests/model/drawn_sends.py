"""Sends of a producer, drawn at random, with the expected code of each answer."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from rocketbed.wire.command import ONEWAY_BIT, Command, Encoding, RequestCode, ResponseCode
from rocketbed.wire.frame import encode
from rocketbed.wire.message import BatchItem, encode_batch
from tests.model.broker import Peer

QUEUES: Final = 4
TOPICS: Final = ("T", "U")
BATCH_TOPIC: Final = "C"
BODY_MAX: Final = 4096
Answer = ResponseCode


@dataclass(slots=True, kw_only=True)
class Send:
    """A request, and its expected result."""

    command: Command
    code: int
    """Code of the answer."""
    topic: str
    queue: int
    bodies: Sequence[bytes]
    properties: Sequence[str]
    waits: bool = True
    batch_key: str | None = None
    """Unique key of an inner batch."""
    repeated: str = ""
    """A field that the header has twice, first with another value."""

    @property
    def frame(self) -> bytes:
        data = encode(self.command)
        if not self.repeated or self.command.encoding is not Encoding.JSON:
            return data
        size = int.from_bytes(data[4:8])
        extra = f'"{self.repeated}":"7",'.encode()
        at = data.index(b'"extFields":{') + len(b'"extFields":{')
        lengths = struct.pack(">2i", len(data) - 4 + len(extra), size + len(extra))
        return lengths + data[8:at] + extra + data[at:]

    @property
    def is_oneway(self) -> bool:
        return bool(self.command.flag & ONEWAY_BIT)


class Drawn:
    """Draws sends."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0

    def send(self) -> Send:
        kinds = (self._plain, self._plain, self._plain, self._odd, self._at_limit, self._batch)
        send = self._random.choice(kinds)()
        self._number += 1
        send.command.opaque = self._number
        if self._random.random() < 0.15:
            send.command.flag |= ONEWAY_BIT
        send.command.encoding = self._random.choice(list(Encoding))
        if self._random.random() < 0.1:
            send.repeated = self._random.choice("befghi")
        return send

    def plain_of(self, size: int) -> Send:
        """Return a plain send to T with properties of a fixed length."""
        self._number += 1
        text = f"UNIQ_KEY\x01K{self._number:09d}\x02WAIT\x01true"
        send = self._send(Answer.SUCCESS, text, bytes(size), b="T", e=0)
        send.command.opaque = self._number
        return send

    def _key(self) -> str:
        return f"K{self._random.getrandbits(40):X}"

    def _properties(self, *, key: str, waits: bool) -> str:
        """Return properties as producers write them, the last one ended or not."""
        random = self._random
        pairs = [("UNIQ_KEY", key), ("WAIT", "true" if waits else "false")]
        if random.random() < 0.5:
            pairs.append(("TAGS", random.choice(("red", "violet"))))
        if random.random() < 0.4:
            pairs.append(("KEYS", random.choice(("one", "one two"))))
        if random.random() < 0.3:
            pairs.append(("own", random.choice(("x", "ü", "a b"))))
        random.shuffle(pairs)
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        return text[:-1] if random.random() < 0.5 else text

    def _send(self, code: int, text: str, body: bytes, waits: bool = True, **changes: Any) -> Send:
        random = self._random
        fields: dict[str, Any] = {
            "b": random.choice(TOPICS), "e": random.randrange(QUEUES), "f": random.choice((0, 1)),
            "h": random.choice((0, 7)), "i": text, "g": 1_700_000_000_000 + random.randrange(10**6),
        }  # fmt: skip
        fields |= changes
        return Send(
            command=Peer.send_request(body=body, **fields), code=code, topic=fields["b"],
            queue=fields["e"], bodies=[body], properties=[text], waits=waits,
        )  # fmt: skip

    def _body(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 20, 200, 1500)))

    def _plain(self) -> Send:
        text = self._properties(key=self._key(), waits=True)
        return self._send(Answer.SUCCESS, text, self._body())

    def _odd(self) -> Send:
        """Return a send that is valid but not plain."""
        random, body = self._random, self._body()
        waits, key = random.random() < 0.5, self._key()
        text = self._properties(key=random.choice((key, f"{key}-1", f'{key}"')), waits=waits)
        if random.random() < 0.3:
            text = text.rstrip("\x02") + "\x02DELAY\x010\x02"
        elif random.random() < 0.5:
            text = random.choice(("bare\x02", "own\x01a\x01b\x02", "\x02", "own\x01\x02")) + text
        elif random.random() < 0.3:
            group = "p" * random.choice((1000, 2000))
            return self._send(Answer.SUCCESS, text, body, waits, a=group)
        return self._send(Answer.SUCCESS, text, body, waits)

    def _at_limit(self) -> Send:
        """Return a send at a limit or beyond it."""
        text, body = self._properties(key=self._key(), waits=True), self._body()
        inner = text.rstrip("\x02") + "\x02INNER_NUM\x012\x02"
        cases: tuple[tuple[int, str, bytes, dict[str, Any]], ...] = (
            (Answer.INVALID_PARAMETER, text, body, {"e": QUEUES}),
            (Answer.SUCCESS, text, body, {"e": QUEUES - 1}),
            (Answer.TOPIC_NOT_EXIST, text, body, {"b": "unknown"}),
            (Answer.MESSAGE_ILLEGAL, text, b"", {}),
            (Answer.SUCCESS, text, bytes(BODY_MAX), {}),
            (Answer.MESSAGE_ILLEGAL, text, bytes(BODY_MAX + 1), {}),
            (Answer.NO_PERMISSION, text, body, {"f": 4}),
            (Answer.MESSAGE_ILLEGAL, inner, body, {}),
        )
        code, text, body, changes = self._random.choice(cases)
        return self._send(code, text, body, **changes)

    def _batch(self) -> Send:
        """Return several messages in one request."""
        random = self._random
        count, key, is_inner = random.choice((0, 1, 2, 5)), self._key(), random.random() < 0.5
        texts = [f"UNIQ_KEY\x01{key}{number}\x02" for number in range(count)]
        items = [BatchItem(self._body()[:500], 0, text.encode()) for text in texts]
        send = self._send(
            Answer.SUCCESS if count else Answer.MESSAGE_ILLEGAL, f"UNIQ_KEY\x01{key}\x02",
            encode_batch(items), b=BATCH_TOPIC if is_inner else random.choice(TOPICS), m=True,
        )  # fmt: skip
        send.command.code = RequestCode.SEND_BATCH_MESSAGE
        send.bodies, send.properties = [item.body for item in items], texts
        send.batch_key = key if is_inner else None
        return send
