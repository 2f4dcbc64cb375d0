"""Rules of the switch for packets of one direction between two machines. Decides only: no I/O.

A packet gets the time at which it is delivered, or none. Delays keep the order of packets, as a
wire does. A rate counts IP headers too, and loss is a share of packets.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random
from typing import Final

from rocketbed.chaos.run.links import HEALTHY, LinkState

BACKLOG_S: Final = 0.25
"""Longest wait of a packet for its turn on a narrow link; after that packets are dropped."""
WAITING_MAX: Final = 20_000
"""Packets under way in one direction; beyond that packets are dropped."""
HELD_MAX: Final = 4096


class Path:
    """Direction between two machines: its state, its random stream, and its packets under way."""

    def __init__(self, random: Random) -> None:
        self.state = HEALTHY
        self.is_plain = True
        """True if packets may pass at once."""
        self.waiting = 0
        """Packets under way."""
        self.dropped = 0
        self._random = random
        self._busy_until = 0.0
        self._last = 0.0
        self._held: OrderedDict[bytes, bytes] = OrderedDict()

    def set(self, state: LinkState) -> list[bytes]:
        """Change the state. Return packets to deliver now.

        Those are the newest of each connection that a cut withheld, as if they had been on a long
        way. They tell both ends that the path is back; TCP alone would find out at its next
        retransmission, which after a cut of a minute may be a minute away.
        """
        was_cut = self.state.cut
        self.state = state
        self.is_plain = state == HEALTHY
        self._last = 0.0  # what comes now may overtake what was sent in another state
        if not was_cut or state.cut:
            return []
        held = list(self._held.values())
        self._held.clear()
        return held

    def arrived(self) -> None:
        """Note that one packet under way was delivered or given up."""
        self.waiting -= 1

    def delivery_time(self, packet: bytes, now: float) -> float | None:
        """Return when the packet is delivered, None if it is not; it is under way until
        `arrived`."""
        delivery = self._delivery(packet, now)
        if delivery is None or self.waiting >= WAITING_MAX:
            self.dropped += 1
            return None
        self.waiting += 1
        self._last = max(self._last, delivery)
        return self._last

    def _delivery(self, packet: bytes, now: float) -> float | None:
        state = self.state
        if state.cut:
            key = packet[12:24]  # addresses and ports
            self._held[key] = packet
            self._held.move_to_end(key)
            if len(self._held) > HELD_MAX:
                self._held.popitem(last=False)
            return None
        if state.loss and self._random.random() < state.loss:
            return None
        if state.rate is not None:
            begin = max(now, self._busy_until)
            if begin - now > BACKLOG_S:
                return None
            self._busy_until = now = begin + len(packet) / state.rate
        return now + state.delay_s + state.jitter_s * self._random.random()


@dataclass(eq=False, slots=True)
class Port:
    """A machine's port at the switch."""

    name: str
    address: bytes
    namespace: str
    tun: int
    size: int
    """Longest packet."""
    silent: bool = False
    paths: dict[bytes, tuple["Port", Path]] = field(default_factory=dict)
    """Address of another machine -> its port, and the path to it."""
