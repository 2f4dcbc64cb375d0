"""The log of a broker's tables by itself: what is put and how often, what is waited for, which
deletion may be given up, how far back a start reads."""

from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import trio

from rocketbed.node.broker.changed_queues import ChangedQueues
from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.table_log import BEHIND_S, REPLAYED, REPLAYED_MS, ROWS, TableLog
from rocketbed.node.store.errors import PutFailed
from rocketbed.node.store.status import PutStatus
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

SIZE: Final = 100
"""Bytes of each record."""
WAITS_S: Final = 3


class _Store:
    """A log of which only the ends count."""

    def __init__(self) -> None:
        self.max_offset, self.bodies, self.store_host_bytes = 0, list[str](), b""
        self.is_full, self.on_arrival = False, list[Any]()
        self.removal = SimpleNamespace(offsets=lambda topic: {})

    def refusal(self) -> None:
        return None

    def begin(self) -> Any:
        add = lambda _topic, _queue, body, *_, **__: self.bodies.append(body.decode())  # noqa: E731
        return SimpleNamespace(add=add, now_ms=0, end=self.max_offset + SIZE)

    def commit(self, run: Any) -> None:
        if self.is_full:
            self.bodies.pop()
            raise PutFailed(PutStatus.UNKNOWN_ERROR, "no room")
        self.max_offset = run.end


def _tables(world: World) -> tuple[TableLog, _Store, Any, Watermark]:
    store, acknowledged = _Store(), Watermark()
    config = SimpleNamespace(is_slave=False, slave_timeout_ms=1000 * WAITS_S)
    topics: Any = SimpleNamespace(on_change=[], get=lambda name: None)
    groups: Any = SimpleNamespace(on_change=[], get=lambda name: None)
    offsets = SimpleNamespace(
        changed=ChangedQueues(), resets_changed=ChangedQueues(), take_changes=dict, take_resets=dict
    )
    locks = SimpleNamespace(changed=ChangedQueues(), take_changes=dict)
    modes = SimpleNamespace(on_change=[])
    parts: tuple[Any, ...] = config, store, topics, groups, offsets, locks, modes
    return TableLog(world, *parts, acknowledged=acknowledged), store, topics, acknowledged


async def ask_tables(world: World, random: Random) -> None:
    log, store, topics, acknowledged = _tables(world)
    names = [f"t{number}" for number in range(2 * ROWS + random.randrange(2))]
    topics.on_change[0](names)
    store.is_full = True
    log.put()
    assert not store.bodies, "tables: a full log took some"
    store.is_full = False
    log.put()
    want = len(names) // ROWS + (len(names) % ROWS > 0)
    assert len(store.bodies) == want, f"tables: {len(names)} rows in {len(store.bodies)}"
    log.put()
    assert len(store.bodies) == want, "tables: what is put is put again"
    assert not log.is_behind, "tables: it is behind at once"
    await trio.sleep(BEHIND_S + 0.1)
    assert log.is_behind, "tables: it is not behind"
    acknowledged.advance(store.max_offset - 1)
    assert log.is_behind, "tables: it is not behind by a byte"
    acknowledged.advance(store.max_offset)
    assert not log.is_behind, "tables: it is behind what is confirmed"
    await _removed(log, store)
    for late, is_told in ((0.0, True), (1.0, True), (WAITS_S + 1, False)):
        topics.on_change[0](["u"])
        took, was_told = await _settled(log.settling(), store, acknowledged, late)
        assert (round(took), was_told) == (min(late, WAITS_S), is_told), f"tables: {took}, {late}"
    settle = log.settling()
    log.begin_role()
    took, was_told = await _settled(settle, store, acknowledged, 0.0)
    assert not was_told, "tables: of a former role"
    _replayed(world, random)


async def _settled(
    settle: Callable[[], Any], store: _Store, acknowledged: Watermark, late: float
) -> tuple[float, bool]:
    """How long it takes, and whether all is well, where others have it so late."""
    begin = trio.current_time()

    async def hold() -> None:
        await trio.sleep(late)
        acknowledged.advance(store.max_offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        try:
            await settle()
            is_well = True
        except ConfigFileError:
            is_well = False
        took = trio.current_time() - begin
    return took, is_well


async def _removed(log: TableLog, store: _Store) -> None:
    """One that was not put yet may be given up, once; not one that was, nor by a slave."""
    config: Any = log._config
    log.removal("a")
    assert log.give_up_removal("a"), "tables: a deletion that is not put stays"
    assert not log.give_up_removal("a"), "tables: it is given up twice"
    log.removal("b")
    log.put()
    assert f'"removed":{{"b":{store.max_offset - SIZE}}}' in store.bodies[-1], "tables: no row"
    assert not log.give_up_removal("b"), "tables: what is put is given up"
    log.removal("c")
    config.is_slave = True
    assert not log.give_up_removal("c"), "tables: a slave gives up"
    config.is_slave = False
    log.begin_role()
    assert not log.give_up_removal("c"), "tables: a former role's is given up"


def _replayed(world: World, random: Random) -> None:
    """The newest thousand, and in thousands all that are not a while older than the newest."""
    for count, old in ((0, 0), (1, 0), (REPLAYED + 1, REPLAYED + 1), (2 * REPLAYED + 5, 7),
                       (3 * REPLAYED + random.randrange(2), 1500), (REPLAYED, 0)):  # fmt: skip
        first = random.choice((0, 3))
        log, store, _, _ = _tables(world)
        fake: Any = store
        fake.queue_min, fake.queue_max = lambda *_, f=first: f, lambda *_, e=first + count: e
        fake.units = partial(_units, first + count, random.randrange(100, 900))
        newest = 10**9
        times = [newest - (REPLAYED_MS if at < old else REPLAYED_MS - 1) for at in range(count)]
        times[-1:] = [newest] * bool(count)
        taken = list[int]()
        replayed: Any = log
        replayed._stored_ms = lambda at, f=first, t=times: t[at - f]
        replayed.take_over = lambda physical, size, t=taken: t.append(physical)
        log.replay()
        begin = max(count - REPLAYED, 0)
        while begin > 0 and begin >= old:
            begin = max(begin - REPLAYED, 0)
        want = [*range(first + begin, first + count)]
        assert taken == want, f"tables: from {taken[:1]} of {count}, {old} old: {want[:1]}"


def _units(
    end: int, most: int, _t: str, _q: int, at: int, count: int
) -> list[tuple[int, int, int]]:
    """Not all at once; of each its number."""
    return [(number, SIZE, 0) for number in range(at, min(at + min(count, most), end))]
