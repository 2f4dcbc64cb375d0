"""Calls of listener functions: times, order, owners, dead letters.

A message of level 2 is sent at 60 s and delivered to both groups at 62 s; if its function refuses
it, it is delivered again at level 3, then 4.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.chaos.evidence.record import UNREAD, Promise, Stall
from rocketbed.chaos.evidence.trace import Trace
from tests.support.run_maker import (
    MS,
    SECOND,
    TOLD_TOPIC,
    Ids,
    RunMaker,
    Written,
    spec_of,
    violated,
)

Change = Callable[[RunMaker], None]
LOOSE, ORDERED = 101, 102
IDS = [
    "early-delayed-call",
    "listener-never-called",
    "late-delayed-call",
    "retries-and-dead-letters",
    "double-queue-owner",
    "delayed-duplicate",
    "listener-order",
    "late-ordered-call",
]
VALUE = 500
TOLD_NS = 60 * SECOND
DUE_NS = 62 * SECOND
TRIES = 3


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    maker.record.listeners = {"listener": LOOSE, "ordered": ORDERED}
    maker.record.ordered_listeners = [ORDERED]
    maker.record.listener_tries = TRIES
    maker.record.delay_levels = "1s 2s 3s 4s"
    maker.record.recovery_ns = 30 * SECOND
    return maker


def row(run: RunMaker, function: Function, **fields: int) -> None:
    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [ids.row(function, **fields)]

    run.rows.append(rows)


def tell(
    run: RunMaker,
    *,
    level: int = 2,
    outcome: Outcome = Outcome.OK,
    value: int = VALUE,
    at_ns: int = TOLD_NS,
) -> None:
    row(
        run, Function.TELL, process=1, value=value, operation=level, queue=1, queue_offset=9,
        physical_offset=4000, invoked_ns=at_ns, returned_ns=at_ns + MS, outcome=outcome,
    )  # fmt: skip


def hear(
    run: RunMaker,
    group: int,
    at_ns: int,
    *,
    times: int = 0,
    refused: bool = False,
    offset: int = 7,
    process: int = 5,
    lasts_ns: int = 10 * MS,
    body_crc: int = -1,
    value: int = VALUE,
) -> None:
    outcome = Outcome.FAIL if refused else Outcome.OK
    row(
        run, Function.HEAR, process=process, value=value, operation=group, attempt=times, queue=0,
        queue_offset=offset, physical_offset=5000, invoked_ns=at_ns, returned_ns=at_ns + lasts_ns,
        outcome=outcome, body_crc=body_crc,
    )  # fmt: skip


def die(run: RunMaker, group: int) -> None:
    row(
        run, Function.DEAD, process=1, value=VALUE, operation=group, attempt=TRIES, queue=0,
        queue_offset=0, physical_offset=6000, invoked_ns=90 * SECOND, returned_ns=90 * SECOND,
    )  # fmt: skip


def as_it_should_be(run: RunMaker) -> None:
    tell(run)
    hear(run, LOOSE, DUE_NS)
    hear(run, ORDERED, DUE_NS)


def without_an_answer(run: RunMaker) -> None:
    tell(run, outcome=Outcome.INFO)


def early(run: RunMaker) -> None:
    tell(run)
    hear(run, LOOSE, DUE_NS - 10 * MS)
    hear(run, ORDERED, DUE_NS)


def early_by_a_clock(run: RunMaker) -> None:
    early(run)
    run.strike(50 * SECOND, "b1", "clock")


def before_it_was_sent(run: RunMaker) -> None:
    """No clock excuses that."""
    tell(run)
    hear(run, LOOSE, TOLD_NS - 10 * MS)
    hear(run, LOOSE, DUE_NS)
    hear(run, ORDERED, DUE_NS)
    run.strike(50 * SECOND, "b1", "clock")


def early_by_a_clients_clock(run: RunMaker) -> None:
    early(run)
    run.strike(50 * SECOND, "listener-1", "clock")


def early_before_a_clock(run: RunMaker) -> None:
    early(run)
    run.strike(70 * SECOND, "b1", "clock")


def late(run: RunMaker) -> None:
    tell(run)
    hear(run, LOOSE, DUE_NS + 5 * SECOND)
    hear(run, ORDERED, DUE_NS + 5 * SECOND)


def by_one_group_only(run: RunMaker) -> None:
    tell(run)
    hear(run, ORDERED, DUE_NS)


def refused_and_not_again(run: RunMaker) -> None:
    tell(run)
    hear(run, LOOSE, DUE_NS, refused=True)
    hear(run, ORDERED, DUE_NS)


def dead_letters_unread(run: RunMaker, *, times: int = TRIES) -> None:
    """A message whose last call was refused may be among them."""
    tell(run)
    hear(run, ORDERED, DUE_NS)
    run.record.stalls = [Stall(what="drain", subject=UNREAD, reason="too slow")]
    at_ns = DUE_NS
    for number in range(times):
        hear(run, LOOSE, at_ns, times=number, refused=True)
        at_ns += (3 + number) * SECOND + 20 * MS


def dead_letters_unread_and_one_call_too_few(run: RunMaker) -> None:
    dead_letters_unread(run, times=TRIES - 1)


def put_back_and_lost(run: RunMaker, *, process: int = 6) -> None:
    """A member received it again, and lost its queue before it was done."""
    run.record.promise = Promise(replication="async", copies=1)
    refused_and_not_again(run)
    run.strike(DUE_NS + SECOND, "b1", "powercut", written=10_000, durable=6_000)
    run.event(DUE_NS + 2 * SECOND, "b1", "recovered", end=6_000)
    hear(run, LOOSE, DUE_NS + 10 * SECOND, refused=True, process=process)


def put_back_and_lost_by_one_that_stayed(run: RunMaker) -> None:
    put_back_and_lost(run)
    tell(run, value=VALUE + 1, at_ns=TOLD_NS + 11 * SECOND)
    for group in (LOOSE, ORDERED):
        hear(run, group, DUE_NS + 11 * SECOND, process=6, offset=8, value=VALUE + 1)


def put_back_and_lost_by_one_that_came_back(run: RunMaker) -> None:
    put_back_and_lost(run)
    for number, (process, second) in enumerate([(5, 11), (6, 25)], 1):
        tell(run, value=VALUE + number, at_ns=TOLD_NS + second * SECOND)
        for group in (LOOSE, ORDERED):
            due_ns = DUE_NS + second * SECOND
            hear(run, group, due_ns, process=process, offset=7 + number, value=VALUE + number)


def put_back_and_lost_and_put_back(run: RunMaker) -> None:
    put_back_and_lost(run, process=5)


def lost(run: RunMaker) -> None:
    """It was in transit: the place of the delivered one is not reported."""
    run.record.promise = Promise(replication="async", copies=1)
    by_one_group_only(run)
    run.strike(70 * SECOND, "b1", "powercut", written=10_000, durable=5_000)
    run.event(70 * SECOND, "b1", "exit", cause="powercut", reason="")
    run.event(71 * SECOND, "b1", "start", role="ASYNC_MASTER", id=0)


def promoted_without_it(
    run: RunMaker, *, at_s: int = 70, written: int = 5_000, end: int = 10_000
) -> None:
    """A message that a consumer put back is after everything that it got."""
    refused_and_not_again(run)
    run.trace = Trace()
    for node in run.nodes:
        reached = end if node == "b1" else written
        run.trace.node(node).add(SECOND, reached, reached)
    run.event(at_s * SECOND, "b2", "promote", former="b1", written=written)


def promoted_before_the_refusal(run: RunMaker) -> None:
    promoted_without_it(run, at_s=59)


def left_in_order_after_a_promotion(
    run: RunMaker, *, written: int = 5_000, offset: int = 3
) -> None:
    """The member that handled it lost its queue, and started before it when it returned."""
    tell(run)
    hear(run, LOOSE, DUE_NS)
    hear(run, ORDERED, DUE_NS, refused=True)
    run.trace = Trace()
    for node in run.nodes:
        reached = 10_000 if node == "b1" else written
        run.trace.node(node).add(SECOND, reached, reached)
    run.event(61 * SECOND, "b2", "promote", former="b1", written=written)
    tell(run, value=VALUE + 1, at_ns=TOLD_NS + SECOND)
    hear(run, LOOSE, DUE_NS + SECOND, value=VALUE + 1)
    hear(run, ORDERED, DUE_NS + SECOND, offset=offset, value=VALUE + 1)


def left_in_order_after_a_second_master(run: RunMaker) -> None:
    """Only that member had it."""
    left_in_order_after_a_promotion(run, written=10_000)
    run.strike(TOLD_NS - SECOND, "b3", "double", for_s=2.0)


def left_in_order_after_a_promotion_that_kept_it(run: RunMaker) -> None:
    left_in_order_after_a_promotion(run, written=6_000)


def stayed_in_order_after_a_promotion(run: RunMaker) -> None:
    left_in_order_after_a_promotion(run, offset=8)


def promoted_with_what_came_later(run: RunMaker) -> None:
    """Messages that were put back, or became due, were written before."""
    promoted_without_it(run, at_s=90, written=10_000, end=11_000)
    run.sends[-1].invoked_ns, run.sends[-1].returned_ns = 85 * SECOND, 86 * SECOND


def promoted_with_all_there_was(run: RunMaker) -> None:
    promoted_without_it(run, end=5_000)


def down_when_it_was_due(run: RunMaker, *, up_s: int = 71) -> None:
    """Its master returned, accepted messages for a second, and lost those it delivered late."""
    run.record.promise = Promise(replication="async", copies=1)
    tell(run)
    hear(run, ORDERED, DUE_NS)
    run.trace = Trace()
    for node in run.nodes:
        run.trace.node(node).add(SECOND, 20_000, 10_000)
    run.event(61 * SECOND, "b1", "exit", cause="kill", reason="")
    run.event(up_s * SECOND, "b1", "recovered", end=10_000, seconds=0)
    run.sends[-1].invoked_ns, run.sends[-1].returned_ns = 71 * SECOND, 71 * SECOND + MS
    run.strike(73 * SECOND, "b1", "powercut", written=20_000, durable=10_000)
    run.event(73 * SECOND, "b1", "exit", cause="powercut", reason="")
    run.event(74 * SECOND, "b1", "start", role="ASYNC_MASTER", id=0)


def down_before_it_was_due(run: RunMaker) -> None:
    down_when_it_was_due(run, up_s=61)


def elected_without_it(run: RunMaker) -> None:
    promoted_without_it(run)
    run.record.facts["elects"] = True


def lost_before(run: RunMaker) -> None:
    run.record.promise = Promise(replication="async", copies=1)
    by_one_group_only(run)
    run.strike(40 * SECOND, "b1", "powercut", written=3_000, durable=2_000)
    run.event(40 * SECOND, "b1", "exit", cause="powercut", reason="")
    run.event(41 * SECOND, "b1", "start", role="ASYNC_MASTER", id=0)


def passed_at_a_second_master(
    run: RunMaker, *, level: int = 2, other_s: int = 60, at_s: int = 61
) -> None:
    tell(run, level=level)
    tell(run, level=0, value=VALUE + 1, outcome=Outcome.INFO, at_ns=other_s * SECOND)
    hear(run, ORDERED, DUE_NS)
    row(
        run, Function.HEAR, process=5, value=VALUE + 1, operation=LOOSE, queue=1, queue_offset=9,
        physical_offset=7000, invoked_ns=DUE_NS, returned_ns=DUE_NS,
    )  # fmt: skip
    if level:  # it was stored there later
        run.specs.append(spec_of(VALUE, queue_id=1, queue_offset=9))
    run.strike(at_s * SECOND, "b3", "double", for_s=1.0)
    run.event((at_s + 1) * SECOND, "b3", "start", role="SLAVE", id=2)


def passed_before_a_second_master(run: RunMaker) -> None:
    passed_at_a_second_master(run, at_s=70)


def passed_there_before_a_second_master(run: RunMaker) -> None:
    passed_at_a_second_master(run, level=0, at_s=70)


def passed_long_after_a_second_master(run: RunMaker, *, level: int = 0, other_s: int = 40) -> None:
    """An ordered member had got another message at that place, before this one was sent."""
    passed_at_a_second_master(run, level=level, other_s=other_s, at_s=41)


def delayed_passed_long_after_a_second_master(run: RunMaker) -> None:
    passed_long_after_a_second_master(run, level=2)


def passed_by_what_came_after_a_second_master(run: RunMaker) -> None:
    passed_long_after_a_second_master(run, other_s=45)


def delayed_passed_by_what_came_after_a_second_master(run: RunMaker) -> None:
    passed_long_after_a_second_master(run, level=2, other_s=45)


def refused(run: RunMaker, *, count: int = TRIES, second_ns: int = DUE_NS + 4 * SECOND) -> None:
    tell(run)
    hear(run, ORDERED, DUE_NS)
    times = [DUE_NS, second_ns, DUE_NS + 9 * SECOND][:count]
    for number, at_ns in enumerate(times):
        hear(run, LOOSE, at_ns, times=number, refused=True, offset=7 + number)


def dead_at_last(run: RunMaker) -> None:
    refused(run)
    die(run, LOOSE)


def dead_too_soon(run: RunMaker) -> None:
    refused(run, count=2)
    die(run, LOOSE)


def again_too_soon(run: RunMaker) -> None:
    refused(run, second_ns=DUE_NS + 2 * SECOND)
    die(run, LOOSE)


def dead_twice(run: RunMaker) -> None:
    dead_at_last(run)
    die(run, LOOSE)


def dead_twice_after_two_refusals(run: RunMaker) -> None:
    """Without an answer to the return, it is handled and put back once more."""
    dead_twice(run)
    hear(run, LOOSE, 80 * SECOND, times=TRIES - 1, refused=True, offset=9)


def called_once_more(run: RunMaker, group: int = LOOSE) -> None:
    tell(run)
    hear(run, LOOSE if group == ORDERED else ORDERED, DUE_NS)
    for number, late_s in enumerate((0, 4, 9, 12)):
        hear(run, group, DUE_NS + late_s * SECOND, times=number, refused=number < TRIES)


def called_once_more_in_order(run: RunMaker) -> None:
    called_once_more(run, ORDERED)


def called_once_more_in_order_where_nothing_was_safe(run: RunMaker, *, since_s: int = 10) -> None:
    """The return was answered in the same way, apparently."""
    called_once_more_in_order(run)
    tell(run, outcome=Outcome.WEAK, value=VALUE + 1, at_ns=DUE_NS + since_s * SECOND)


def called_once_more_in_order_where_nothing_had_been_safe(run: RunMaker) -> None:
    called_once_more_in_order_where_nothing_was_safe(run, since_s=8)


def called_once_more_in_the_fault_phase(run: RunMaker) -> None:
    """Its owner could not put it back."""
    called_once_more(run, ORDERED)
    run.record.recovery_ns = 40 * SECOND


def refused_to_its_sender(run: RunMaker) -> None:
    tell(run, outcome=Outcome.FAIL)
    hear(run, LOOSE, DUE_NS)


def again_late(run: RunMaker) -> None:
    tell(run)
    hear(run, ORDERED, DUE_NS)
    hear(run, LOOSE, DUE_NS, refused=True)
    hear(run, LOOSE, DUE_NS + 8 * SECOND, times=1, offset=8)


def usually_again(run: RunMaker, *, late_s: int = 2, count: int = 5) -> None:
    for value in range(VALUE, VALUE + count):
        tell(run, value=value)
        hear(run, ORDERED, DUE_NS + (value - VALUE) * SECOND, value=value)
        hear(run, LOOSE, DUE_NS, refused=True, value=value)
        hear(run, LOOSE, DUE_NS + 10 * MS + (3 + late_s) * SECOND, times=1, value=value)


def usually_again_in_time(run: RunMaker) -> None:
    usually_again(run, late_s=0)


def again_late_now_and_then(run: RunMaker) -> None:
    usually_again(run, count=4)


def again_after_another_refusal(run: RunMaker) -> None:
    """The first owner did not get to put it back."""
    again_late(run)
    hear(run, LOOSE, DUE_NS + 4 * SECOND, refused=True)


def another(run: RunMaker, at_s: int, offset: int, process: int = 5) -> None:
    row(
        run, Function.HEAR, process=process, value=VALUE + offset, operation=ORDERED, queue=2,
        queue_offset=offset, physical_offset=7000 + offset, invoked_ns=at_s * SECOND,
        returned_ns=at_s * SECOND, outcome=Outcome.OK,
    )  # fmt: skip


def several(run: RunMaker, *calls: tuple[int, int]) -> None:
    """Add ordered calls of other messages, by offset and process, a second apart."""
    as_it_should_be(run)
    for offset in {one for one, _ in calls}:
        tell(run, value=VALUE + offset, outcome=Outcome.INFO)
    for number, (offset, process) in enumerate(calls):
        another(run, 70 + number, offset, process)


def after_one_behind_it(run: RunMaker) -> None:
    several(run, (11, 5), (13, 5), (12, 5))


def begun_again(run: RunMaker) -> None:
    several(run, (11, 5), (12, 5), (11, 6), (12, 6), (11, 5), (13, 5))


def begun_again_in_another_order(run: RunMaker) -> None:
    several(run, (11, 5), (12, 5), (13, 5), (12, 6), (11, 6), (13, 6))


def begun_again_where_another_was(run: RunMaker) -> None:
    """The group's position went back to before anything the member had been called for."""
    several(run, (11, 4), (12, 4), (13, 5), (11, 5), (12, 5), (13, 5), (14, 5))


def after_a_loss(run: RunMaker) -> None:
    run.record.promise = Promise(replication="async", copies=1)
    several(run, (11, 5), (13, 5), (12, 5))
    run.strike(71 * SECOND + MS, "b1", "powercut", written=10_000, durable=7_013)
    run.event(71 * SECOND + MS, "b1", "exit", cause="powercut", reason="")
    run.event(71 * SECOND + 2 * MS, "b1", "start", role="ASYNC_MASTER", id=0)


def dead_and_taken(run: RunMaker) -> None:
    dead_at_last(run)
    hear(run, LOOSE, 80 * SECOND, times=2, offset=9)


def a_try_left_out(run: RunMaker) -> None:
    tell(run)
    hear(run, ORDERED, DUE_NS)
    hear(run, LOOSE, DUE_NS, refused=True)
    hear(run, LOOSE, DUE_NS + 9 * SECOND, times=2, offset=9)


def another_body(run: RunMaker) -> None:
    as_it_should_be(run)
    hear(run, ORDERED, DUE_NS + SECOND, body_crc=7)


def what_nobody_told(run: RunMaker) -> None:
    as_it_should_be(run)
    row(
        run, Function.HEAR, process=5, value=-1, operation=LOOSE, queue=0, queue_offset=9,
        physical_offset=7000, invoked_ns=DUE_NS, returned_ns=DUE_NS,
    )  # fmt: skip


def twice_from_one_place(run: RunMaker) -> None:
    as_it_should_be(run)
    hear(run, LOOSE, 70 * SECOND, process=6)


def at_two_places(run: RunMaker) -> None:
    as_it_should_be(run)
    hear(run, LOOSE, 70 * SECOND, process=6, offset=8)


def two_owners(run: RunMaker, *, process: int = 6) -> None:
    as_it_should_be(run)
    hear(run, ORDERED, DUE_NS + 5 * MS, process=process)


def two_by_one_owner(run: RunMaker) -> None:
    two_owners(run, process=5)
    run.strike(DUE_NS - SECOND, "b1", "pause")  # these may end a lock


def one_after_the_other(run: RunMaker) -> None:
    as_it_should_be(run)
    hear(run, ORDERED, DUE_NS + 10 * MS, process=6)


def two_loose_ones(run: RunMaker) -> None:
    as_it_should_be(run)
    hear(run, LOOSE, DUE_NS + 5 * MS, process=6)


def two_owners_after_a_start(run: RunMaker, *, before_s: int = 20) -> None:
    two_owners(run)
    run.event(DUE_NS - before_s * SECOND, "b1", "start", role="SYNC_MASTER", id=0)


def two_owners_long_after_a_start(run: RunMaker) -> None:
    two_owners_after_a_start(run, before_s=30)


def two_owners_after_a_start_of_a_slave(run: RunMaker) -> None:
    two_owners(run)
    run.event(DUE_NS - 20 * SECOND, "b2", "start", role="SLAVE", id=1)


def two_owners_after_an_election(run: RunMaker, *, before_s: int = 20) -> None:
    two_owners(run)
    run.record.facts["elects"] = True
    run.event(0, "b1", "start", role="ELECTED", id=-1)
    run.event(DUE_NS - before_s * SECOND, "b2", "promote", former="b1", written=0, epoch=2)


def two_owners_long_after_an_election(run: RunMaker) -> None:
    two_owners_after_an_election(run, before_s=30)


def two_owners_after_a_planned_election(run: RunMaker, *, verb: str = "handover") -> None:
    two_owners_after_an_election(run)
    run.strike(DUE_NS - 20 * SECOND - MS, "b1", verb, for_s=1.0)


def two_owners_after_a_clean_stop(run: RunMaker) -> None:
    two_owners_after_a_planned_election(run, verb="stop")


def two_owners_after_a_kill(run: RunMaker) -> None:
    two_owners_after_a_planned_election(run, verb="kill")


def two_owners_after_a_stop_that_nobody_waited_for(run: RunMaker) -> None:
    """The former leader ended before the next one led."""
    two_owners_after_a_clean_stop(run)
    run.event(DUE_NS - 20 * SECOND - MS // 2, "b1", "exit", cause="stop")


def two_owners_after_a_stop_and_a_start_that_nobody_waited_for(run: RunMaker) -> None:
    """It returned, without its locks, before the next one led."""
    two_owners_after_a_stop_that_nobody_waited_for(run)
    run.event(DUE_NS - 20 * SECOND - MS // 4, "b1", "start", role="ELECTED", id=-1)


def two_owners_after_an_election_that_another_step_was_near(run: RunMaker) -> None:
    two_owners_after_an_election(run)
    run.strike(DUE_NS - 20 * SECOND - MS, "b3", "restart", for_s=1.0)


def two_owners_after_a_planned_election_soon_after_a_fault(run: RunMaker) -> None:
    two_owners_after_a_planned_election(run)
    run.strike(DUE_NS - 40 * SECOND, "b3", "partition", for_s=5.0)


def two_owners_after_a_start_of_who_was_elected(run: RunMaker, *, node: str = "b2") -> None:
    two_owners_long_after_an_election(run)
    run.event(DUE_NS - 20 * SECOND, node, "start", role="ELECTED", id=-1)


def two_owners_after_a_start_of_who_was_not(run: RunMaker) -> None:
    two_owners_after_a_start_of_who_was_elected(run, node="b1")


def two_owners_after_a_pause(run: RunMaker, *, before_s: int = 50) -> None:
    two_owners(run)
    run.strike(DUE_NS - before_s * SECOND, "ordered-1", "pause")


def two_owners_at_the_end_of_a_long_pause(run: RunMaker, *, for_s: float = 190) -> None:
    two_owners(run)
    at_ns = DUE_NS + 5 * MS - 200 * SECOND
    run.strike(at_ns, "ordered-1", "pause", for_s=for_s)
    run.strike(at_ns + int(for_s * SECOND), "ordered-1", "heal", step="pause ordered-1")


def two_owners_long_after_a_pause(run: RunMaker) -> None:
    two_owners_at_the_end_of_a_long_pause(run, for_s=40)


def two_owners_soon_after_a_pause(run: RunMaker) -> None:
    """The lock cannot have ended yet."""
    two_owners_after_a_pause(run, before_s=30)


def late_in_order(run: RunMaker, *, late_s: float = 9) -> None:
    tell(run)
    hear(run, LOOSE, DUE_NS)
    hear(run, ORDERED, DUE_NS + int(late_s * SECOND))


def nearly_late_in_order(run: RunMaker) -> None:
    late_in_order(run, late_s=7)


def late_in_order_after_a_fault(run: RunMaker) -> None:
    late_in_order(run)
    run.strike(40 * SECOND, "b1", "reset")


def late_in_order_long_after_a_fault(run: RunMaker) -> None:
    """A member that was cut off then no longer has a lock."""
    told_ns = 2 * TOLD_NS
    tell(run, at_ns=told_ns)
    hear(run, LOOSE, told_ns + 2 * SECOND)
    hear(run, ORDERED, told_ns + 11 * SECOND)
    run.strike(30 * SECOND, "b1", "reset")


def late_in_order_behind_another(run: RunMaker) -> None:
    """The function was handling the previous message."""
    tell(run, value=VALUE + 1)
    hear(run, LOOSE, DUE_NS, value=VALUE + 1, offset=6)
    hear(run, ORDERED, DUE_NS, value=VALUE + 1, offset=6, lasts_ns=9 * SECOND)
    late_in_order(run, late_s=9.1)


def tried_again_late_in_order(run: RunMaker) -> None:
    """Its first call had been in time."""
    tell(run)
    hear(run, LOOSE, DUE_NS)
    hear(run, ORDERED, DUE_NS, refused=True)
    hear(run, ORDERED, DUE_NS + 60 * SECOND, process=6)


def taken_again_in_order(run: RunMaker) -> None:
    """A repeated message was not waited for."""
    as_it_should_be(run)
    hear(run, ORDERED, DUE_NS + 60 * SECOND, process=6)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (as_it_should_be, set()),
        (late_in_order, {"late-ordered-call"}),
        (nearly_late_in_order, set()),
        (late_in_order_after_a_fault, set()),
        (late_in_order_long_after_a_fault, {"late-ordered-call"}),
        (late_in_order_behind_another, set()),
        (tried_again_late_in_order, {"late-ordered-call"}),
        (taken_again_in_order, set()),
        (without_an_answer, set()),
        (early, {"early-delayed-call"}),
        (early_by_a_clock, set()),
        (before_it_was_sent, {"early-delayed-call"}),
        (early_before_a_clock, {"early-delayed-call"}),
        (early_by_a_clients_clock, {"early-delayed-call"}),
        (late, {"late-delayed-call"}),
        (by_one_group_only, {"listener-never-called"}),
        (refused_and_not_again, {"listener-never-called"}),
        (dead_letters_unread, set()),
        (dead_letters_unread_and_one_call_too_few, {"listener-never-called"}),
        (lost, set()),
        (put_back_and_lost, set()),
        (put_back_and_lost_by_one_that_stayed, {"listener-never-called"}),
        (put_back_and_lost_by_one_that_came_back, set()),
        (put_back_and_lost_and_put_back, {"listener-never-called"}),
        (lost_before, {"listener-never-called"}),
        (promoted_without_it, set()),
        (promoted_before_the_refusal, {"listener-never-called"}),
        (left_in_order_after_a_promotion, set()),
        (left_in_order_after_a_second_master, set()),
        (
            left_in_order_after_a_promotion_that_kept_it,
            {"listener-never-called", "delayed-duplicate", "listener-order"},
        ),
        (stayed_in_order_after_a_promotion, {"listener-never-called"}),
        (promoted_with_what_came_later, {"listener-never-called"}),
        (promoted_with_all_there_was, {"listener-never-called"}),
        (down_when_it_was_due, set()),
        (down_before_it_was_due, {"listener-never-called"}),
        (elected_without_it, {"listener-never-called"}),
        (passed_at_a_second_master, set()),
        (passed_before_a_second_master, {"listener-never-called"}),
        (passed_there_before_a_second_master, {"listener-never-called"}),
        (passed_long_after_a_second_master, set()),
        (delayed_passed_long_after_a_second_master, set()),
        (passed_by_what_came_after_a_second_master, {"listener-never-called"}),
        (delayed_passed_by_what_came_after_a_second_master, {"listener-never-called"}),
        (dead_at_last, set()),
        (dead_too_soon, {"retries-and-dead-letters"}),
        (again_too_soon, {"early-delayed-call"}),
        (dead_and_taken, {"retries-and-dead-letters"}),
        (dead_twice, {"retries-and-dead-letters"}),
        (dead_twice_after_two_refusals, set()),
        (called_once_more, {"retries-and-dead-letters"}),
        (called_once_more_in_order, {"retries-and-dead-letters"}),
        (called_once_more_in_order_where_nothing_was_safe, set()),
        (called_once_more_in_order_where_nothing_had_been_safe, {"retries-and-dead-letters"}),
        (called_once_more_in_the_fault_phase, set()),
        (refused_to_its_sender, {"retries-and-dead-letters"}),
        (again_late, {"late-delayed-call"}),
        (usually_again, {"late-delayed-call"}),
        (usually_again_in_time, set()),
        (again_late_now_and_then, set()),
        (again_after_another_refusal, set()),
        (after_one_behind_it, {"listener-order"}),
        (begun_again, set()),
        (begun_again_in_another_order, {"listener-order"}),
        (begun_again_where_another_was, set()),
        (after_a_loss, set()),
        (a_try_left_out, {"retries-and-dead-letters"}),
        (another_body, {"retries-and-dead-letters"}),
        (what_nobody_told, {"retries-and-dead-letters"}),
        (twice_from_one_place, set()),
        (at_two_places, {"delayed-duplicate"}),
        (two_owners, {"double-queue-owner"}),
        (two_by_one_owner, {"double-queue-owner"}),
        (one_after_the_other, set()),
        (two_loose_ones, set()),
        (two_owners_after_a_start, set()),
        (two_owners_long_after_a_start, {"double-queue-owner"}),
        (two_owners_after_a_start_of_a_slave, {"double-queue-owner"}),
        (two_owners_after_an_election, set()),
        (two_owners_long_after_an_election, {"double-queue-owner"}),
        (two_owners_after_a_start_of_who_was_elected, set()),
        (two_owners_after_a_start_of_who_was_not, {"double-queue-owner"}),
        (two_owners_after_a_pause, set()),
        (two_owners_soon_after_a_pause, {"double-queue-owner"}),
        (two_owners_after_a_planned_election, {"double-queue-owner"}),
        (two_owners_after_a_clean_stop, {"double-queue-owner"}),
        (two_owners_after_a_kill, set()),
        (two_owners_after_a_stop_that_nobody_waited_for, set()),
        (two_owners_after_a_stop_and_a_start_that_nobody_waited_for, set()),
        (two_owners_after_an_election_that_another_step_was_near, set()),
        (two_owners_after_a_planned_election_soon_after_a_fault, set()),
        (two_owners_at_the_end_of_a_long_pause, set()),
        (two_owners_long_after_a_pause, {"double-queue-owner"}),
    ],
)
def test_calls_of_listeners_are_judged(run: RunMaker, change: Change, expected: set[str]) -> None:
    change(run)
    assert violated(run.judge(only=IDS)) == expected


def test_run_without_listeners_has_nothing_to_check(tmp_path: Path) -> None:
    judgement = RunMaker(tmp_path / "run").judge(only=IDS)
    assert {judgement.result(one).verdict for one in IDS} == {Verdict.NOT_APPLICABLE}


def test_run_without_a_calm_phase_has_nothing_late(run: RunMaker) -> None:
    late(run)
    run.record.recovery_ns = 0
    assert run.judge(only=IDS).result("late-delayed-call").verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(("has_fault", "expected"), [(True, "not-applicable"), (False, "violated")])
def test_late_calls_need_a_fault_before_the_calm(
    run: RunMaker, has_fault: bool, expected: str
) -> None:
    late(run)
    run.record.recovery_ns = 70 * SECOND
    if has_fault:
        run.strike(2 * SECOND, "b1", "reset")
    assert str(run.judge(only=IDS).result("late-delayed-call").verdict) == expected


@pytest.mark.parametrize(
    ("level", "changed", "is_found"),
    [
        (0, {}, False),
        (0, {"physical_offset": 1}, True),
        (0, {"queue_offset": 8}, True),
        (0, {"queue": 1}, True),
        (2, {"queue_offset": 8}, False),  # of its waiting record
        (2, {"queue": 1}, True),
        (2, {"physical_offset": 1}, True),
    ],
)
@pytest.mark.parametrize("later_double", [False, True])
@pytest.mark.parametrize("function", [Function.TELL, Function.HEAR])
def test_calls_report_the_messages_place(
    run: RunMaker,
    function: Function,
    level: int,
    changed: dict[str, int],
    is_found: bool,
    later_double: bool,
) -> None:
    if later_double:
        run.strike(TOLD_NS + 9 * SECOND, "b3", "double", for_s=1.0)
    run.specs.append(spec_of(VALUE, topic=TOLD_TOPIC, queue_id=0, queue_offset=7))
    is_waiting = function == Function.TELL and level

    def rows(_run: RunMaker, built: Written, ids: Ids) -> list[Row]:
        place = {"queue": 0, "queue_offset": 7, "physical_offset": built.offsets[-1]} | changed
        times = {"invoked_ns": TOLD_NS, "returned_ns": TOLD_NS}
        return [
            ids.row(function, topic=ids.told_topic, value=VALUE, operation=level, **place, **times)
        ]

    run.rows.append(rows)
    is_wrong = is_found or bool(changed and not is_waiting)
    assert (
        run.judge(only=["listener-wrong-position"]).result("listener-wrong-position").found
        == is_wrong
    )


def _stands(accepted: dict[str, int], built: Written, stays: str) -> dict[str, int]:
    return accepted | ({"physical_offset": built.offsets[-1]} if stays == "as it was" else {})


@pytest.mark.parametrize(
    ("topic", "offset", "stays", "expected"),
    [
        (TOLD_TOPIC, 7, "no more", (0, 1)),
        (TOLD_TOPIC, 6, "no more", (1, 0)),
        (TOLD_TOPIC, 8, "no more", (0, 1)),
        (
            TOLD_TOPIC,
            8,
            "as it was",
            (1, 0),
        ),  # a call at the message's place has skipped no other one
        (TOLD_TOPIC, 8, "again", (0, 1)),
        ("%RETRY%listener", 7, "no more", (1, 0)),
        ("%RETRY%ordered", 7, "no more", (1, 0)),
        ("SCHEDULE_TOPIC_XXXX", 7, "no more", (1, 0)),
        ("", 7, "no more", (1, 0)),
    ],
)
def test_delayed_message_was_passed_only_at_its_own_place(
    run: RunMaker, topic: str, offset: int, stays: str, expected: tuple[int, int]
) -> None:
    """A group got another message there before the loss, which freed the place again."""
    run.record.promise = Promise(replication="async", copies=1)
    if topic:
        run.specs.append(spec_of(VALUE, topic=topic, queue_id=0, queue_offset=7))
    if stays != "no more":
        run.specs.append(spec_of(6, topic=TOLD_TOPIC, queue_id=0, queue_offset=offset))
    sent_row: dict[str, int] = {"operation": 2, "queue": 1, "physical_offset": 4000}
    sent_row |= {"invoked_ns": TOLD_NS, "returned_ns": TOLD_NS + MS}
    accepted = {"process": 5, "queue": 0, "queue_offset": offset, "physical_offset": 2500}
    accepted |= {"invoked_ns": 35 * SECOND, "returned_ns": 35 * SECOND, "operation": LOOSE}
    late_row = {"invoked_ns": DUE_NS, "returned_ns": DUE_NS, "operation": ORDERED, "value": VALUE}
    run.rows.append(
        lambda _run, built, ids: [
            ids.row(Function.TELL, topic=ids.told_topic, process=1, value=VALUE, **sent_row),
            ids.row(
                Function.HEAR, topic=ids.told_topic, value=6, **_stands(accepted, built, stays)
            ),
            ids.row(Function.HEAR, topic=ids.told_topic, **late_row),
        ]
    )
    run.strike(40 * SECOND, "b1", "powercut", written=3_000, durable=2_000)
    run.event(40 * SECOND, "b1", "exit", cause="powercut", reason="")
    run.event(41 * SECOND, "b1", "start", role="ASYNC_MASTER", id=0)
    result = run.judge(only=["listener-never-called"]).result("listener-never-called")
    assert (result.found, result.allowed_found) == expected


@pytest.mark.parametrize(("stands", "expected"), [(False, (0, 1)), (True, (1, 0))])
def test_departed_ordered_member_is_excused_only_for_lost_records(
    run: RunMaker, *, stands: bool, expected: tuple[int, int]
) -> None:
    """A loss at that time may have been of other messages."""
    run.record.promise = Promise(replication="async", copies=1)
    if stands:
        run.specs.append(spec_of(VALUE, topic=TOLD_TOPIC, queue_id=0, queue_offset=7))
    sent_row: dict[str, int] = {"operation": 2, "queue": 1, "physical_offset": 4000}
    sent_row |= {"invoked_ns": TOLD_NS, "returned_ns": TOLD_NS + MS}
    late_row = {"invoked_ns": DUE_NS, "returned_ns": DUE_NS, "queue": 0, "queue_offset": 7}
    refused = late_row | {"operation": ORDERED, "outcome": Outcome.FAIL}

    def rows(_run: RunMaker, built: Written, ids: Ids) -> list[Row]:
        place = {"physical_offset": built.offsets[-1], "value": VALUE, "process": 5}
        return [
            ids.row(Function.TELL, topic=ids.told_topic, process=1, value=VALUE, **sent_row),
            ids.row(Function.HEAR, topic=ids.told_topic, operation=LOOSE, **late_row, **place),
            ids.row(Function.HEAR, topic=ids.told_topic, **refused, **place),
        ]

    run.rows.append(rows)
    run.strike(TOLD_NS + SECOND, "b1", "powercut", written=9_000, durable=100)
    run.event(TOLD_NS + SECOND, "b1", "exit", cause="powercut", reason="")
    run.event(TOLD_NS + SECOND + MS, "b1", "start", role="ASYNC_MASTER", id=0)
    result = run.judge(only=["listener-never-called"]).result("listener-never-called")
    assert (result.found, result.allowed_found) == expected
