"""Answers that wait for disk and slaves (design.md 6)."""

from collections.abc import Awaitable, Callable

import trio
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.release import ReleaseQueue
from rocketbed.node.store.status import PutStatus
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

FLUSH_S, SLAVE_S = 5.0, 3.0
Outcomes = list[tuple[int, PutStatus, float]]


class Bench:
    """A queue with both watermarks, and what it released: end, status, time."""

    def __init__(self, *, flushes: bool = True, slaves: bool = True, elects: bool = False) -> None:
        self.flushed = Watermark()
        self.confirmed = Watermark()
        self.queue = ReleaseQueue(
            flushed=self.flushed if flushes else None,
            confirmed=self.confirmed if slaves else None,
            flush_timeout_s=FLUSH_S,
            slave_timeout_s=SLAVE_S,
            elects=elects,
        )
        self.released: Outcomes = []

    def add(self, end: int) -> None:
        self.queue.add(end, lambda status: self.released.append((end, status, trio.current_time())))


def run(scenario: Callable[[Bench], Awaitable[None]], bench: Bench | None = None) -> Outcomes:
    bench_used = bench or Bench()

    async def main(world: World) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench_used.queue.run)
            await scenario(bench_used)
            nursery.cancel_scope.cancel()

    assert run_solo(main).outcome == "ended"
    return bench_used.released


def test_both_conditions_have_to_hold() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(100)
        bench.add(200)
        bench.flushed.advance(200)
        assert not bench.released
        bench.confirmed.advance(150)
        assert [(end, status) for end, status, _ in bench.released] == [(100, PutStatus.PUT_OK)]
        bench.confirmed.advance(200)
        assert len(bench.released) == 2
        bench.add(200)
        assert len(bench.released) == 3
        assert len(bench.queue) == 0

    run(scenario)


def test_a_flush_that_does_not_come() -> None:
    async def scenario(bench: Bench) -> None:
        bench.confirmed.advance(100)
        bench.add(100)
        await trio.sleep(10)

    ((end, status, at),) = run(scenario)
    assert (end, status) == (100, PutStatus.FLUSH_DISK_TIMEOUT)
    assert FLUSH_S <= at < FLUSH_S + 0.1


def test_slaves_that_do_not_answer() -> None:
    async def scenario(bench: Bench) -> None:
        bench.flushed.advance(100)
        bench.add(100)
        await trio.sleep(2)
        bench.flushed.advance(200)
        bench.add(200)
        await trio.sleep(10)

    outcomes = run(scenario)
    assert [(end, status) for end, status, _ in outcomes] == [
        (100, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (200, PutStatus.FLUSH_SLAVE_TIMEOUT),
    ]
    assert [round(at) for _, _, at in outcomes] == [3, 5]


def test_slave_outcome_stands_after_the_longer_wait() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(100)
        await trio.sleep(10)

    ((_, status, at),) = run(scenario)
    assert status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert round(at) == FLUSH_S


def test_late_flush_after_the_slave_timeout_releases_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(100)
        await trio.sleep(4)
        bench.flushed.advance(100)

    ((_, status, at),) = run(scenario)
    assert status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert round(at) == 4


def test_where_a_leader_is_elected_no_unsafe_answer_looks_like_success() -> None:
    """Clients return the two time-outs without an error, and the next leader may truncate the
    record."""

    async def scenario(bench: Bench) -> None:
        bench.add(100)  # neither
        await trio.sleep(FLUSH_S + 1)
        bench.confirmed.advance(100)
        bench.add(200)  # confirmed late
        bench.flushed.advance(200)
        await trio.sleep(FLUSH_S + 1)
        bench.confirmed.advance(300)
        bench.add(300)  # flushed late
        await trio.sleep(FLUSH_S + 1)
        bench.add(400)
        bench.queue.give_up()

    outcomes = run(scenario, Bench(elects=True))
    assert [(end, status) for end, status, _ in outcomes] == [
        (end, PutStatus.SERVICE_NOT_AVAILABLE) for end in (100, 200, 300, 400)
    ]


def test_nothing_to_wait_for() -> None:
    bench = Bench(flushes=False, slaves=False)
    assert not bench.queue.waits

    async def scenario(bench: Bench) -> None:
        bench.add(100)

    assert len(run(scenario, bench)) == 1


steps = st.lists(
    st.tuples(st.sampled_from(["add", "flush", "confirm", "sleep"]), st.integers(1, 50)),
    max_size=40,
)


@given(steps)
def test_answers_are_released_once_in_order(plan: list[tuple[str, int]]) -> None:
    bench = Bench()
    added: list[int] = []
    wrong: list[int] = []

    def release_of(end: int) -> Callable[[PutStatus], None]:
        def release(status: PutStatus) -> None:
            safe = min(bench.flushed.value, bench.confirmed.value) >= end
            if safe != (status is PutStatus.PUT_OK):
                wrong.append(end)
            bench.released.append((end, status, trio.current_time()))

        return release

    async def scenario(bench: Bench) -> None:
        end = 0
        for kind, amount in plan:
            if kind == "add":
                end += amount
                added.append(end)
                bench.queue.add(end, release_of(end))
            elif kind == "flush":
                bench.flushed.advance(min(end, bench.flushed.value + amount))
            elif kind == "confirm":
                bench.confirmed.advance(min(end, bench.confirmed.value + amount))
            else:
                await trio.sleep(amount / 20)
        await trio.sleep(FLUSH_S + 1)

    released = run(scenario, bench)
    assert [end for end, _, _ in released] == added
    assert not wrong


def test_flush_does_not_prolong_the_wait_for_slaves() -> None:
    """Both conditions lack at first, and the longer time is looked at; then the disk is fast."""

    async def scenario(bench: Bench) -> None:
        bench.add(100)
        await trio.sleep(0.001)
        bench.flushed.advance(100)
        await trio.sleep(10)

    ((end, status, moment),) = run(scenario)
    assert (end, status) == (100, PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert abs(moment - SLAVE_S) < 0.1
