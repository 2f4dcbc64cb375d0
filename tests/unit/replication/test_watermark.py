"""Tasks that wait for an offset, or for their turn at a rate."""

import pytest
import trio
from trio.testing import MockClock

from rocketbed.replication.pace import Pace, Seldom
from rocketbed.replication.watermark import Watermark


async def test_wakes_waiting_tasks_at_their_offset(autojump_clock: MockClock) -> None:
    mark, rises = Watermark(4), list[int]()
    mark.subscribe(rises.append)
    woken = list[tuple[int, float]]()
    begin = trio.current_time()

    async def wait(value: int) -> None:
        woken.append((await mark.wait_for(value), trio.current_time() - begin))

    async with trio.open_nursery() as nursery:
        for value in (6, 7, 8):
            nursery.start_soon(wait, value)
        for value in (4, 6, 5, 8):
            await trio.sleep(1)
            mark.advance(value)
    assert sorted((value, round(at_s)) for value, at_s in woken) == [(6, 2), (8, 4), (8, 4)]
    mark.reset(2)
    assert (rises, mark.value) == ([6, 8], 2)


async def test_waits_only_below_the_offset(autojump_clock: MockClock) -> None:
    mark = Watermark(4)
    for wait, value, returns in (
        (mark.wait_for, 4, True),
        (mark.wait_for, 5, False),
        (mark.wait_above, 3, True),
        (mark.wait_above, 4, False),
    ):
        with trio.move_on_after(0.5) as scope:
            await wait(value)
        assert scope.cancelled_caught != returns


@pytest.mark.parametrize("rate", [100, 1000, 4096])
async def test_sends_no_faster_than_the_rate(rate: int, autojump_clock: MockClock) -> None:
    pace, begin, sent, waited_s = Pace(rate), trio.current_time(), 0, 0.0
    for size in (rate, rate // 2, 0, 3 * rate):
        await pace.wait(size)
        waited_s = trio.current_time() - begin
        assert waited_s == pytest.approx(sent / rate, abs=0.005)
        sent += size
    await Pace(0).wait(1 << 40)
    assert trio.current_time() - begin == pytest.approx(waited_s, abs=0.005)


async def test_a_repeated_message_is_due_once_in_its_time(autojump_clock: MockClock) -> None:
    seldom, due = Seldom(5.0), []
    for number in range(22):
        if seldom.is_due():
            due.append(number)
        await trio.sleep(0.5)
    assert due == [0, 10, 20]
