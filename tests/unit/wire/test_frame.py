"""Frames: the three encodings, the limits, and every recorded frame (wire.md 1.1 to 1.4, 12)."""

import struct

import msgpack
import orjson
import pytest

from rocketbed.wire.command import Command, Encoding, RequestCode, answer, request
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError
from rocketbed.wire.frame import FRAME_LENGTH_MAX, FrameReader, encode, encode_head
from tests.support.wire_sessions import SESSIONS, recorded_frames, recorded_streams

ALL_ENCODINGS = list(Encoding)


def read_one(data: bytes) -> Command:
    (command,) = FrameReader().feed(data)
    return command


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(header: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header


# --- test vectors


def test_json_request_vector() -> None:
    text = (
        b'{"code":105,"extFields":{"topic":"WvT2"},"flag":0,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    vector = bytes.fromhex("0000008400000080") + text
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "WvT2"})
    command.opaque = 7
    assert encode(command) == vector
    assert read_one(vector) == command


def test_binary_request_vector() -> None:
    vector = bytes.fromhex(
        "0000002a 01000026 0069 00 01df 00000000 00000000 00000000 00000011"
        "0005 746f706963 00000006 57764175746f"
    )
    command = read_one(vector)
    assert (command.code, command.language, command.version) == (105, "JAVA", 479)
    assert command.fields == {"topic": "WvAuto"}
    assert command.encoding is Encoding.ROCKETMQ
    assert encode(command) == vector


@pytest.mark.parametrize("path", recorded_streams(), ids=lambda path: path.stem)
def test_recorded_streams_encode_again_byte_for_byte(path: object) -> None:
    data = path.read_bytes()  # type: ignore[attr-defined]
    reader = FrameReader()
    commands = reader.feed(data)
    assert reader.pending == 0
    assert commands
    assert b"".join(encode(command) for command in commands) == data


@pytest.mark.parametrize("session", SESSIONS)
def test_recorded_frames_say_what_the_recorder_saw(session: str) -> None:
    frames = recorded_frames(session)
    for frame in frames:
        command = read_one(frame.data)
        about = frame.about
        assert command.code == about["code"]
        assert command.opaque == about["opaque"]
        assert command.flag == about["flag"]
        assert command.version == about.get("version", 479)
        assert command.remark == about.get("remark", command.remark)
        if "extFields" in about:
            assert sorted(command.fields) == about["extFields"]
        assert len(command.body) == about["bodyLength"]
        assert command.encoding.name == about["serialize"]
    assert len(frames) > 60


# --- all encodings


@pytest.mark.parametrize("encoding", ALL_ENCODINGS)
def test_round_trip(encoding: Encoding) -> None:
    fields = {"a": "g", "b": "T", "e": "-3", "k": "false", "x y": "\u4e2d\U0001f600", "g": "0012"}
    command = request(RequestCode.SEND_MESSAGE_V2, fields, b"\x00body\xff", oneway=True)
    command.opaque = -5
    back = read_one(encode(command, encoding))
    assert (back.code, back.opaque, back.flag) == (310, -5, 2)
    assert back.fields == fields
    assert back.body == b"\x00body\xff"
    assert back.is_oneway
    assert not back.is_response


@pytest.mark.parametrize("encoding", ALL_ENCODINGS)
def test_answer_uses_the_encoding_of_its_request(encoding: Encoding) -> None:
    question = request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    question.opaque = 9
    arrived = read_one(encode(question, encoding))
    response = read_one(encode(answer(arrived, 0, "remark", {"offset": "41"})))
    assert response.encoding is encoding
    assert response.is_response
    assert (response.opaque, response.remark, response.fields) == (9, "remark", {"offset": "41"})


def test_a_frame_without_fields_stays_without() -> None:
    bare = request(106)
    assert b"extFields" not in encode(bare)
    assert b'"extFields":{}' in encode(request(34, {}))
    assert not read_one(encode(bare)).has_fields


def test_numbers_and_booleans_in_ext_fields_become_text() -> None:
    header = (
        b'{"code":310,"opaque":3,"flag":0,"language":"JAVA","version":121,'
        b'"extFields":{"d":4,"k":false,"m":true,"big":9007199254740993,"b":"T"}}'
    )
    command = read_one(json_frame(header))
    assert command.fields == {
        "d": "4",
        "k": "false",
        "m": "true",
        "big": "9007199254740993",
        "b": "T",
    }


def test_missing_members_default_and_unknown_ones_are_ignored() -> None:
    command = read_one(json_frame(b'{"code":34,"whatever":[1],"extFields":null}'))
    assert (command.code, command.opaque, command.flag, command.version) == (34, 0, 0, 0)
    assert command.language == "OTHER"
    assert command.fields == {}


def test_unknown_binary_language_counts_as_other() -> None:
    header = struct.pack(">hBhiiii", 105, 77, 479, 1, 0, 0, 0)
    assert read_one(binary_frame(header)).language == "OTHER"


def test_msgpack_values_are_positional_or_named() -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "3", "commitOffset": "7", "own": "x"}
    data = encode(request(RequestCode.UPDATE_CONSUMER_OFFSET, fields), Encoding.MSGPACK)
    (_, word) = struct.unpack_from(">iI", data)
    header = msgpack.unpackb(data[8 : 8 + (word & 0xFFFFFF)])
    assert word >> 24 == 2
    assert header[:4] == [15, 0, 0, 479]
    assert header[5] == [15, "g", "T", "3", "7", None, {"own": "x"}]
    assert read_one(data).fields == fields


def test_msgpack_response_can_be_read_without_its_request() -> None:
    question = read_one(encode(request(RequestCode.GET_MAX_OFFSET, {}), Encoding.MSGPACK))
    data = encode(answer(question, 0, None, {"offset": "12"}))
    response = read_one(data)
    assert response.fields == {"offset": "12"}
    assert response.answers == RequestCode.GET_MAX_OFFSET


def test_msgpack_values_of_any_type_count_as_text() -> None:
    header = msgpack.packb([15, 2, 0, 479, None, [15, "g", True, 3, None, 1.5]])
    data = struct.pack(">iI", 4 + len(header), 2 << 24 | len(header)) + header
    assert read_one(data).fields == {
        "consumerGroup": "g",
        "topic": "true",
        "queueId": "3",
        "bname": "1.5",
    }


def test_body_may_be_sent_after_its_head() -> None:
    command = request(33, {"offset": "1"})
    head = encode_head(command, 6)
    assert read_one(head + b"abcdef").body == b"abcdef"


# --- bad input


def refused(data: bytes) -> str:
    reader = FrameReader()
    with pytest.raises(RemoteProtocolError) as caught:
        reader.feed(data)
    with pytest.raises(RemoteProtocolError):
        reader.feed(b"more")
    return str(caught.value)


def test_frame_above_16_mib_is_refused_early() -> None:
    assert str(FRAME_LENGTH_MAX + 1) in refused(struct.pack(">i", FRAME_LENGTH_MAX + 1))
    assert FrameReader().feed(struct.pack(">i", FRAME_LENGTH_MAX)) == []


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3])
def test_negative_and_impossible_lengths_are_refused(length: int) -> None:
    assert "frame length" in refused(struct.pack(">i", length))


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (bytes.fromhex("16030105a8010005a4"), "TLS, which is not supported"),
        (b"PRI * HTTP/2.0\r\n", "gRPC"),
        (b"GET /metrics HTTP/1.1\r\n", "HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
    ],
)
def test_other_protocols_are_named(first: bytes, protocol: str) -> None:
    with pytest.raises(RemoteProtocolError, match=protocol):
        FrameReader().feed(first)


def test_unknown_encoding_is_refused() -> None:
    assert "encoding 7" in refused(struct.pack(">iI", 6, 7 << 24 | 2) + b"{}")


def test_header_longer_than_its_frame_is_refused() -> None:
    assert "header" in refused(struct.pack(">iI", 6, 3) + b"{}")


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"opaque":1',
        b"",
        b"[]",
        b'"text"',
        b"null",
        b'{"code":"105","opaque":1,"flag":0}',
        b'{"opaque":1,"flag":0}',
        b'{"code":105,"opaque":1.5,"flag":0}',
        b'{"code":105,"opaque":99999999999,"flag":0}',
        b'{"code":99999999999,"opaque":1,"flag":0,"extFields":{}}',
        b'{"code":105,"opaque":1,"flag":0,"extFields":["a"]}',
        b'{"code":true,"opaque":1,"flag":0}',
        b"\xff\xfe{}",
        b"[" * 100_000,
    ],
)
def test_json_without_a_header_is_refused(header: bytes) -> None:
    assert "JSON header" in refused(json_frame(header))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x00\x69\x00",
        struct.pack(">hBhiii", 105, 0, 479, 1, 0, 400),
        struct.pack(">hBhiii", 105, 0, 479, 1, 0, -1),
        struct.pack(">hBhiiii", 105, 0, 479, 1, 0, 0, 99),
        struct.pack(">hBhiiii", 105, 0, 479, 1, 0, 0, -4),
        struct.pack(">hBhiiiih", 105, 0, 479, 1, 0, 0, 2, 9),
        struct.pack(">hBhiiiihi", 105, 0, 479, 1, 0, 0, 6, 0, -7),
        struct.pack(">hBhiiii", 105, 0, 479, 1, 0, 1, 0) + b"\xff",
        struct.pack(">hBhiiii", 105, 0, 479, 1, 0, 0, 8)
        + struct.pack(">h1si1s", 1, b"\xff", 1, b"\xff"),
    ],
)
def test_binary_lengths_that_leave_the_header_are_refused(header: bytes) -> None:
    assert "binary header" in refused(binary_frame(header))


@pytest.mark.parametrize(
    "value",
    [
        b"\xc1",
        msgpack.packb([1, 2, 3]),
        msgpack.packb("text"),
        msgpack.packb([1, 2, 0, 4, None, [999, "x"]]),
        msgpack.packb([15, 2, 0, 4, None, [15, "a", "b", 3, 4, None, "no map"]]),
        msgpack.packb([15, 2, 0, 4, None, {1: "a"}]),
        msgpack.packb([15, 2, 0, 4, None, []]),
        msgpack.packb([15, 2, 0, 4, None, 7]),
        msgpack.packb([15, 2**40, 0, 4, None, None]),
        msgpack.packb([15, 2, 0, 4, b"bytes", None]),
    ],
)
def test_msgpack_without_a_header_is_refused(value: bytes) -> None:
    data = struct.pack(">iI", 4 + len(value), 2 << 24 | len(value)) + value
    assert "msgpack header" in refused(data)


def test_good_frames_before_a_bad_one_are_returned_first() -> None:
    reader = FrameReader()
    good = encode(request(105, {"topic": "T"}))
    assert len(reader.feed(good + good + struct.pack(">i", -1))) == 2
    with pytest.raises(RemoteProtocolError):
        reader.check()


def test_unencodable_command_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="200050"):
        encode(request(200_050), Encoding.ROCKETMQ)
    with pytest.raises(LocalProtocolError, match="frame"):
        encode_head(request(10, {}), FRAME_LENGTH_MAX)


def test_text_that_utf8_cannot_hold_is_named() -> None:
    with pytest.raises(LocalProtocolError, match=r"^key='\\udcff' of request 12: "):
        encode(request(12, {"topic": "T", "key": "\udcff"}))


def test_big_frame_arriving_in_pieces_is_joined_once() -> None:
    body = bytes(range(256)) * 4096
    data = encode(request(10, {"topic": "T"}, body))
    reader = FrameReader()
    commands = []
    for start in range(0, len(data), 65_536):
        commands += reader.feed(data[start : start + 65_536])
    assert [command.body for command in commands] == [body]


def test_deep_header_does_not_recurse() -> None:
    deep = b'{"code":1,"extFields":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}"
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(json_frame(deep))
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(deep)
