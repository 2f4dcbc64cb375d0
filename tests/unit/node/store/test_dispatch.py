"""Dispatch of records: in order, once, up to the allowed end, from the ring or from the log."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.cursor import READ_SIZE, Step, Verdict
from rocketbed.node.store.dispatch import SLICE, Dispatcher
from rocketbed.node.store.entry import Entry
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

STEPS = 40


class Log:
    """Records without a file, and the dispatcher beside them."""

    def __init__(self, world: World, random: Random, room: int) -> None:
        self.entries, self.arrived, self.reads = list[Entry](), list[Entry](), 0
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
        self.dispatcher = Dispatcher(parts)
        self.dispatcher.on_arrival.append(self.arrived.extend)
        cursor: Any = SimpleNamespace(step=self._step)
        self.dispatcher._cursor = cursor
        self.dispatcher.restart()

    def _step(self, offset: int, limit: int) -> Step:
        self.reads += 1
        entries = [entry for entry in self.entries if offset <= entry.physical_offset]
        entries = [entry for entry in entries if end_of(entry) <= limit]
        end = end_of(entries[-1]) if entries else offset
        return Step(verdict=Verdict.GOOD, entries=entries, end=end)

    @property
    def limit(self) -> int:
        end = self.flushed.value if self.is_sync else self.written.value
        return end if self.confirmed is None else min(end, self.confirmed.value)

    def append(self, count: int, size: int) -> None:
        at, first = self.written.value, len(self.entries)
        for number in range(first, first + count):
            self.entries.append(Entry("T", 0, number, at, size, 9, 5, (), 1))
            at += size
        self.dispatcher.push(self.entries[first:])
        self.written.advance(at)

    def allowed(self) -> int:
        """Count the records below the limit."""
        return sum(end_of(entry) <= self.limit for entry in self.entries)


def end_of(entry: Entry) -> int:
    return entry.physical_offset + entry.size


async def check_dispatch(world: World, random: Random, room: int) -> None:
    log = Log(world, random, room)
    done, waiting, overflowed = 0, 0, False
    for _ in range(STEPS):
        draw = random.random()
        if draw < 0.5:
            count = random.choice((1, 2, 4, 5, 8) if room < 99 else (200, 801, 1600, 2400))
            overflowed = overflowed and done != len(log.entries)
            if not overflowed:
                waiting += count
                if waiting > 0.8 * room:
                    dispatched = min(log.allowed() - done, SLICE)
                    done, waiting = done + dispatched, waiting - dispatched
                if waiting > room:
                    overflowed, waiting = True, 0
            log.append(count, random.choice((91, 100, 9 * READ_SIZE // 10, READ_SIZE)))
        elif draw < 0.75:
            expected, reads = min(log.allowed() - done, SLICE), log.reads
            assert log.dispatcher.step() == expected
            assert overflowed or not waiting or reads == log.reads, "the ring's records are read"
            done, waiting = done + expected, max(waiting - expected, 0)
        else:
            for mark in (log.flushed, log.confirmed):
                if mark is not None and log.entries:
                    entry = random.choice(log.entries[-9:])
                    part = random.choice((0, entry.size, entry.size - 1))
                    mark.advance(entry.physical_offset + part)
        assert log.arrived == log.entries[:done]
        last = log.entries[done - 1] if done else None
        lag = max(log.limit - (end_of(last) if last else 0), 0)
        dispatcher = log.dispatcher
        assert (dispatcher.last, dispatcher.lag, dispatcher.backlog) == (last, lag, waiting)
        assert dispatcher.settled
        assert not dispatcher.stuck
        is_full = lag > READ_SIZE if overflowed else waiting > 0.8 * room
        assert dispatcher.overloaded == is_full


@pytest.mark.parametrize("room", [5, 10, 3000])
def test_dispatches_each_record_once_in_order(room: int) -> None:
    for seed in range(6):
        run_solo(check_dispatch, Random(seed), room)
