"""Connections that the switch is asked to reset: both ends have to see it, and nothing else.

From the order on, no packet of such a connection passes. Each end is asked for the sequence number
it waits for; whatever it sends tells the number, and is answered with RST. An end is done when the
kernel of its machine has no such connection any more.
"""

import time
from collections.abc import Callable
from typing import Final

from rocketbed.chaos.process.network.switch.packets import (
    ACK,
    RST,
    SYN,
    ends_inside,
    flags_and_acknowledged,
    key_back,
    make_segment,
)
from rocketbed.chaos.process.network.switch.rules import Port

LOOK_S: Final = 0.002
"""From an answer to a look whether the end is gone."""
ASK_S: Final = 0.1
"""Between two questions."""
GIVE_UP_S: Final = 3.0
"""An end may answer such questions only twice a second (`tcp_invalid_ratelimit`)."""


class Resets:
    """Connections that are being reset: one order at a time."""

    def __init__(self, write: Callable[[Port, bytes], None]) -> None:
        """`write` hands a packet to a machine."""
        self.doomed: dict[bytes, Port] = {}
        """Addresses and ports of what an end sends -> its machine."""
        self.next_try = 0.0
        self._write = write
        self._pair: tuple[Port, Port] | None = None
        self._give_up = 0.0

    def begin(self, one: Port, other: Port) -> None:
        """Find the connections between two, and ask their ends. A silent machine's are left."""
        self._pair = one, other
        self._give_up = time.monotonic() + GIVE_UP_S
        self._ask()

    def is_doomed(self, packet: bytes) -> bool:
        """Whether a packet belongs to such a connection."""
        key = packet[12:24]
        return key in self.doomed or key_back(key) in self.doomed

    def takes(self, packet: bytes, sender: Port) -> bool:
        """Look at a packet; True when it must not pass."""
        if not self.is_doomed(packet):
            return False
        parsed = flags_and_acknowledged(packet)
        if parsed is not None and packet[12:24] in self.doomed:
            flags, acknowledged = parsed
            if flags & ACK and not flags & RST:
                self._write(sender, make_segment(key_back(packet[12:24]), acknowledged, RST))
            self.next_try = min(self.next_try, time.monotonic() + LOOK_S)
        return True

    def try_again(self) -> None:
        """Look which ends are still there, and ask those again."""
        if self.doomed and time.monotonic() >= self.next_try:
            self._ask()

    def is_over(self) -> bool:
        """Whether no end is left, or it took too long."""
        return not self.doomed or time.monotonic() >= self._give_up

    def end(self) -> int:
        """Leave it at that; ends that could not be reset."""
        left = len(self.doomed)
        self.doomed.clear()
        return left

    def _ask(self) -> None:
        assert self._pair is not None
        one, other = self._pair
        self.doomed = {
            end.key: machine
            for machine, peer in ((one, other), (other, one))
            if not machine.silent
            for end in ends_inside(machine.namespace, peer.address)
        }
        self.next_try = time.monotonic() + ASK_S
        for key, machine in self.doomed.items():
            self._write(machine, make_segment(key_back(key), 0, SYN))
