"""Resets of connections by the switch: both ends have to see them, and no other connection.

From the order on, no packet of such a connection passes. Each end is probed for the sequence number
it waits for; whatever it sends has that number, and is answered with RST. An end is done when the
kernel of its machine has no such connection any more.

RST is obeyed only with the exact sequence number that an end waits for (RFC 5961, 3.2). The switch
does not follow every connection, so it probes the end: a SYN in an open connection is answered with
an acknowledgement that carries that number (RFC 5961, 4.2).
"""

import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rocketbed.chaos.backends.process.network.netns import inside
from rocketbed.chaos.backends.process.network.switch.rules import Port

SYN: Final = 2
RST: Final = 4
ACK: Final = 16
TCP: Final = 6
HEADER: Final = 20
TABLES: Final = ("tcp", "tcp6")
CAN_BE_RESET: Final = frozenset((1, 4, 5, 8, 9, 11))
"""ESTABLISHED, both FIN_WAITs, CLOSE_WAIT, LAST_ACK, CLOSING."""
LOOK_S: Final = 0.002
"""Time from an answer to the check whether the end is closed."""
ASK_S: Final = 0.1
"""Time between two probes."""
GIVE_UP_S: Final = 3.0
"""An end may answer such probes only twice a second (`tcp_invalid_ratelimit`)."""


class Resets:
    """Connections that are being reset: one order at a time."""

    def __init__(self, write: Callable[[Port, bytes], None]) -> None:
        """`write` hands a packet to a machine."""
        self.doomed: dict[bytes, Port] = {}
        """Addresses and ports of the packets that an end sends -> its machine."""
        self.next_try = 0.0
        self._write = write
        self._pair: tuple[Port, Port] | None = None
        self._give_up = 0.0

    def begin(self, first: Port, second: Port) -> None:
        """Find the connections between two machines, and probe their ends, except those of a silent
        machine."""
        self._pair = first, second
        self._give_up = time.monotonic() + GIVE_UP_S
        self._ask()

    def is_doomed(self, packet: bytes) -> bool:
        key = packet[12:24]
        return key in self.doomed or key_back(key) in self.doomed

    def takes(self, packet: bytes, sender: Port) -> bool:
        """Inspect a packet. Return True if it must not pass."""
        if not self.is_doomed(packet):
            return False
        parsed = flags_and_acknowledged(packet)
        if parsed is not None and packet[12:24] in self.doomed:
            flags, acknowledged = parsed
            if flags & ACK and not flags & RST:
                self._write(sender, make_segment(key_back(packet[12:24]), acknowledged, RST))
            self.next_try = min(self.next_try, time.monotonic() + LOOK_S)
        return True

    def probe_again(self) -> None:
        """Check which ends are still open, and probe those again."""
        if self.doomed and time.monotonic() >= self.next_try:
            self._ask()

    def is_over(self) -> bool:
        """Return whether no end is open, or it took too long."""
        return not self.doomed or time.monotonic() >= self._give_up

    def end(self) -> int:
        """Stop trying. Return the number of ends that could not be reset."""
        remaining = len(self.doomed)
        self.doomed.clear()
        return remaining

    def _ask(self) -> None:
        assert self._pair is not None
        first, second = self._pair
        self.doomed = {
            end.key: machine
            for machine, peer in ((first, second), (second, first))
            if not machine.silent
            for end in ends_inside(machine.namespace, peer.address)
        }
        self.next_try = time.monotonic() + ASK_S
        for key, machine in self.doomed.items():
            self._write(machine, make_segment(key_back(key), 0, SYN))


class End(NamedTuple):
    """End of a connection, and its peer. Addresses as 4 bytes."""

    address: bytes
    port: int
    peer: bytes
    peer_port: int

    @property
    def key(self) -> bytes:
        """The bytes 12 to 24 of its packets."""
        return self.address + self.peer + struct.pack(">HH", self.port, self.peer_port)


def key_back(key: bytes) -> bytes:
    """Return the key of packets in the other direction."""
    return key[4:8] + key[:4] + key[10:12] + key[8:10]


def make_segment(key: bytes, sequence: int, flags: int) -> bytes:
    """Return a TCP segment without data, from the first address of the key to the second."""
    source, target, ports = key[:4], key[4:8], key[8:12]
    tcp = ports + struct.pack(">IIBBHHH", sequence, 0, 5 << 4, flags, 0, 0, 0)
    pseudo = source + target + struct.pack(">BBH", 0, TCP, len(tcp))
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp)) + tcp[18:]
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, HEADER + len(tcp), 0, 0x4000, 64, TCP, 0, source, target
    )
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + tcp


def flags_and_acknowledged(packet: bytes) -> tuple[int, int] | None:
    """Return TCP flags, and the sequence number that the sender waits for. None if the packet is
    not TCP."""
    start = 4 * (packet[0] & 15)
    if packet[9] != TCP or len(packet) < start + HEADER:
        return None
    return packet[start + 13], int.from_bytes(packet[start + 8 : start + 12], "big")


def checksum(data: bytes) -> int:
    """Return the internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ends_inside(namespace: str, peer: bytes) -> list[End]:
    """Return the open ends in a namespace whose peer has this address."""
    with inside(namespace):
        texts = [Path(f"/proc/thread-self/net/{table}").read_text() for table in TABLES]
    return [end for text in texts for end in parse_table(text.splitlines()[1:]) if end.peer == peer]


def parse_table(lines: Iterable[str]) -> list[End]:
    """Return the ends in the kernel's table (`/proc/net/tcp`, `tcp6`) that a reset can close."""
    ends = []
    for line in lines:
        _, local, remote, state, *_ = line.split()
        if int(state, 16) in CAN_BE_RESET:
            address, port = _parse(local)
            peer, peer_port = _parse(remote)
            ends.append(End(address, port, peer, peer_port))
    return ends


def _parse(text: str) -> tuple[bytes, int]:
    """Parse `0100007F:1F90`: the address in the machine's byte order; for IPv6 the mapped IPv4
    one."""
    address, _, port = text.partition(":")
    return struct.pack("=I", int(address[-8:], 16)), int(port, 16)
