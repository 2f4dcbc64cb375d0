"""Expectations of a scenario: each just missed, and just met."""

from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.checks.judgement import Judgement, RunVerdict, judge_run
from rocketbed.chaos.checks.liveness.service import outages
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.history import Outcome
from rocketbed.chaos.evidence.record import Expectation, read_record
from tests.support.run_maker import COUNT, MS, SECOND, RunMaker, results, violated

IDS = ("recovery-time", "progress", "nothing-lost")


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")


def fail_between(maker: RunMaker, first: int, last: int, *, until_ns: int) -> None:
    """Let these sends fail; the next one is acknowledged at that time."""
    for value in range(first, last + 1):
        maker.sends[value] = replace(maker.sends[value], outcome=Outcome.WEAK)
    invoked_ns = (last + 1) * 10 * MS
    maker.sends[last + 1] = replace(
        maker.sends[last + 1], invoked_ns=invoked_ns, returned_ns=until_ns
    )
    for value in range(last + 2, COUNT):
        begun = until_ns + value * 10 * MS
        maker.sends[value] = replace(
            maker.sends[value], invoked_ns=begun, returned_ns=begun + 5 * MS
        )


def test_unexpected_progress_is_not_judged(maker: RunMaker) -> None:
    fail_between(maker, 5, 6, until_ns=40 * SECOND)
    judged = results(maker.judge(only=IDS))
    assert {judged[name].verdict for name in IDS} == {Verdict.NOT_APPLICABLE}


@pytest.mark.parametrize(("limit_s", "is_missed"), [(0.955, False), (0.954, True)])
def test_an_outage_counts_from_the_last_acknowledgement(
    maker: RunMaker, limit_s: float, is_missed: bool
) -> None:
    fail_between(maker, 5, 6, until_ns=1 * SECOND)  # the previous one returned at 45 ms
    maker.sends[5] = replace(maker.sends[5], invoked_ns=41 * MS, returned_ns=55 * MS)
    maker.record.expect = Expectation(rto_s=limit_s)
    judgement = maker.judge(only=IDS)
    assert violated(judgement) == ({"recovery-time"} if is_missed else set())
    result = results(judgement)["recovery-time"]
    assert result.figures["longest_s"] == 0.955
    if is_missed:
        assert judgement.verdict is RunVerdict.STALLED
        assert judgement.exit_code == 2
        assert result.findings == ("producer 1 got no acknowledgement for 0.95 s",)


@pytest.mark.parametrize(("others_too", "expected"), [(True, {"recovery-time"}), (False, set())])
def test_wait_without_failures_is_an_outage_if_nothing_was_answered(
    maker: RunMaker, others_too: bool, expected: set[str]
) -> None:
    late = maker.sends[5:] if others_too else maker.sends[5:6]
    at_ns = 300 * MS
    maker.sends[5 : 5 + len(late)] = [replace(one, returned_ns=at_ns) for one in late]
    maker.record.expect = Expectation(rto_s=0.1)
    assert violated(maker.judge(only=IDS)) == expected


def test_paused_producer_waits_for_itself(maker: RunMaker) -> None:
    fail_between(maker, 5, 6, until_ns=30 * SECOND)
    maker.record.expect = Expectation(rto_s=1.0)
    maker.strike(SECOND, "producer-1", "pause", for_s=20.0)
    assert violated(maker.judge(only=IDS)) == set()


def test_a_node_that_is_held_excuses_nothing(maker: RunMaker) -> None:
    fail_between(maker, 5, 6, until_ns=30 * SECOND)
    maker.record.expect = Expectation(rto_s=1.0)
    maker.strike(SECOND, "b2", "pause", for_s=20.0)
    assert violated(maker.judge(only=IDS)) == {"recovery-time"}


def test_outages_of_attempts() -> None:
    assert outages([]) == []
    assert outages([(0, 5, True), (6, 9, True)]) == [(0, 5), (6, 9)]
    failed = [(0, 5, True), (6, 9, False), (10, 12, False), (13, 15, True)]
    assert outages(failed) == [(0, 5), (6, 15)]
    late = [(0, 30, False), (5, 10, True), (25, 28, True), (31, 33, True)]
    assert outages(late) == [(5, 10), (25, 28), (28, 33)], "others were served while it hung"
    assert outages([(0, 5, True), (6, 9, False)]) == [(0, 5), (6, 9)]


@pytest.mark.parametrize(("count", "is_missed"), [(2, False), (3, True)])
def test_progress_in_the_leanest_time(maker: RunMaker, count: int, is_missed: bool) -> None:
    maker.record.recovery_ns = 235 * MS
    for value in (9, 10, 11):
        maker.sends[value] = replace(maker.sends[value], outcome=Outcome.WEAK)
    maker.record.expect = Expectation(progress=(count, 0.05))
    judgement = maker.judge(only=IDS)
    assert violated(judgement) == ({"progress"} if is_missed else set())
    assert results(judgement)["progress"].figures == {"fewest": 2, "expected": count}


def test_progress_at_both_ends_of_the_fault_phase(maker: RunMaker) -> None:
    maker.record.recovery_ns = 10 * SECOND
    maker.record.expect = Expectation(progress=(1, 9.0))
    judgement = maker.judge(only=IDS)
    assert violated(judgement) == {"progress"}, "nothing came after the first quarter of a second"
    maker.record.expect = Expectation(progress=(1, 20.0))
    assert results(judge_again(maker))["progress"].verdict is Verdict.NOT_APPLICABLE


def test_nothing_lost_where_none_is_expected(maker: RunMaker) -> None:
    maker.record.expect = Expectation(loss="none")
    result = results(maker.judge(only=IDS))["nothing-lost"]
    assert (result.verdict, result.examined) == (Verdict.OK, COUNT)


def test_expectations_are_in_the_record(maker: RunMaker) -> None:
    maker.record.expect = Expectation(loss="none", rto_s=5.0, progress=(50, 5.0))
    maker.write()
    assert read_record(maker.path).expect == maker.record.expect


def judge_again(maker: RunMaker) -> Judgement:
    """Judge the written run with another record."""
    maker.record.save(maker.path)
    return judge_run(maker.path, only=IDS)
