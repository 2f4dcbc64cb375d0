"""A send is answered once its message is at every node."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.evidence.history import Outcome
from rocketbed.chaos.evidence.record import Promise
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.wire.command import ResponseCode
from tests.support.run_maker import MS, NODES, SECOND, RunMaker, results

Change = Callable[[RunMaker], None]
VALUE = 8
SENT_NS = 80 * SECOND
HELD_NS = 81 * SECOND
"""Time at which the last node has the message on disk."""
END = 1 << 20


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    maker.record.promise = Promise(flush="sync", replication="sync", copies=2)
    maker.trace = Trace()
    for node in NODES:
        maker.trace.node(node).add(0, 0, 0)
        maker.trace.node(node).add(HELD_NS - SECOND, END, 0)
        maker.trace.node(node).add(HELD_NS, END, END)
    sent, end_ns = maker.sends[VALUE], SENT_NS + 3 * SECOND
    sent = replace(sent, outcome=Outcome.INFO, invoked_ns=SENT_NS, returned_ns=end_ns)
    maker.sends[VALUE] = sent
    return maker


def unanswered(run: RunMaker) -> None:
    pass


def answered(run: RunMaker) -> None:
    run.sends[VALUE] = replace(run.sends[VALUE], outcome=Outcome.OK)


def given_up_soon(run: RunMaker) -> None:
    run.sends[VALUE] = replace(run.sends[VALUE], returned_ns=HELD_NS + SECOND - MS)


def never_ended_though_its_client_went_on(run: RunMaker) -> None:
    run.sends[VALUE] = replace(run.sends[VALUE], returned_ns=-1)
    last = run.sends[-1]
    run.sends[-1] = replace(last, invoked_ns=90 * SECOND, returned_ns=90 * SECOND + MS)


def never_ended_with_its_client(run: RunMaker) -> None:
    run.sends[VALUE] = replace(run.sends[VALUE], returned_ns=-1)


def not_on_disk_at_a_slave(run: RunMaker) -> None:
    assert run.trace is not None
    run.trace.nodes.pop("b3")
    run.trace.node("b3").add(0, 0, 0)
    run.trace.node("b3").add(HELD_NS, END, 0)


def on_processes(run: RunMaker) -> None:
    run.record.backend = "process"


def behind_a_partition(run: RunMaker) -> None:
    run.strike(SENT_NS - 2 * SECOND, "b2", "partition", targets=["b2"], for_s=1)
    run.strike(SENT_NS - SECOND, "b2", "heal", targets=["b2"], step="partition b2")


def long_after_a_partition(run: RunMaker) -> None:
    run.strike(SENT_NS - 3 * SECOND, "b2", "partition", targets=["b2"], for_s=1)
    run.strike(SENT_NS - 2 * SECOND, "b2", "heal", targets=["b2"], step="partition b2")


def while_a_clock_jumped(run: RunMaker) -> None:
    run.strike(SENT_NS, "b1", "clock", targets=["b1"])


def while_producers_were_paused(run: RunMaker) -> None:
    run.strike(SENT_NS, "", "pause", targets=["producer-1"], for_s=2)


def while_a_slave_looked_through_its_log(run: RunMaker) -> None:
    run.event(SENT_NS - 60 * SECOND, "b3", "exit", cause="kill")
    run.event(SENT_NS - 30 * SECOND, "b3", "start", id=2)
    run.event(SENT_NS - SECOND, "b3", "recovered", end=0)


def while_a_slave_was_being_stopped(run: RunMaker) -> None:
    begun_ns, end_ns = SENT_NS + SECOND, SENT_NS + 9 * SECOND
    run.event(end_ns, "b3", "exit", cause="stop")
    run.strike(end_ns, "b3", "stop", targets=["b3"], step="stop b3", began_ns=begun_ns)


def while_nodes_were_cut_off_one_by_one(run: RunMaker) -> None:
    times = {"began_ns": SENT_NS + SECOND}
    run.strike(SENT_NS + 9 * SECOND, "", "swizzle", targets=["b2"], step="swizzle b2", **times)


def while_a_second_process_was_refused(run: RunMaker) -> None:
    begun_ns, end_ns = SENT_NS + SECOND, SENT_NS + 9 * SECOND
    run.strike(end_ns, "b3", "twin", targets=["b3"], step="twin b3", began_ns=begun_ns)


def is_weak(run: RunMaker, after_ns: int, status: int) -> None:
    sent = run.sends[VALUE]
    run.sends[VALUE] = replace(
        sent, outcome=Outcome.WEAK, status=status, returned_ns=SENT_NS + after_ns
    )
    run.record.facts["patience_ns"] = {
        "FLUSH_DISK_TIMEOUT": 2 * SECOND,
        "FLUSH_SLAVE_TIMEOUT": SECOND,
        "SLAVE_NOT_AVAILABLE": ENDLESS,
    }


def told_unsafe_though_everywhere(run: RunMaker) -> None:
    is_weak(run, 2 * SECOND, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def told_unsafe_as_it_came(run: RunMaker) -> None:
    is_weak(run, SECOND + 300 * MS, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def told_unsafe_over_a_slow_network(run: RunMaker) -> None:
    told_unsafe_though_everywhere(run)
    run.record.facts["link_ns"] = 300 * MS


def given_up_at_once(run: RunMaker) -> None:
    is_weak(run, MS, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def a_flush_given_up_soon(run: RunMaker) -> None:
    is_weak(run, SECOND, ResponseCode.FLUSH_DISK_TIMEOUT)


def slaves_given_up_by_then(run: RunMaker) -> None:
    is_weak(run, SECOND, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def slaves_given_up_too_soon(run: RunMaker) -> None:
    is_weak(run, SECOND // 2, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def slaves_given_up_by_a_fast_clock(run: RunMaker) -> None:
    slaves_given_up_too_soon(run)
    run.strike(SECOND, "b1", "clock", targets=["b1"], step="clock b1 drift 1")


def what_is_never_said(run: RunMaker) -> None:
    is_weak(run, SECOND, ResponseCode.SLAVE_NOT_AVAILABLE)


def given_up_at_once_near_a_partition(run: RunMaker) -> None:
    given_up_at_once(run)
    behind_a_partition(run)


def given_up_in_a_group_that_elects(run: RunMaker) -> None:
    slaves_given_up_by_then(run)
    run.record.facts["elects"] = True


def power_is_off(run: RunMaker, *, copies: int = 2) -> None:
    """The node is down from 20 s before the recovery phase, for 50 s of it."""
    assert run.trace is not None
    run.trace.nodes.pop("b3")
    run.trace.node("b3").add(0, 0, 0)
    run.event(SENT_NS - 70 * SECOND, "b3", "exit", cause="powercut")
    run.record.recovery_ns = SENT_NS - 50 * SECOND
    run.record.promise = replace(run.record.promise, copies=copies)


def while_the_core_is_alive(run: RunMaker) -> None:
    power_is_off(run)


def while_less_than_the_core_is_alive(run: RunMaker) -> None:
    power_is_off(run, copies=3)


def soon_after_the_core_is_alone(run: RunMaker) -> None:
    power_is_off(run)
    run.record.recovery_ns = SENT_NS - SECOND


def while_a_slave_was_down(run: RunMaker) -> None:
    run.event(SENT_NS + SECOND, "b3", "exit", cause="kill")
    run.event(SENT_NS + 2 * SECOND, "b3", "start", id=2)


CASES: list[tuple[Change, tuple[int, int]]] = [
    (unanswered, (1, 0)),
    (answered, (0, 0)),
    (given_up_soon, (0, 0)),
    (never_ended_though_its_client_went_on, (1, 0)),
    (never_ended_with_its_client, (0, 0)),
    (not_on_disk_at_a_slave, (0, 0)),
    (on_processes, (0, 0)),
    (behind_a_partition, (0, 1)),
    (long_after_a_partition, (1, 0)),
    (while_a_clock_jumped, (1, 0)),
    (while_producers_were_paused, (0, 1)),
    (while_a_slave_was_down, (0, 1)),
    (while_a_slave_looked_through_its_log, (0, 1)),
    (while_a_slave_was_being_stopped, (0, 1)),
    (while_nodes_were_cut_off_one_by_one, (0, 1)),
    (while_a_second_process_was_refused, (1, 0)),
    (told_unsafe_though_everywhere, (1, 0)),
    (told_unsafe_as_it_came, (0, 0)),
    (told_unsafe_over_a_slow_network, (0, 0)),
    (given_up_at_once, (1, 0)),
    (a_flush_given_up_soon, (1, 0)),
    (slaves_given_up_by_then, (0, 0)),
    (slaves_given_up_too_soon, (1, 0)),
    (slaves_given_up_by_a_fast_clock, (0, 0)),
    (what_is_never_said, (1, 0)),
    (given_up_at_once_near_a_partition, (1, 0)),
    (given_up_in_a_group_that_elects, (1, 0)),
    (while_the_core_is_alive, (1, 0)),
    (while_less_than_the_core_is_alive, (0, 0)),
    (soon_after_the_core_is_alone, (0, 0)),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_fully_replicated_message_is_answered(
    run: RunMaker, change: Change, expected: tuple[int, int]
) -> None:
    change(run)
    result = results(run.judge(only=["sends-answered"]))["sends-answered"]
    assert (result.found, result.allowed_found) == expected, result.findings
