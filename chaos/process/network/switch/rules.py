"""What the switch does to packets of one direction between two machines. Decides only: no I/O.

A packet gets the time at which it is delivered, or none. Delays keep the order of packets, as a
wire does.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random
from typing import Final

BACKLOG_S: Final = 0.25
"""How long a packet may wait for its turn on a narrow link; what comes then is dropped."""
WAITING_MAX: Final = 20_000
"""Packets under way in one direction; what comes then is dropped."""
HELD_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One direction, as `LinkState` has it; `loss` is a share of packets, between 0 and 1."""

    cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to this much more, for each packet anew."""
    loss: float = 0.0
    rate: int | None = None
    """Bytes a second, IP headers counted."""


PLAIN: Final = Rule()


class Path:
    """One direction: its rule, its chance, and what is under way."""

    def __init__(self, random: Random) -> None:
        self.rule = PLAIN
        self.is_plain = True
        """Whether packets may pass at once."""
        self.waiting = 0
        """Packets under way."""
        self.dropped = 0
        self._random = random
        self._busy_until = 0.0
        self._last = 0.0
        self._held: OrderedDict[bytes, bytes] = OrderedDict()

    def set(self, rule: Rule) -> list[bytes]:
        """Change the rule; packets to deliver now.

        Those are the newest of each connection that a cut withheld, as if they had been on a long
        way. They tell both ends that the path is back; TCP alone would find out at its next
        retransmission, which after a cut of a minute may be a minute away.
        """
        was_cut = self.rule.cut
        self.rule = rule
        self.is_plain = rule == PLAIN
        self._last = 0.0  # what comes now may overtake what was sent by another rule
        if not was_cut or rule.cut:
            return []
        held = list(self._held.values())
        self._held.clear()
        return held

    def arrived(self) -> None:
        """One packet under way was delivered or given up."""
        self.waiting -= 1

    def due(self, packet: bytes, now: float) -> float | None:
        """When the packet is delivered, if at all; it is under way until `arrived`."""
        due = self._due(packet, now)
        if due is None or self.waiting >= WAITING_MAX:
            self.dropped += 1
            return None
        self.waiting += 1
        self._last = max(self._last, due)
        return self._last

    def _due(self, packet: bytes, now: float) -> float | None:
        rule = self.rule
        if rule.cut:
            key = packet[12:24]  # addresses and ports
            self._held[key] = packet
            self._held.move_to_end(key)
            if len(self._held) > HELD_MAX:
                self._held.popitem(last=False)
            return None
        if rule.loss and self._random.random() < rule.loss:
            return None
        if rule.rate is not None:
            begin = max(now, self._busy_until)
            if begin - now > BACKLOG_S:
                return None
            self._busy_until = now = begin + len(packet) / rule.rate
        return now + rule.delay_s + rule.jitter_s * self._random.random()


@dataclass(eq=False, slots=True)
class Port:
    """A machine's place at the switch."""

    name: str
    address: bytes
    namespace: str
    tun: int
    size: int
    """Longest packet."""
    silent: bool = False
    paths: dict[bytes, tuple["Port", Path]] = field(default_factory=dict)
    """Address of another machine -> its port, and the way there."""
