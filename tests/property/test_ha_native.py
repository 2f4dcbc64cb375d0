"""Frames of our own replication protocol: whole however they are cut, and nothing but an error
whatever a peer sends."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import Peer, sniff
from rocketbed.wire.ha_native import (
    BODY_MAX,
    COMPARED_MAX,
    HEAD_SIZE,
    MAP_MAX,
    Ack,
    Beat,
    Content,
    Data,
    Fenced,
    Frame,
    Hello,
    NativeReader,
    Reject,
    Welcome,
    encode,
    encode_data_head,
)

numbers = st.integers(0, (1 << 63) - 1)
names = st.text(max_size=255)
histories = st.lists(st.tuples(numbers, numbers), max_size=20).map(tuple)
contents: st.SearchStrategy[Content] = st.one_of(
    st.builds(
        Hello,
        cluster=names,
        group=names,
        replica=numbers,
        uuid=names,
        incarnation=numbers,
        promised=numbers,
        history=histories,
        end=numbers,
        first=numbers,
        durable=numbers,
        segment=st.integers(1, 1 << 40),
        learner=st.booleans(),
    ),
    st.builds(
        lambda compared, **fields: Welcome(compared=max(fields["cut"] - compared, 0), **fields),
        leader=numbers,
        incarnation=numbers,
        history=histories,
        end=numbers,
        first=numbers,
        confirm=numbers,
        cut=numbers,
        compared=st.integers(0, COMPARED_MAX),
        crc=st.integers(0, (1 << 32) - 1),
    ),
    st.builds(Reject, why=names, leader=st.none() | numbers, address=names, first=numbers),
    st.builds(Data, numbers, numbers, st.binary(min_size=1, max_size=3000)),
    st.builds(Ack, numbers, numbers, numbers),
    st.builds(Beat, numbers, numbers, st.booleans()),
    st.builds(Fenced, numbers),
)
frames = st.lists(st.builds(Frame, st.integers(0, (1 << 32) - 1), contents), max_size=6)


def bytes_of(frames: list[Frame]) -> bytes:
    return b"".join(encode(one.epoch, one.content) for one in frames)


@given(frames, st.data())
def test_frames_round_trip_however_split(frames_sent: list[Frame], data: st.DataObject) -> None:
    whole = bytes_of(frames_sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reader = NativeReader()
    read = []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        read += reader.feed(whole[begin:end])
    assert read == frames_sent
    if whole:
        assert sniff(whole[:8]) is Peer.NATIVE


@given(st.binary(max_size=200))
def test_random_bytes_fail_or_wait_for_more(data: bytes) -> None:
    for begin in (b"", encode(1, Fenced(2))[:HEAD_SIZE], encode(1, Beat(1, 2))[:6]):
        with suppress(RemoteProtocolError):
            assert all(isinstance(one, Frame) for one in NativeReader().feed(begin + data))


@given(contents, st.data())
def test_flipped_byte_fails_changes_the_frame_or_waits(
    content: Content, data: st.DataObject
) -> None:
    whole = bytearray(encode(7, content))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with suppress(RemoteProtocolError):
        read = NativeReader().feed(whole)
        if isinstance(content, Data | Ack | Beat):
            assert read != [Frame(7, content)]


@pytest.mark.parametrize(
    ("kind", "size", "pattern"),
    [
        (1, MAP_MAX + 1, "HELLO of"),
        (2, 0, "WELCOME of 0"),
        (4, 16, "DATA of 16"),
        (4, 16 + BODY_MAX + 1, "DATA of"),
        (5, 15, "ACK of 15"),
        (6, 1 << 31, "BEAT of"),
        (7, (1 << 32) - 1, "FENCE of"),
        (8, 1, "kind 8, which nobody knows"),
    ],
)
def test_bad_size_is_refused_before_the_body_arrives(kind: int, size: int, pattern: str) -> None:
    head = struct.pack(">4sBBHIIQ", b"RBHA", 1, kind, 0, 1, size, 0)
    with pytest.raises(RemoteProtocolError, match=pattern):
        NativeReader().feed(head)


def test_body_must_match_its_crc() -> None:
    good = encode(1, Data(5, 0, b"body"))
    with pytest.raises(RemoteProtocolError, match="does not match its CRC"):
        NativeReader().feed(good[:-1] + b"x")
    without = encode_data_head(1, 5, 0, 4) + b"bodx"
    assert NativeReader().feed(without) == [Frame(1, Data(5, 0, b"bodx"))]
    longer = bytearray(encode_data_head(1, 5, 0, 5) + b"body")
    longer[12:16] = struct.pack(">I", 16 + 4)
    with pytest.raises(RemoteProtocolError, match="says that it has 5"):
        NativeReader().feed(longer)


def test_out_of_bounds_name_or_number_is_refused() -> None:
    for content in (Fenced(1 << 63), Reject(why="x" * 256), Ack(1 << 63, 0, 0), Ack(0, 1 << 63, 0)):
        with pytest.raises(RemoteProtocolError, match="not a "):
            NativeReader().feed(encode(1, content))
