"""Ids of messages, as Java's producers make them (wire.md 4.6).

A unique key is upper-case hex of: client address (4 or 16 bytes), process id (2), a number that
differs for each producer (4; Java takes the hash of its class loader), milliseconds since the month
began (4), a counter (2). It stays the same over all attempts of a send, so that a reader can
recognize copies. RocketMQ: `MessageClientIDSetter`.
"""

import ipaddress
import struct
from datetime import UTC, datetime

from rocketbed.world.api import World

_TAIL = struct.Struct(">IH")
_BACKWARD_MAX_MS = 1_000_000
"""A clock set back by less than this at the start of a month counts as the month's beginning."""


class UniqueKeys:
    """Generates unique keys: 32 characters, or 56 for an IPv6 address."""

    def __init__(self, world: World, host: str) -> None:
        """`host` is the client's own IP address."""
        self._clock = world.clock
        pid = world.process.pid & 0xFFFF
        own = world.random.getrandbits(32)
        prefix = ipaddress.ip_address(host).packed + struct.pack(">HI", pid, own)
        self._prefix = prefix.hex().upper()
        self._month_began_ms = 0
        self._month_ends_ms = -1
        self._counter = 0

    def next(self) -> str:
        """Return a new key."""
        now = self._clock.wall_ms()
        if now >= self._month_ends_ms:
            self._begin_month(now)
        since = now - self._month_began_ms
        if -_BACKWARD_MAX_MS < since < 0:
            since = 0
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return self._prefix + _TAIL.pack(since & 0xFFFFFFFF, counter).hex().upper()

    def _begin_month(self, now_ms: int) -> None:
        offset = self._clock.utc_offset_ms()
        local = datetime.fromtimestamp((now_ms + offset) / 1000, UTC)
        first = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = first.year + first.month // 12, first.month % 12 + 1
        following = first.replace(year=year, month=month)
        self._month_began_ms = int(first.timestamp()) * 1000 - offset
        self._month_ends_ms = int(following.timestamp()) * 1000 - offset


def client_id(world: World, host: str) -> str:
    """Return the client's id for brokers: `ip@pid#number` (wire.md 6.1)."""
    return f"{host}@{world.process.pid}#{world.random.getrandbits(48)}"
