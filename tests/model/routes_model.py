"""Tables that a nameserver must have after brokers register, change, leave and fall silent
(wire.md 3.2 to 3.8)."""

from dataclasses import dataclass, field
from typing import Final

from rocketbed.remoting.connection import Connection

CLUSTERS: Final = {"a": "c1", "b": "c1", "z": "c2"}
"""Cluster of each broker name."""
ACTING: Final = {"a": True, "b": None, "z": False}
"""True if a slave may act as master; None for a broker too old to know."""
WRITE: Final = 2
Queues = tuple[int, int]
"""Number of queues, and their permission."""


@dataclass(slots=True)
class Live:
    """The last registration of an address."""

    name: str
    number: int
    version: tuple[int, int]
    """Counter and state."""
    timeout_s: float
    heard_s: float
    link: Connection


@dataclass(slots=True)
class Model:
    """Expected tables."""

    numbers: dict[str, dict[int, str]] = field(default_factory=dict)
    """Broker name -> id -> address; no name without an address."""
    topics: dict[str, dict[str, Queues]] = field(default_factory=dict)
    """Topic -> broker name -> queues."""
    live: dict[str, Live] = field(default_factory=dict)
    """By address."""
    orders: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    """Broker name -> address whose whole table was taken last."""

    def register(self, address: str, new: Live, topics: dict[str, Queues]) -> str | None:
        """Return the master's address in the answer, or None."""
        name, number, acting = new.name, new.number, ACTING[new.name]
        addresses = self.numbers.get(name, {})
        holder = addresses.get(number, address)
        registered = self.live.get(holder)
        if holder != address and registered and registered.version[1] > new.version[1]:
            self.live.pop(address, None)
            return None
        is_first = number not in addresses
        addresses = {at: one for at, one in addresses.items() if one != address}
        self.numbers[name] = addresses = addresses | {number: address}
        if number == 0 or (number == min(addresses) and acting is not None):
            last = self.live.get(address)
            is_change = is_first or last is None or last.version != new.version
            is_change = is_change or self.is_foreign(address, name)
            for topic, (queues, perm) in topics.items():
                if is_change or name not in self.topics.get(topic, {}):
                    perm = perm & ~WRITE if number and acting else perm
                    self.topics.setdefault(topic, {})[name] = (queues, perm)
            if len(topics) != 1:
                self.source[name] = address
        self.live[address] = new
        master = addresses.get(0)
        return master if number and master in self.live else None

    def is_foreign(self, address: str, name: str) -> bool:
        """Return True if the broker name's queues are those of another address."""
        return self.source.get(name, address) != address

    def leave(self, address: str) -> None:
        """Remove an address; its ids go to the live address that announced them last."""
        self.live.pop(address, None)
        name = address.partition("-")[0]
        addresses = self.numbers.get(name, {})
        for number in [at for at, holder in addresses.items() if holder == address]:
            del addresses[number]
            heirs = [
                (live.heard_s, heir)
                for heir, live in self.live.items()
                if (live.name, live.number) == (name, number)
            ]
            if heirs:
                addresses[number] = max(heirs)[1]
            if addresses and 0 not in addresses and ACTING[name]:
                self.allow(name, writes=False)
        if not addresses:
            self.numbers.pop(name, None)
            self.source.pop(name, None)
            self.delete(name)

    def allow(self, name: str, *, writes: bool) -> int:
        """Set or clear the permission to write; return the number of topics."""
        tables = [brokers for brokers in self.topics.values() if name in brokers]
        for brokers in tables:
            queues, perm = brokers[name]
            brokers[name] = (queues, 6 if writes else perm & ~WRITE)
        return len(tables)

    def delete(self, *names: str, topic: str | None = None) -> None:
        """Delete the queues of brokers in a topic, or in all."""
        for name in list(self.topics) if topic is None else [topic]:
            brokers = self.topics.get(name, {})
            self.topics[name] = {at: queues for at, queues in brokers.items() if at not in names}
            if not self.topics[name]:
                del self.topics[name]

    def route(self, topic: str) -> tuple[dict[str, dict[int, str]], dict[str, Queues]]:
        """Return addresses and queues by broker name."""
        queues = self.topics.get(topic, {})
        addresses = {}
        for name, (_, perm) in queues.items():
            addresses[name] = dict(self.numbers[name])
            if ACTING[name] and 0 not in addresses[name] and not perm & WRITE:
                addresses[name][0] = addresses[name].pop(min(addresses[name]))
        return addresses, queues
