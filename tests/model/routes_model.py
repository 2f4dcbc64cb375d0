"""What a nameserver's tables are to be, as brokers come, change, go and fall silent (wire.md 3.2 to
3.8)."""

from dataclasses import dataclass, field
from typing import Final

from rocketbed.remoting.connection import Connection

CLUSTERS: Final = {"a": "c1", "b": "c1", "z": "c2"}
"""By broker name."""
ACTING: Final = {"a": True, "b": None, "z": False}
"""Whether a slave may act as master; None of a broker too old to know."""
WRITE: Final = 2


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
    """What the tables are to be."""

    numbers: dict[str, dict[int, str]] = field(default_factory=dict)
    """Broker name -> id -> address; no name without one."""
    topics: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """Topic -> broker name -> queues and permission."""
    live: dict[str, Live] = field(default_factory=dict)
    """By address."""
    orders: dict[str, str] = field(default_factory=dict)
    whose: dict[str, str] = field(default_factory=dict)
    """Broker name -> address of the one whose whole table was taken last."""

    def register(self, address: str, new: Live, topics: dict[str, tuple[int, int]]) -> str | None:
        """The master's address as the answer has it, or None."""
        name, number, acting = new.name, new.number, ACTING[new.name]
        held = self.numbers.get(name, {})
        before = {number: address} | held
        holder = self.live.get(before[number])
        if before[number] != address and holder and holder.version[1] > new.version[1]:
            self.live.pop(address, None)
            return None
        is_first = number not in held
        held = {one: at for one, at in held.items() if at != address} | {number: address}
        self.numbers[name] = held
        if number == 0 or (number == min(held) and acting is not None):
            last = self.live.get(address)
            is_other = is_first or last is None or last.version != new.version
            is_other = is_other or self.is_not_own(address, name)
            for topic, (queues, perm) in topics.items():
                if is_other or name not in self.topics.get(topic, {}):
                    perm = perm & ~WRITE if number and acting else perm
                    self.topics.setdefault(topic, {})[name] = (queues, perm)
            if len(topics) != 1:
                self.whose[name] = address
        self.live[address] = new
        master = held.get(0)
        return master if number and master in self.live else None

    def is_not_own(self, address: str, name: str) -> bool:
        """Whether a broker name's topics have the queues of another address."""
        return self.whose.get(name, address) != address

    def leave(self, address: str) -> None:
        """An id goes to who announced it before, else to nobody."""
        self.live.pop(address, None)
        name = address.partition("-")[0]
        held = self.numbers.get(name, {})
        for number in [one for one, at in held.items() if at == address]:
            del held[number]
            heirs = [
                (one.heard_s, at)
                for at, one in self.live.items()
                if (one.name, one.number) == (name, number)
            ]
            if heirs:
                held[number] = max(heirs)[1]
            if held and 0 not in held and ACTING[name]:
                self.allow(name, writes=False)
        if not held:
            self.numbers.pop(name, None)
            self.whose.pop(name, None)
            self.delete(name)

    def allow(self, name: str, *, writes: bool) -> int:
        """Set or clear the permission to write; of how many topics."""
        mine = [served for served in self.topics.values() if name in served]
        for served in mine:
            queues, perm = served[name]
            served[name] = (queues, 6 if writes else perm & ~WRITE)
        return len(mine)

    def delete(self, *names: str, topic: str | None = None) -> None:
        """Brokers' queues of a topic, or of all."""
        for one in list(self.topics) if topic is None else [topic]:
            left = {
                name: has for name, has in self.topics.get(one, {}).items() if name not in names
            }
            self.topics[one] = left
            if not left:
                del self.topics[one]

    def route(self, topic: str) -> tuple[dict[str, dict[int, str]], dict[str, tuple[int, int]]]:
        """Addresses and queues by broker name."""
        queues = self.topics.get(topic, {})
        found = {}
        for name, (_, perm) in queues.items():
            held = dict(self.numbers[name])
            if ACTING[name] and 0 not in held and not perm & WRITE:
                held[0] = held.pop(min(held))
            found[name] = held
        return found, queues
