"""Planned changes of the leader, and a lost register: each rule broken, and kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.history import UNKNOWN, Function, Outcome, Row
from rocketbed.chaos.evidence.record import Expectation
from tests.support.run_maker import MS, SECOND, Ids, RunMaker, Written, results, violated

IDS = ("leader-turns", "no-other-leader", "positions-after-turn")
LOST = "at 100ms register ns1 delete"


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    run_maker = RunMaker(tmp_path / "run")
    run_maker.record.recovery_ns = 10 * SECOND
    return run_maker


def judge(maker: RunMaker) -> Judgement:
    return maker.judge(only=IDS)


def hand_over(maker: RunMaker) -> None:
    maker.record.expect = Expectation(turn_s=0.05)
    maker.strike(100 * MS, "b1", "handover")
    maker.event(105 * MS, "b2", "promote", former="b1", written=0, epoch=2)


def test_change_of_leader_is_judged_where_requested(maker: RunMaker) -> None:
    assert results(judge(maker))["leader-turns"].verdict is Verdict.NOT_APPLICABLE


def test_unnoticed_change_of_leader(maker: RunMaker) -> None:
    hand_over(maker)
    result = results(judge(maker))["leader-turns"]
    assert (result.verdict, result.examined) == (Verdict.OK, 1)


def test_run_without_stops_or_handovers(maker: RunMaker) -> None:
    maker.record.expect = Expectation(turn_s=0.05)
    assert results(judge(maker))["leader-turns"].verdict is Verdict.DID_NOT_RUN


@pytest.mark.parametrize("broken", ["gap", "doubt"])
def test_a_turn_that_producers_notice(maker: RunMaker, broken: str) -> None:
    hand_over(maker)
    for value in (9, 10, 11, 12, 13, 14):
        outcome = Outcome.FAIL if broken == "gap" else maker.sends[value].outcome
        maker.sends[value] = replace(maker.sends[value], outcome=outcome)
    if broken == "doubt":
        maker.sends[11] = replace(maker.sends[11], outcome=Outcome.WEAK)
    judgement = judge(maker)
    assert violated(judgement) == {"leader-turns"}
    text = "nothing was acknowledged for" if broken == "gap" else "1 sends in doubt"
    assert results(judgement)["leader-turns"].findings[0].startswith(text)


def test_leader_ends_before_the_next_one_leads(maker: RunMaker) -> None:
    hand_over(maker)
    maker.record.backend = "sim"
    maker.event(103 * MS, "b1", "exit", cause="stop")
    assert results(judge(maker))["leader-turns"].findings[0].startswith("b1 ended before b2 led")


def test_missing_leader_after_a_handover(maker: RunMaker) -> None:
    hand_over(maker)
    maker.record.recovery_ns = 104 * MS
    assert results(judge(maker))["leader-turns"].findings == (
        "nobody followed b1 after 'handover b1'",
    )


def positions_over_a_turn(maker: RunMaker, reported: int, **committed: int) -> None:
    """Commit 7 before a planned change of the leader, and read a position after it."""
    hand_over(maker)
    maker.record.facts["elects"] = True
    maker.committed = {}

    def rows(maker: RunMaker, built: Written, ids: Ids) -> list[Row]:
        commit = ids.commit(0, 7, 90 * MS)._replace(**committed)
        read = ids.commit(0, reported, 120 * MS)
        return [commit, read._replace(function=Function.READ_OFFSET)]

    maker.rows.append(rows)


@pytest.mark.parametrize("reported", [6, 7, 8])
def test_a_position_over_a_turn(maker: RunMaker, reported: int) -> None:
    positions_over_a_turn(maker, reported)
    judgement = judge(maker)
    assert violated(judgement) == ({"positions-after-turn"} if reported == 6 else set())
    assert results(judgement)["positions-after-turn"].examined == 1


@pytest.mark.parametrize("ended", [True, False])
def test_busy_machine_is_excused_only_without_a_handover(maker: RunMaker, ended: bool) -> None:
    positions_over_a_turn(maker, 6)
    maker.record.backend = "process"
    if ended:
        maker.event(103 * MS, "b1", "exit", cause="stop")
    result = results(judge(maker))["positions-after-turn"]
    assert (result.verdict is Verdict.VIOLATED, bool(result.excused)) == (not ended, ended)


@pytest.mark.parametrize(
    "cause", ["kill", "reset", "unanswered", "another member", "no turn", "classic"]
)
def test_a_position_that_may_be_forgotten(maker: RunMaker, cause: str) -> None:
    answers = {"outcome": Outcome.INFO, "returned_ns": UNKNOWN} if cause == "unanswered" else {}
    positions_over_a_turn(maker, 6, **answers)
    if cause == "kill":
        maker.strike(95 * MS, "b1", "kill")
    elif cause == "reset":
        reset = {"function": Function.RESET_OFFSET, "queue_offset": 0}
        maker.rows.append(
            lambda _maker, _built, ids: [ids.commit(0, 0, 100 * MS)._replace(**reset)]
        )
    elif cause == "another member":
        maker.rows.append(
            lambda _maker, _built, ids: [
                ids.commit(0, 6, at * MS)._replace(process=6) for at in (80, 115)
            ]
        )
    elif cause == "classic":
        maker.record.facts["elects"] = False
    elif cause == "no turn":
        maker.events = [one for one in maker.events if one[3] != "handover"]
    result = results(judge(maker))["positions-after-turn"]
    assert result.verdict is Verdict.NOT_APPLICABLE, result


def lose(maker: RunMaker, leader: str, trouble: str) -> None:
    maker.event(50 * MS, "b1", "sample", master=True)
    maker.strike(100 * MS, "ns1", "register", step=LOST)
    maker.event(150 * MS, leader, "sample", master=True)
    maker.event(190 * MS, "ns1", "register", group="b", trouble=trouble)
    maker.strike(200 * MS, "ns1", "heal", step=LOST)
    maker.event(250 * MS, "b2", "sample", master=True)


def test_a_lost_register_changes_nothing(maker: RunMaker) -> None:
    lose(maker, "b1", "it is gone")
    result = results(judge(maker))["no-other-leader"]
    assert (result.verdict, result.examined) == (Verdict.OK, 1)


@pytest.mark.parametrize(
    ("leader", "trouble", "text"),
    [("b2", "it is gone", "b2 leads"), ("b1", "", "the controller finds nothing wrong")],
)
def test_lost_register_that_elects_or_is_unreported(
    maker: RunMaker, leader: str, trouble: str, text: str
) -> None:
    lose(maker, leader, trouble)
    judgement = judge(maker)
    assert violated(judgement) == {"no-other-leader"}
    assert results(judgement)["no-other-leader"].findings[0].startswith(text)


@pytest.mark.parametrize("is_ended", [False, True])
def test_leader_may_have_claimed_its_lead_long_before(maker: RunMaker, is_ended: bool) -> None:
    """Samples are seconds apart on a slow machine; a node that ended since led no longer."""
    maker.event(100 * MS, "b1", "sample", master=True)
    if is_ended:
        maker.event(200 * MS, "b1", "exit", cause="kill")
    maker.strike(4 * SECOND, "ns1", "register", step=LOST)
    maker.event(4100 * MS, "b1", "sample", master=True)
    maker.strike(4200 * MS, "ns1", "heal", step=LOST)
    findings = results(judge(maker))["no-other-leader"].findings
    assert [text.partition(",")[0] for text in findings] == ["b1 leads"] * is_ended


def test_leader_stops_with_its_register(maker: RunMaker) -> None:
    maker.strike(100 * MS, "ns1", "register", step=LOST)
    maker.strike(5 * SECOND, "ns1", "heal", step=LOST)
    judgement = judge(maker)
    assert (
        results(judgement)["no-other-leader"]
        .findings[0]
        .startswith("nothing was acknowledged in 4.9 s")
    )
