"""What is to be dispatched, by itself: all records come in their order, once, none before it may,
whether they come from the ring or from the log; and who writes hears when too many wait.
"""

from random import Random
from types import SimpleNamespace
from typing import Any, Final

from rocketbed.node.store.cursor import READ_SIZE, Step, Verdict
from rocketbed.node.store.dispatch import SLICE, Dispatcher
from rocketbed.node.store.entry import Entry
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

LIMITS: Final = (5, 10, 3000)
"""Entries that a ring has room for."""


def ask_ring(world: World, random: Random) -> None:
    for room in LIMITS:
        for _ in range(6):
            _dispatched(world, random, room)


class _Ring:
    """A log of records without a file, and what became of them."""

    def __init__(self, world: World, random: Random, room: int) -> None:
        self.random, self.room = random, room
        self.entries = list[Entry]()
        self.came = list[Entry]()
        self.reads = 0
        self.written, self.flushed = Watermark(), Watermark()
        self.confirmed = Watermark() if random.random() < 0.5 else None
        self.is_sync = random.random() < 0.5
        nothing: Any = SimpleNamespace(
            put_all=lambda entries: None, write_pending=lambda **limits: None, waiting=0,
            drain=lambda: None,
        )  # fmt: skip
        log = SimpleNamespace(written=self.written, flushed=self.flushed, segments=None)
        config = SimpleNamespace(sync_flush=self.is_sync, dispatch_ring=room, is_slave=False)
        parts: Any = SimpleNamespace(
            world=world, config=config, log=log, queues=nothing, index=nothing, scanner=None,
            dispatched=Watermark(), confirmed=self.confirmed,
        )  # fmt: skip
        self.one = Dispatcher(parts)
        self.one.on_arrival.append(self.came.extend)
        cursor: Any = SimpleNamespace(step=self._step)
        self.one._cursor = cursor
        self.one.restart()

    def _step(self, offset: int, limit: int) -> Step:
        self.reads += 1
        found = [one for one in self.entries if offset <= one.physical_offset]
        found = [one for one in found if one.physical_offset + one.size <= limit]
        end = found[-1].physical_offset + found[-1].size if found else offset
        return Step(verdict=Verdict.GOOD, entries=found, end=end)

    @property
    def limit(self) -> int:
        end = self.flushed.value if self.is_sync else self.written.value
        return end if self.confirmed is None else min(end, self.confirmed.value)

    def append(self, count: int, size: int) -> None:
        """As a log does it: entries are pushed, and the log ends behind them."""
        at, first = self.written.value, len(self.entries)
        for number in range(first, first + count):
            self.entries.append(Entry("T", 0, number, at, size, 9, 5, (), 1))
            at += size
        self.one.push(self.entries[first:])
        self.written.advance(at)

    def may(self) -> int:
        """How many records end where it may."""
        return sum(one.physical_offset + one.size <= self.limit for one in self.entries)


def _dispatched(world: World, random: Random, room: int) -> None:
    ring = _Ring(world, random, room)
    done, waits, is_lost = 0, 0, False
    for _ in range(40):
        draw = random.random()
        if draw < 0.5:
            count = random.choice((1, 2, 4, 5, 8) if room < 99 else (200, 801, 1600, 2400))
            size = random.choice((91, 100, 9 * READ_SIZE // 10, READ_SIZE))
            is_lost = is_lost and done != len(ring.entries)
            before = ring.may()
            if not is_lost:
                waits += count
                if waits > 0.8 * room:
                    took = min(before - done, SLICE)
                    done, waits = done + took, waits - took
                if waits > room:
                    is_lost, waits = True, 0
            ring.append(count, size)
        elif draw < 0.75:
            took, reads = min(ring.may() - done, SLICE), ring.reads
            found = ring.one.step()
            assert found == took, f"ring: {found} of {took} are dispatched"
            had_ring = not is_lost and waits > 0
            assert not had_ring or reads == ring.reads, "ring: what is there is read again"
            done, waits = done + took, max(waits - took, 0)
        else:
            for end in (ring.flushed, ring.confirmed):
                if end is not None and ring.entries:
                    one = random.choice(ring.entries[-9:])
                    end.advance(one.physical_offset + random.choice((0, one.size, one.size - 1)))
        assert ring.came == ring.entries[:done], f"ring: {len(ring.came)} came, not {done}"
        place = ring.entries[done - 1] if done else None
        end_at = place.physical_offset + place.size if place else 0
        assert ring.one.last == place, f"ring: {ring.one.last} is the last one"
        lag = max(ring.limit - end_at, 0)
        assert ring.one.lag == lag, f"ring: {ring.one.lag} bytes are left, not {lag}"
        assert ring.one.backlog == waits, f"ring: {ring.one.backlog} wait, not {waits}"
        assert ring.one.settled and not ring.one.stuck, f"ring: {ring.one.stuck}"
        is_full = lag > READ_SIZE if is_lost else waits > 0.8 * room
        assert ring.one.overloaded == is_full, f"ring: {waits} of {room}, {lag}: {is_lost}"
