"""Packets made by hand, and the kernel's table of connections."""

import socket
import struct

from rocketbed.chaos.backends.process.network.switch.resets import (
    RST,
    SYN,
    End,
    checksum,
    flags_and_acknowledged,
    key_back,
    make_segment,
    parse_table,
)

ONE, OTHER = bytes((10, 98, 0, 1)), bytes((10, 98, 0, 2))
KEY = ONE + OTHER + struct.pack(">HH", 40_000, 10_911)


def test_the_checksum_is_that_of_rfc_1071() -> None:
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2


def test_segment_has_valid_checksums_and_layout() -> None:
    packet = make_segment(KEY, 0xFEDCBA98, RST)
    assert len(packet) == 40
    assert packet[12:24] == KEY
    assert checksum(packet[:20]) == 0
    assert checksum(packet[12:20] + struct.pack(">BBH", 0, 6, 20) + packet[20:]) == 0
    assert struct.unpack(">I", packet[24:28]) == (0xFEDCBA98,)
    assert flags_and_acknowledged(packet) == (RST, 0)


def test_non_tcp_packet_has_no_flags() -> None:
    packet = make_segment(KEY, 0, SYN)
    assert flags_and_acknowledged(packet[:9] + b"\x01" + packet[10:]) is None
    assert flags_and_acknowledged(packet[:30]) is None


def test_the_way_back_swaps_both_ends() -> None:
    assert key_back(KEY) == OTHER + ONE + struct.pack(">HH", 10_911, 40_000)
    assert key_back(key_back(KEY)) == KEY


def test_kernel_table_with_mapped_addresses_is_read() -> None:
    columns = "00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0"
    lines = [
        f"   0: 0100620A:2A9F 00000000:0000 0A {columns}",
        f"   1: 0100620A:9C40 0200620A:2A9F 01 {columns}",
        f"   2: 0100620A:9C41 0200620A:2A9F 06 {columns}",
        "   3: 0000000000000000FFFF00000100620A:9C42 "
        f"0000000000000000FFFF00000200620A:2A9F 08 {columns}",
    ]
    ends = parse_table(lines)
    assert ends == [End(ONE, port, OTHER, 10_911) for port in (40_000, 40_002)]
    assert ends[0].key == KEY


def test_an_open_connection_of_this_machine_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, open("/proc/net/tcp") as table:
            local = socket.inet_aton("127.0.0.1")
            end = End(local, client.getsockname()[1], local, address[1])
            assert end in parse_table(table.read().splitlines()[1:])
            server.accept()[0].close()
