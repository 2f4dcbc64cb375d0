"""Messages sent in the recovery phase are stored, or were refused for a known reason."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.wire.command import ResponseCode
from tests.support.run_maker import COUNT, MS, Ids, RunMaker, Written, results, spec_of, violated

SENT = 200
FIRST = 1000
"""Value of the first send without an answer."""
BATCH = 8
LATE_NS = 300 * MS


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    """Make it a run with bursts."""
    maker = RunMaker(tmp_path / "run")
    maker.record.recovery_ns = 1
    maker.record.facts["burst"] = 40

    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        for value in range(FIRST, FIRST + SENT):
            times = {"invoked_ns": LATE_NS, "returned_ns": LATE_NS}
            yield ids.row(Function.SEND_ONEWAY, process=1, queue=value % 2, value=value, **times)

    maker.rows.append(rows)
    return maker


def store_all_but(maker: RunMaker, count: int) -> None:
    maker.specs += [spec_of(value) for value in range(FIRST, FIRST + SENT - count)]


def count_refusals(maker: RunMaker, count: int) -> None:
    maker.event(150 * MS, "b1", "sample", refused=40)  # before the period that is judged
    maker.event(310 * MS, "b1", "sample", refused=40 + count)


def refuse_a_batch(maker: RunMaker, *, retried_outcome: Outcome | None = None) -> None:
    """Let a busy node refuse a batch, and give another attempt this outcome."""

    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        attempts = [(LATE_NS, Outcome.FAIL, int(ResponseCode.SYSTEM_BUSY))]
        attempts += [] if retried_outcome is None else [(LATE_NS + 9 * MS, retried_outcome, 0)]
        for number, (time_ns, outcome, status) in enumerate(attempts):
            for place in range(BATCH):
                yield ids.row(
                    Function.SEND,
                    process=1,
                    queue=0,
                    operation=500,
                    attempt=number,
                    value=5000 + number * 100 + place,
                    invoked_ns=time_ns,
                    returned_ns=time_ns + MS,
                    outcome=outcome,
                    status=status,
                )

    maker.rows.append(rows)


@pytest.mark.parametrize(("absent", "is_found"), [(2, False), (3, True)])
def test_single_message_in_a_hundred_may_be_absent(
    maker: RunMaker, absent: int, is_found: bool
) -> None:
    store_all_but(maker, absent)
    judgement = maker.judge(only=("sends-succeed",))
    assert violated(judgement) == ({"sends-succeed"} if is_found else set())
    assert results(judgement)["sends-succeed"].examined >= SENT


@pytest.mark.parametrize(("counted", "is_found"), [(8, False), (7, True)])
def test_refusals_counted_by_nodes_are_excused(
    maker: RunMaker, counted: int, is_found: bool
) -> None:
    store_all_but(maker, 10)
    count_refusals(maker, counted)
    assert violated(maker.judge(only=("sends-succeed",))) == (
        {"sends-succeed"} if is_found else set()
    )


def test_idle_node_may_refuse_nothing(maker: RunMaker) -> None:
    maker.record.facts["burst"] = 0
    store_all_but(maker, 10)
    count_refusals(maker, 10)
    assert violated(maker.judge(only=("sends-succeed",))) == {"sends-succeed"}


def test_a_count_begins_again_with_a_start(maker: RunMaker) -> None:
    store_all_but(maker, 10)
    maker.event(150 * MS, "b1", "sample", refused=40)
    maker.event(200 * MS, "b1", "start", role="master", id=0)
    maker.event(310 * MS, "b1", "sample", refused=8)
    assert violated(maker.judge(only=("sends-succeed",))) == set()


def test_refused_batch_is_one_reported_refusal(maker: RunMaker) -> None:
    store_all_but(maker, 10)
    count_refusals(maker, 8)
    refuse_a_batch(maker, retried_outcome=Outcome.OK)
    texts = results(maker.judge(only=("sends-succeed",)))["sends-succeed"].findings
    assert any("refused 7 of them" in str(text) for text in texts)


@pytest.mark.parametrize(
    ("retried_outcome", "burst", "is_found"),
    [
        (Outcome.OK, 40, False),  # another attempt succeeded
        (None, 40, False),  # the load ended before another attempt
        (Outcome.INFO, 40, True),
        (Outcome.OK, 0, True),
        (None, 0, True),
    ],
)
def test_a_refusal_by_a_busy_node(
    maker: RunMaker, retried_outcome: Outcome | None, burst: int, is_found: bool
) -> None:
    maker.record.facts["burst"] = burst
    store_all_but(maker, 0)
    refuse_a_batch(maker, retried_outcome=retried_outcome)
    assert violated(maker.judge(only=("sends-succeed",))) == (
        {"sends-succeed"} if is_found else set()
    )


def test_another_failure_is_one(maker: RunMaker) -> None:
    store_all_but(maker, 0)
    maker.sends[COUNT - 1] = replace(maker.sends[COUNT - 1], outcome=Outcome.FAIL)
    assert violated(maker.judge(only=("sends-succeed",))) == {"sends-succeed"}


RECOVERY_NS = 26_000 * MS
"""Time by which a client has given up requests that a fault cost it."""


@pytest.mark.parametrize(
    ("unanswered", "taken_ms", "is_found"),
    [(0, 3999, False), (1, 1, False), (2, 1, True), (0, 4000, True)],
)
@pytest.mark.parametrize("function", [Function.COMMIT_OFFSET, Function.SEARCH_TIME, Function.TELL])
def test_calm_requests_are_answered_soon(
    maker: RunMaker, function: Function, unanswered: int, taken_ms: int, is_found: bool
) -> None:
    del maker.record.facts["burst"]  # bursts may overload a node

    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        for number in range(SENT - 100):
            outcome = Outcome.INFO if number < unanswered else Outcome.OK
            taken_ns = taken_ms * MS if number == unanswered else MS
            times = {"invoked_ns": RECOVERY_NS, "returned_ns": RECOVERY_NS + taken_ns}
            yield ids.row(function, process=2, queue=0, outcome=outcome, **times)

    maker.rows.append(rows)
    judgement = maker.judge(only=("requests-answered",))
    assert violated(judgement) == ({"requests-answered"} if is_found else set())
    assert results(judgement)["requests-answered"].examined >= SENT - 100


@pytest.mark.parametrize(
    ("outcome", "status", "is_found"),
    [
        (Outcome.FAIL, ResponseCode.SYSTEM_BUSY, False),
        (Outcome.INFO, -1, True),
        (Outcome.WEAK, ResponseCode.FLUSH_SLAVE_TIMEOUT, True),
    ],
)
def test_burst_sends_may_be_refused_only(
    maker: RunMaker, outcome: Outcome, status: int, is_found: bool
) -> None:
    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        times = {"invoked_ns": RECOVERY_NS, "returned_ns": RECOVERY_NS + MS}
        for number in range(10):
            is_bad = {"outcome": outcome, "status": status} if number == 0 else {}
            yield ids.row(Function.TELL, process=2, queue=0, **is_bad, **times)

    maker.rows.append(rows)
    assert violated(maker.judge(only=("requests-answered",))) == (
        {"requests-answered"} if is_found else set()
    )


def test_late_acknowledgement_in_the_calm_phase_is_found(maker: RunMaker) -> None:
    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        times = {"invoked_ns": RECOVERY_NS, "returned_ns": RECOVERY_NS + 4000 * MS}
        yield ids.row(Function.SEND, process=1, queue=0, value=9000, **times)

    maker.rows.append(rows)
    texts = results(maker.judge(only=("requests-answered",)))["requests-answered"].findings
    assert list(texts) == ["a request send was answered after 4.0 s"]


def test_a_client_that_is_stopped_gets_no_answer(maker: RunMaker) -> None:
    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        times = {"invoked_ns": RECOVERY_NS, "returned_ns": -1}
        yield ids.row(Function.COMMIT_OFFSET, process=2, queue=0, outcome=Outcome.INFO, **times)

    maker.rows.append(rows)
    assert violated(maker.judge(only=("requests-answered",))) == set()


def test_run_without_a_calm_phase_has_no_answers_in_it(maker: RunMaker) -> None:
    def rows(_maker: RunMaker, _built: Written, ids: Ids) -> Iterable[Row]:
        times = {"invoked_ns": RECOVERY_NS, "returned_ns": RECOVERY_NS + 4000 * MS}
        yield ids.row(Function.SEND, process=1, queue=0, value=9000, **times)

    maker.rows.append(rows)
    maker.record.recovery_ns = 0
    judgement = maker.judge(only=("requests-answered",))
    assert violated(judgement) == set()
    assert results(judgement)["requests-answered"].examined == 0
