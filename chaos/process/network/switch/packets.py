"""Packets that the switch makes itself, and connections of a namespace: what a reset needs.

RST is obeyed only with the exact sequence number that an end waits for (RFC 5961, 3.2). The switch
does not follow every connection; it asks the end: a SYN in an open connection is answered with an
acknowledgement that carries that number (RFC 5961, 4.2).
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rocketbed.chaos.process.network.netns import inside

SYN: Final = 2
RST: Final = 4
ACK: Final = 16
TCP: Final = 6
HEADER: Final = 20
TABLES: Final = ("tcp", "tcp6")
CAN_BE_RESET: Final = frozenset((1, 4, 5, 8, 9, 11))
"""ESTABLISHED, both FIN_WAITs, CLOSE_WAIT, LAST_ACK, CLOSING."""


class End(NamedTuple):
    """One end of a connection: where it is, and whom it speaks to. Addresses as 4 bytes."""

    address: bytes
    port: int
    peer: bytes
    peer_port: int

    @property
    def key(self) -> bytes:
        """What its packets have at 12:24."""
        return self.address + self.peer + struct.pack(">HH", self.port, self.peer_port)


def key_back(key: bytes) -> bytes:
    """The key of packets in the other direction."""
    return key[4:8] + key[:4] + key[10:12] + key[8:10]


def make_segment(key: bytes, sequence: int, flags: int) -> bytes:
    """A TCP segment without data, from the first address of the key to the second."""
    source, target, ports = key[:4], key[4:8], key[8:12]
    tcp = ports + struct.pack(">IIBBHHH", sequence, 0, 5 << 4, flags, 0, 0, 0)
    pseudo = source + target + struct.pack(">BBH", 0, TCP, len(tcp))
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp)) + tcp[18:]
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, HEADER + len(tcp), 0, 0x4000, 64, TCP, 0, source, target
    )
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + tcp


def flags_and_acknowledged(packet: bytes) -> tuple[int, int] | None:
    """TCP flags, and the sequence number that the sender waits for. None for what is not TCP."""
    start = 4 * (packet[0] & 15)
    if packet[9] != TCP or len(packet) < start + HEADER:
        return None
    return packet[start + 13], int.from_bytes(packet[start + 8 : start + 12], "big")


def checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ends_inside(namespace: str, peer: bytes) -> list[End]:
    """Open ends of a namespace whose peer has this address."""
    with inside(namespace):
        texts = [Path(f"/proc/thread-self/net/{table}").read_text() for table in TABLES]
    return [end for text in texts for end in parse_table(text.splitlines()[1:]) if end.peer == peer]


def parse_table(lines: Iterable[str]) -> list[End]:
    """Ends in the kernel's table (`/proc/net/tcp`, `tcp6`) that a reset can end."""
    ends = []
    for line in lines:
        _, local, remote, state, *_ = line.split()
        if int(state, 16) in CAN_BE_RESET:
            address, port = _parse(local)
            peer, peer_port = _parse(remote)
            ends.append(End(address, port, peer, peer_port))
    return ends


def _parse(text: str) -> tuple[bytes, int]:
    """`0100007F:1F90`: the address in the machine's byte order; of IPv6 the mapped IPv4 one."""
    address, _, port = text.partition(":")
    return struct.pack("=I", int(address[-8:], 16)), int(port, 16)
