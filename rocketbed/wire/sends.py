"""A send and its answer as bytes: a broker's most frequent work, so it bypasses the general coding.

Requests 310 are read by the texts of their header, and answers to single messages are filled into
templates; requests without a plain form are left to the general coding (`wire.command`,
`wire.frame`).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketbed.wire.command import Command, Encoding, RequestCode
from rocketbed.wire.encoding.positional import shape_of
from rocketbed.wire.frame import HEAD, FrameReader, encode
from rocketbed.wire.send_headers import FORMS

_V2_NAMES = shape_of(RequestCode.SEND_MESSAGE_V2, False)
_new_tuple = tuple.__new__


class PlainSend(NamedTuple):
    """Texts of a send that is neither a batch nor a retry, as the producer wrote them."""

    topic: str
    properties: str
    queue_id: str
    sys_flag: str
    born_ms: str
    flag: str


def read_send(command: Command) -> PlainSend:
    """Return a plain `SendMessageV2Request`, unchecked: values may be of any type a peer can write.

    Raises `KeyError` for another code, another shape, a batch or a retry.
    """
    row = command.row
    if row is None:
        raw = command.raw_fields
        if raw.get("m", "false") != "false" or raw.get("j", "0") != "0":
            raise KeyError("m")
        values = raw["b"], raw["i"], raw["e"], raw["f"], raw["g"], raw["h"]
    else:
        if command.names is not _V2_NAMES or len(row) < 9:
            raise KeyError("b")
        optional = row[9:13]
        if optional[3:4] not in ([], [None], ["false"]) or optional[:1] not in ([], [None], ["0"]):
            raise KeyError("m")
        values = row[1], row[8], row[4], row[5], row[6], row[7]
    return _new_tuple(PlainSend, values)


def with_outcome(
    answers: bytes, code: int, remark: str | None = None, fields: Mapping[str, str] | None = None
) -> bytes:
    """Return frames of answers to sends, with another code, remark and, if given, other fields."""
    frames = FrameReader()
    frames.add(answers)
    changed: list[bytes] = []
    for command in frames.next():
        command.code, command.remark = code, remark
        if fields is not None:
            command.raw_fields = dict(fields)
        changed.append(encode(command))
    return b"".join(changed)


class SendAnswers:
    """Frames of answers to stored single messages; one object for each store."""

    def __init__(self, host: bytes) -> None:
        """`host`: the store's packed address and port, the first part of every message id."""
        self._text: Final = host.hex().upper()
        self.host_text: Final = self._text.encode()
        """First part of every message id."""

    def add(
        self,
        parts: list[bytes],
        command: Command,
        *,
        offset: int,
        queue_id: int,
        queue_offset: int,
        key: str,
    ) -> bool:
        """Append the answer's frame to `parts`; False for a request that has no template.

        `offset` is the message's physical offset, `key` its UNIQ_KEY.
        """
        if not (key.isalnum() and key.isascii()):
            return False
        opaque = b"%d" % command.opaque if command.encoding == Encoding.JSON else command.opaque
        header = FORMS[command.encoding].answer(
            self.host_text, offset, queue_id, queue_offset, key.encode(), opaque
        )
        length = len(header)
        parts += (HEAD.pack(length + 4, command.encoding << 24 | length), header)
        return True

    def fields(
        self, offsets: list[int], queue_id: int, queue_offset: int, key: str, batch_key: str | None
    ) -> dict[str, str]:
        """Return the header's fields of any answer: of a batch, or with another status."""
        fields = {
            "msgId": ",".join(f"{self._text}{offset:016X}" for offset in offsets),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": key,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if batch_key is not None:
            fields["batchUniqId"] = batch_key
        return fields
