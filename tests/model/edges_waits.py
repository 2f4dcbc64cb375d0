"""What waits: for its turn at a rate, for an offset to rise."""

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import trio

from rocketbed.node.broker.inquiries import Inquiries
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.flush import Flusher
from rocketbed.replication.pace import Pace, Seldom
from rocketbed.replication.watermark import Watermark


async def ask_paces(random: Random) -> None:
    """So many bytes a second, and no more; a thing said once in so many seconds."""
    rate = random.choice((100, 1000, 4096))
    pace, begin, sent = Pace(rate), trio.current_time(), 0
    for size in (rate, rate // 2, 0, 3 * rate):
        await pace.wait(size)
        took = trio.current_time() - begin
        assert abs(took - sent / rate) < 0.005, f"rate: {size} bytes after {took} s, {sent} sent"
        sent += size
    free = Pace(0)
    await free.wait(1 << 40)
    assert abs(trio.current_time() - begin - took) < 0.005, "rate: without one it waits"
    seldom, every = Seldom(5.0), []
    for _ in range(22):
        every.append(seldom.is_due())
        await trio.sleep(0.5)
    assert [n for n, due in enumerate(every) if due] == [0, 10, 20], f"rate: said at {every}"


async def ask_watermarks() -> None:
    """Who waits is woken when it is there, and told what it is then."""
    mark, rises = Watermark(4), list[int]()
    mark.subscribe(rises.append)
    for wait, value, is_there in (
        (mark.wait_for, 4, True), (mark.wait_for, 5, False), (mark.wait_above, 3, True),
        (mark.wait_above, 4, False),
    ):  # fmt: skip
        with trio.move_on_after(0.5) as scope:
            await wait(value)
        assert scope.cancelled_caught != is_there, f"watermark: {wait.__name__} {value} at 4"
    found = list[tuple[int, float]]()

    async def note(value: int) -> None:
        found.append((await mark.wait_for(value), trio.current_time()))

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        for value in (6, 7, 8):
            nursery.start_soon(note, value)
        for value in (4, 6, 5, 8):
            await trio.sleep(1)
            mark.advance(value)
    told = sorted((value, round(at - begin)) for value, at in found)
    assert told == [(6, 2), (8, 4), (8, 4)], f"watermark: {told}"
    assert (rises, mark.value) == ([6, 8], 8), f"watermark: {rises}, {mark.value}"
    mark.reset(2)
    assert (rises, mark.value) == ([6, 8], 2), f"watermark: {rises}, {mark.value} after a cut"


def ask_limits() -> None:
    """What may be dispatched, when a flush comes early, which topics a group reads."""
    for confirmed, end in ((None, 5), (4, 5), (5, 4), (5, 5)):
        held = None if confirmed is None else SimpleNamespace(value=confirmed)
        most = end if confirmed is None or confirmed > end else confirmed
        for done in (0, most, most + 1):
            parts = SimpleNamespace(confirmed=held, dispatched=SimpleNamespace(value=done))
            fake: Any = SimpleNamespace(_parts=parts, _end=SimpleNamespace(value=end))
            limit = Dispatcher._limit.fget(fake)  # type: ignore[attr-defined]
            fake._limit = limit
            lag = Dispatcher.lag.fget(fake)  # type: ignore[attr-defined]
            assert (limit, lag) == (most, max(most - done, 0)), f"limit: {limit}, {lag} behind"
    for is_sync, dirty in product((True, False), (0, 5, 6, 7)):
        config = SimpleNamespace(sync_flush=is_sync, dirty_max=12)
        log = SimpleNamespace(flushed=SimpleNamespace(value=100))
        woken = list[bool]()
        wake = SimpleNamespace(set=lambda woken=woken: woken.append(True))
        fake = SimpleNamespace(_parts=SimpleNamespace(config=config, log=log), _wake=wake)
        Flusher._on_written(fake, 100 + dirty)
        assert bool(woken) == (is_sync or dirty == 7), f"flush: {dirty} bytes: {woken}"
    for group, topics in (("g", ()), ("g", ("A",)), ("g", ("B",)), ("h", ())):
        online = {"g": SimpleNamespace(subscriptions=dict.fromkeys(topics))}
        fake = SimpleNamespace(_clients=SimpleNamespace(consumers=online))
        found = Inquiries._may_read(fake, group, "A")
        assert found == (group == "h" or topics != ("B",)), f"reads: {group} of {topics}: {found}"
