"""The log of a broker's tables: rows put once, confirmed changes, deletions, and the replay."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.changed_queues import ChangedQueues
from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.table_log import BEHIND_S, REPLAYED, REPLAYED_MS, ROWS, TableLog
from rocketbed.node.store.errors import PutFailed
from rocketbed.node.store.status import PutStatus
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

SIZE = 100
"""Bytes of each record."""
TIMEOUT_S = 3
NEWEST_MS = 10**9


class Store:
    """A log by its end and the bodies of its records."""

    def __init__(self) -> None:
        self.max_offset, self.bodies, self.store_host_bytes = 0, list[str](), b""
        self.is_full, self.on_arrival = False, list[Any]()
        self.removal = SimpleNamespace(offsets=lambda topic: {})

    def refusal(self) -> None:
        return None

    def begin(self) -> Any:
        def add(_topic: str, _queue: int, body: bytes, *_: object, **__: object) -> None:
            self.bodies.append(body.decode())

        return SimpleNamespace(add=add, now_ms=0, end=self.max_offset + SIZE)

    def commit(self, run: Any) -> None:
        if self.is_full:
            self.bodies.pop()
            raise PutFailed(PutStatus.UNKNOWN_ERROR, "no room")
        self.max_offset = run.end


class Tables:
    """The log of tables, and what it works on."""

    def __init__(self, world: World) -> None:
        self.store, self.acknowledged = Store(), Watermark()
        self.config = SimpleNamespace(is_slave=False, slave_timeout_ms=1000 * TIMEOUT_S)
        self.topics: Any = SimpleNamespace(on_change=[], get=lambda name: None)
        groups: Any = SimpleNamespace(on_change=[], get=lambda name: None)
        offsets = SimpleNamespace(
            changed=ChangedQueues(), resets_changed=ChangedQueues(), take_changes=dict,
            take_resets=dict,
        )  # fmt: skip
        locks = SimpleNamespace(changed=ChangedQueues(), take_changes=dict)
        modes = SimpleNamespace(on_change=[])
        parts: tuple[Any, ...] = (
            self.config, self.store, self.topics, groups, offsets, locks, modes,
        )  # fmt: skip
        self.log = TableLog(world, *parts, acknowledged=self.acknowledged)

    def change(self, *topics: str) -> None:
        self.topics.on_change[0](list(topics))

    async def settle(self, settle: Any, late_s: float) -> tuple[float, bool]:
        """Acknowledge after this time; return the time that it took, and success."""
        begin, is_settled = trio.current_time(), True

        async def acknowledge() -> None:
            await trio.sleep(late_s)
            self.acknowledged.advance(self.store.max_offset)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge)
            try:
                await settle()
            except ConfigFileError:
                is_settled = False
            took_s = trio.current_time() - begin
        return round(took_s), is_settled


def with_tables(check: Any) -> None:
    async def main(world: World) -> None:
        await check(Tables(world))

    assert run_solo(main).outcome == "ended"


@pytest.mark.parametrize("more", [0, 1])
def test_puts_each_change_once(more: int) -> None:
    async def check(tables: Tables) -> None:
        log, store = tables.log, tables.store
        tables.change(*(f"t{number}" for number in range(2 * ROWS + more)))
        store.is_full = True
        log.put()
        assert not store.bodies
        store.is_full = False
        for _ in range(2):
            log.put()
            assert len(store.bodies) == 2 + more
        assert not log.is_behind
        await trio.sleep(BEHIND_S + 0.1)
        tables.acknowledged.advance(store.max_offset - 1)
        assert log.is_behind
        tables.acknowledged.advance(store.max_offset)
        assert not log.is_behind

    with_tables(check)


@pytest.mark.parametrize(("late_s", "is_settled"), [(0, True), (1, True), (TIMEOUT_S + 1, False)])
def test_a_change_is_confirmed_in_time_or_refused(late_s: int, is_settled: bool) -> None:
    async def check(tables: Tables) -> None:
        tables.change("u")
        expected = min(late_s, TIMEOUT_S), is_settled
        assert await tables.settle(tables.log.settling(), late_s) == expected

    with_tables(check)


def test_a_change_of_a_former_role_is_refused() -> None:
    async def check(tables: Tables) -> None:
        settle = tables.log.settling()
        tables.log.begin_role()
        assert await tables.settle(settle, 0) == (0, False)

    with_tables(check)


def test_only_a_deletion_that_is_not_yet_put_can_be_given_up() -> None:
    async def check(tables: Tables) -> None:
        log = tables.log
        log.removal("a")
        assert log.give_up_removal("a")
        assert not log.give_up_removal("a")
        log.removal("b")
        log.put()
        assert f'"removed":{{"b":{tables.store.max_offset - SIZE}}}' in tables.store.bodies[-1]
        assert not log.give_up_removal("b")
        log.removal("c")
        tables.config.is_slave = True
        assert not log.give_up_removal("c")
        tables.config.is_slave = False
        log.begin_role()
        assert not log.give_up_removal("c")

    with_tables(check)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    ("count", "old"),
    [(0, 0), (1, 0), (REPLAYED, 0), (REPLAYED + 1, REPLAYED + 1), (2 * REPLAYED + 5, 7),
     (3 * REPLAYED, 1500), (3 * REPLAYED + 1, 1500)],
)  # fmt: skip
def test_replays_recent_records(count: int, old: int, first: int) -> None:
    """At least the newest thousand, and further thousands until one begins with an old record."""

    async def check(tables: Tables) -> None:
        store: Any = tables.store
        replay: Any = tables.log
        end = first + count
        store.queue_min, store.queue_max = lambda *_: first, lambda *_: end
        store.units = lambda _topic, _queue, at, most: [
            (number, SIZE, 0) for number in range(at, min(at + min(most, 333), end))
        ]
        replayed = list[int]()

        def stored_ms(at: int) -> int:
            age_ms = REPLAYED_MS if at - first < old else REPLAYED_MS - 1
            return NEWEST_MS - age_ms * (at < end - 1)

        replay._stored_ms = stored_ms
        replay.take_over = lambda physical, size: replayed.append(physical)
        replay.replay()
        begin = max(count - REPLAYED, 0)
        while begin > 0 and begin >= old:
            begin = max(begin - REPLAYED, 0)
        assert replayed == [*range(first + begin, end)]

    with_tables(check)


def test_deletion_that_a_cut_took_back_is_not_applied_to_what_follows() -> None:
    """Another leader's messages are in the place of those that were deleted."""

    async def check(tables: Tables) -> None:
        log: Any = tables.log
        store: Any = tables.store
        applied = list[dict[str, int]]()

        async def learn_deletions(deletions: dict[str, int]) -> None:
            applied.append(deletions)
            await trio.lowlevel.checkpoint()

        store.removal.learn_deletions = learn_deletions

        async def arrives(topic: str, at: int) -> None:
            store.max_offset, store.dispatched = at + SIZE, Watermark(at + SIZE)
            log._learned[topic] = at
            log._has_deletions.set()
            await trio.testing.wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.learn)
            await arrives("a", 10 * SIZE)
            store.max_offset = 5 * SIZE
            await arrives("b", 20 * SIZE)
            nursery.cancel_scope.cancel()
        assert applied == [{"a": 10 * SIZE}, {"b": 20 * SIZE}]

    with_tables(check)
