"""Updates to browsers: everything at first, then changes, and never a queue of them."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rocketbed.chaos.live.feed import PAUSE_S, Feed, Update


@pytest.fixture
def clock() -> MockClock:
    """Pauses cost nothing."""
    return MockClock(autojump_threshold=0)


async def test_the_first_update_is_everything(clock: MockClock) -> None:
    feed = Feed()
    feed.put("a", 1)
    feed.put("b", 2)
    with feed.reader() as reader:
        assert await reader.next() == Update(True, {"a": 1, "b": 2})


async def test_later_updates_are_changes_in_order(clock: MockClock) -> None:
    feed = Feed()
    for key in "abc":
        feed.put(key, 0)
    with feed.reader() as reader:
        await reader.next()
        feed.put("c", 1)
        feed.put("a", 1)
        update = await reader.next()
        assert (update.whole, list(update.values.items())) == (False, [("c", 1), ("a", 1)])


async def test_slow_reader_gets_the_newest_of_many_changes(clock: MockClock) -> None:
    feed = Feed()
    feed.put("a", 0)
    with feed.reader() as slow:
        await slow.next()
        for number in range(10_000):
            feed.put("a", number)
        assert await slow.next() == Update(False, {"a": 9_999})


async def test_the_same_value_again_is_no_change(clock: MockClock) -> None:
    feed = Feed()
    feed.put("a", [1, 2])
    version = feed.version
    feed.put("a", [1, 2])
    assert feed.version == version
    with trio.move_on_after(1) as scope:
        await feed.wait_changed(version)
    assert scope.cancelled_caught


async def test_changes_within_a_pause_are_sent_together(clock: MockClock) -> None:
    feed = Feed()
    feed.put("a", 0)
    times: list[float] = []

    async def change() -> None:
        for number in range(1, 101):
            feed.put("a", number)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        with feed.reader() as reader:
            while (await reader.next()).values["a"] < 100:
                times.append(trio.current_time())
    assert 7 <= len(times) <= 1 / PAUSE_S + 1


async def test_dropped_values_are_not_sent_to_new_readers(clock: MockClock) -> None:
    feed = Feed()
    feed.put("point:1", {})
    feed.put("point:2", {})
    feed.drop("point:1")
    feed.drop("point:7")
    with feed.reader() as reader:
        assert (await reader.next()).values == {"point:2": {}}


async def test_waiting_without_pages_survives_a_reload_only(
    clock: MockClock,
) -> None:
    feed = Feed()
    ended: list[float] = []

    async def wait() -> None:
        await feed.wait_nobody(5)
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        with feed.reader():
            assert feed.readers == 1
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
        await trio.sleep(3)
        with feed.reader():
            await trio.sleep(60)
        closed = trio.current_time()
    assert ended == [pytest.approx(closed + 5)]
