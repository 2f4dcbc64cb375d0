"""Frames of the replication stream: vectors, recorded bytes, any cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import (
    TRANSFER_SIZE_MAX,
    Peer,
    ReportReader,
    Transfer,
    TransferReader,
    encode_report,
    encode_transfer,
    encode_transfer_head,
    sniff,
)
from tests.support.wire_sessions import WIRE, recorded, recorded_log


def test_frames_as_bytes() -> None:
    assert encode_report(0x0102030405) == bytes.fromhex("0000000102030405")
    assert encode_transfer_head(512, 3) == bytes.fromhex("000000000000020000000003")
    assert encode_transfer(512, b"abc") == encode_transfer_head(512, 3) + b"abc"
    assert TransferReader().feed(encode_transfer(7, b"")) == [Transfer(7, b"")]


def test_the_recorded_stream_is_the_recorded_log() -> None:
    frames = TransferReader().feed(recorded("ha-classic-c00-s2c.bin"))
    log = recorded_log("ha-classic-m.commitlog.tar.gz")
    segment_size = len(log[min(log)])
    position = frames[0].offset
    for frame in frames:
        assert frame.offset == position
        start = position - position % segment_size
        at = position - start
        assert log[start][at : at + len(frame.data)] == frame.data
        assert at + len(frame.data) <= segment_size
        position += len(frame.data)
    assert any(not frame.data for frame in frames)
    assert max(len(frame.data) for frame in frames) <= 32 * 1024
    encoded = b"".join(encode_transfer(frame.offset, frame.data) for frame in frames)
    assert encoded == recorded("ha-classic-c00-s2c.bin")


def test_recorded_reports_rise_to_the_end_of_the_log() -> None:
    index = json.loads((WIRE / "ha-classic.index.json").read_text())
    stream = recorded("ha-classic-c00-c2s.bin")
    assert index["connections"][0]["c2sBytes"] == len(stream)
    reports = ReportReader().feed(stream)
    assert len(reports) == len(stream) // 8
    assert reports == sorted(reports)
    frames = TransferReader().feed(recorded("ha-classic-c00-s2c.bin"))
    assert reports[-1] == frames[-1].offset + len(frames[-1].data)
    assert sniff(stream[:8]) is Peer.CLASSIC


def test_recorded_controller_mode_slave_is_recognised() -> None:
    assert sniff(recorded("ha-autoswitch-c00-c2s.bin")[:16]) is Peer.AUTOSWITCH
    assert sniff(recorded("ha-autoswitch-c01-c2s.bin")[:16]) is Peer.AUTOSWITCH


@pytest.mark.parametrize("offset", [2**32, 2**32 + 1, 2**32 + 65536, 2**32 + 65537])
def test_reports_of_4_gib_are_not_a_handshake(offset: int) -> None:
    assert sniff(encode_report(offset)) is None
    assert sniff(encode_report(offset) + encode_report(offset)) is Peer.CLASSIC


def test_kind_of_peer() -> None:
    assert sniff(b"") is None
    assert sniff(b"RBH") is None
    assert sniff(b"RBHA") is Peer.NATIVE
    assert sniff(encode_report(0)) is Peer.CLASSIC
    assert sniff(encode_report(2**32 + 2)) is Peer.CLASSIC
    assert sniff(encode_report(2**40)) is Peer.CLASSIC


@given(st.lists(st.tuples(st.integers(0, 2**62), st.binary(max_size=200))), st.integers(1, 40))
def test_frames_cut_anywhere_read_the_same(frames: list[tuple[int, bytes]], step: int) -> None:
    stream = b"".join(encode_transfer(offset, data) for offset, data in frames)
    reader, frames_read = TransferReader(), []
    for at in range(0, len(stream), step):
        frames_read += reader.feed(stream[at : at + step])
    assert frames_read == frames
    assert reader.pending == 0


@given(st.lists(st.integers(0, 2**63 - 1)), st.integers(1, 20))
def test_reports_cut_anywhere_read_the_same(offsets: list[int], step: int) -> None:
    stream = b"".join(encode_report(offset) for offset in offsets)
    reader, offsets_read = ReportReader(), []
    for at in range(0, len(stream), step):
        offsets_read += reader.feed(stream[at : at + step])
    assert offsets_read == offsets


def test_impossible_frame_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="offset -1"):
        ReportReader().feed(encode_report(-1))
    for offset, size in ((-1, 0), (0, -1), (0, TRANSFER_SIZE_MAX + 1)):
        with pytest.raises(RemoteProtocolError, match=f"{size} bytes at offset {offset}"):
            TransferReader().feed(encode_transfer_head(offset, size))
    assert TransferReader().feed(encode_transfer_head(0, TRANSFER_SIZE_MAX)) == []
