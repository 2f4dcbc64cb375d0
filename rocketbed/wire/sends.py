"""A send and its answer, as bytes: what a broker does most, so it goes past the general coding.

Requests 310 are read by the texts of their header, and answers to single messages are filled into
templates; what has no plain form is left to the general coding (`wire.command`, `wire.frame`).
"""

from typing import Final, NamedTuple

from rocketbed.wire.command import LANGUAGE, RESPONSE_BIT, VERSION, Command, Encoding, RequestCode
from rocketbed.wire.encoding.positional import pack_header, shape_of

_JSON_ANSWER = (
    b'{"code":0,"extFields":{"msgId":"%%b%%016X","queueId":"%%d","queueOffset":"%%d",'
    b'"transactionId":"%%b","MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,'
    b'"language":"%b","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
) % (LANGUAGE.encode(), VERSION)
"""Host, physical offset, queue id, queue offset, unique key, opaque."""
_MSGPACK_WORD = Encoding.MSGPACK << 24
_ROW_END = (None, None, "DefaultRegion", "true")
"""Rest of a `SendMessageResponse` by position: no batch, no recall handle, region, trace."""
_V2_NAMES = shape_of(RequestCode.SEND_MESSAGE_V2, False)
_new_tuple = tuple.__new__


class PlainSend(NamedTuple):
    """The texts of a send that is neither a batch nor a retry, as the producer wrote them."""

    topic: str
    properties: str
    queue_id: str
    sys_flag: str
    born_ms: str
    flag: str


def read_send(command: Command) -> PlainSend:
    """A plain `SendMessageV2Request`, unchecked: values may be of any type a peer can write.

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
        rest = row[9:13]
        if rest[3:4] not in ([], [None], ["false"]) or rest[:1] not in ([], [None], ["0"]):
            raise KeyError("m")
        values = row[1], row[8], row[4], row[5], row[6], row[7]
    return _new_tuple(PlainSend, values)


class SendAnswers:
    """Frames that answer single messages which were stored; one for each store."""

    def __init__(self, host: bytes) -> None:
        """`host`: the store's packed address and port, the first part of every message id."""
        self._text: Final = host.hex().upper()
        self._hex: Final = self._text.encode()

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
        if command.encoding is Encoding.JSON and key.isalnum() and key.isascii():
            header = _JSON_ANSWER % (
                self._hex, offset, queue_id, queue_offset, key.encode(), command.opaque,
            )  # fmt: skip
            word = 0
        elif command.encoding is Encoding.MSGPACK:
            message_id = f"{self._text}{offset:016X}"
            row = [message_id, str(queue_id), str(queue_offset), key, *_ROW_END]
            header = pack_header(
                (0, command.opaque, RESPONSE_BIT, VERSION, None, [command.code, *row])
            )
            word = _MSGPACK_WORD
        else:
            return False
        length = len(header)
        parts.append((length + 4 << 32 | word | length).to_bytes(8, "big"))
        parts.append(header)
        return True

    def fields(
        self, offsets: list[int], queue_id: int, queue_offset: int, key: str, batch_key: str | None
    ) -> dict[str, str]:
        """The header's fields of any answer: of a batch, or with another status."""
        found = {
            "msgId": ",".join(f"{self._text}{offset:016X}" for offset in offsets),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": key,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if batch_key is not None:
            found["batchUniqId"] = batch_key
        return found
