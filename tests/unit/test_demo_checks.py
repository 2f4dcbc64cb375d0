"""What a trial checks about itself, and what all checks amount to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.checkers.result import CheckResult, Verdict, judged, not_run
from chaos.demo.checks import Endings, check_run, old_messages, outages, read_back
from chaos.demo.drain import KeyQueries
from chaos.demo.old_store import OldMessage, OldStore
from chaos.demo.plan import Target, make_plan
from chaos.demo.samples import offsets_of
from chaos.demo.strikes import Kill, Start
from chaos.demo.verdict import CRASH_CHECK, LIVENESS_CHECKS, DemoVerdict, Result, judge
from chaos.history import Function, History, HistoryWriter, Outcome, read_history

PLAN = make_plan(seed=1)


def kill(target: Target, *, hit: bool = True, abort_left: bool = True) -> Kill:
    return Kill(node="master", target=target, at_s=1.5, in_flight=3, abort_left=abort_left, hit=hit)


def start(reason: str = "killed", serving_s: float | None = 0.5, killed: str = "") -> Start:
    return Start(
        node="master",
        reason=reason,
        abort_found=True,
        at_s=2.0,
        serving_s=serving_s,
        killed=killed,
    )


ALL_KILLS = [kill(target) for target in Target]


def run_checks(
    kills: list[Kill] | None = None,
    starts: list[Start] | None = None,
    unexpected: list[str] | None = None,
    endings: Endings | None = None,
    keys: KeyQueries | None = None,
) -> dict[str, CheckResult]:
    results = check_run(
        PLAN,
        starts=[start("first"), start()] if starts is None else starts,
        kills=ALL_KILLS if kills is None else kills,
        unexpected=unexpected or [],
        endings=endings or Endings(stopped=3, caught_up=True),
        keys=keys or KeyQueries(asked=4),
    )
    return {result.title.partition(" ")[0]: result for result in results}


def test_a_trial_that_went_as_planned_passes() -> None:
    assert all(result.passed for result in run_checks().values())


@pytest.mark.parametrize(("target", "name"), list(zip(Target, ("D1", "D2", "D3"), strict=True)))
def test_a_kill_that_missed_or_was_not_done_is_a_check_that_did_not_run(
    target: Target, name: str
) -> None:
    others = [one for one in ALL_KILLS if one.target is not target]
    for kills in (others, [*others, kill(target, hit=False)]):
        results = run_checks(kills=kills)
        assert results[name].verdict is Verdict.DID_NOT_RUN
        assert results[name].note
        assert judge(list(results.values()), stalled=False, failed=False) is Result.UNKNOWN
    hit_later = [*others, kill(target, hit=False), kill(target)]
    assert run_checks(kills=hit_later)[name].passed


def test_a_node_that_did_not_come_back_is_found() -> None:
    results = run_checks(starts=[start("first"), start(serving_s=None)])
    assert results["D4"].verdict is Verdict.VIOLATED
    assert judge(list(results.values()), stalled=False, failed=False) is Result.STALLED
    killed_again = [start(serving_s=None, killed="in recovery"), start()]
    assert run_checks(starts=killed_again)["D4"].passed


def test_a_missing_abort_file_is_found() -> None:
    kills = [*ALL_KILLS[:2], kill(Target.RECOVERY, abort_left=False)]
    assert run_checks(kills=kills)["S12"].verdict is Verdict.VIOLATED


def test_a_node_that_ended_by_itself_makes_the_trial_crashed() -> None:
    results = run_checks(unexpected=["slave-1 ended by itself: assert"])
    assert results["D5"].findings == ("slave-1 ended by itself: assert",)
    assert judge(list(results.values()), stalled=True, failed=True) is Result.CRASHED


def test_an_unclean_end_is_found() -> None:
    endings = Endings(stopped=3, caught_up=True, unclean=["master ended with code 1"])
    results = run_checks(endings=endings)
    assert results["D7"].verdict is Verdict.VIOLATED
    assert judge(list(results.values()), stalled=False, failed=False) is Result.ANOMALY
    assert not endings.all_clean
    assert run_checks(endings=Endings(caught_up=True))["D7"].verdict is Verdict.DID_NOT_RUN


def test_slaves_that_stay_behind_are_a_stall() -> None:
    results = run_checks(endings=Endings(stopped=3, caught_up=False))
    assert results["D6"].verdict is Verdict.VIOLATED
    assert judge(list(results.values()), stalled=False, failed=False) is Result.STALLED
    assert run_checks(endings=Endings(stopped=3))["D6"].verdict is Verdict.DID_NOT_RUN


def test_a_key_that_is_not_found_is_found() -> None:
    keys = KeyQueries(asked=2, findings=["demo-one, key k: not found"])
    assert run_checks(keys=keys)["Q1"].verdict is Verdict.VIOLATED
    assert run_checks(keys=KeyQueries())["Q1"].verdict is Verdict.DID_NOT_RUN


# --- read back

Write = Callable[[HistoryWriter], None]


def history_of(tmp_path: Path, *, write: Write) -> History:
    path = tmp_path / "history"
    clock = iter(range(10, 10_000, 10))
    with HistoryWriter(path, lambda: next(clock)) as writer:
        write(writer)
    return read_history(path)


def sent(writer: HistoryWriter, value: int, offset: int, said: Outcome = Outcome.OK) -> None:
    writer.begin(Function.SEND, process=1, topic="T", value=value, body_crc=value).finish(
        said, queue=0, queue_offset=offset
    )


def got(writer: HistoryWriter, value: int, offset: int, crc: int | None = None) -> None:
    writer.begin(
        Function.GOT,
        process=9,
        topic="T",
        queue=0,
        value=value,
        body_crc=value if crc is None else crc,
    ).finish(Outcome.OK, queue_offset=offset)


def both(writer: HistoryWriter) -> None:
    sent(writer, 1, 0)
    sent(writer, 2, 1)
    sent(writer, 3, -1, Outcome.INFO)
    got(writer, 1, 0)


def test_everything_acknowledged_has_to_be_read_back(tmp_path: Path) -> None:
    def complete(writer: HistoryWriter) -> None:
        both(writer)
        got(writer, 2, 1)

    result = read_back(history_of(tmp_path, write=complete))
    assert result.passed
    assert result.examined == 2


@pytest.mark.parametrize(
    ("value", "offset", "crc"), [(2, 2, None), (5, 1, None), (2, 1, 77)], ids=str
)
def test_what_is_missing_or_another_is_found(
    tmp_path: Path, value: int, offset: int, crc: int | None
) -> None:
    def wrong(writer: HistoryWriter) -> None:
        both(writer)
        got(writer, value, offset, crc)

    result = read_back(history_of(tmp_path, write=wrong))
    assert result.verdict is Verdict.VIOLATED
    assert result.found == 1


def test_reading_nothing_shows_nothing(tmp_path: Path) -> None:
    result = read_back(history_of(tmp_path, write=lambda writer: sent(writer, 1, 0)))
    assert result.verdict is Verdict.DID_NOT_RUN


def test_an_outage_ends_with_the_first_send_that_began_after_the_kill(tmp_path: Path) -> None:
    def late(writer: HistoryWriter) -> None:
        early = writer.begin(Function.SEND, process=1, topic="T", value=1)
        attempt = writer.begin(Function.SEND, process=1, topic="T", value=2)
        early.finish(Outcome.OK, queue_offset=0)
        attempt.finish(Outcome.OK, queue_offset=1)

    history = history_of(tmp_path, write=late)
    first, second = sorted(row.invoked_ns for row in history.rows())
    returned = next(row.returned_ns for row in history.rows() if row.value == 2)
    one, never = kill(Target.RECOVERY), kill(Target.RECOVERY)
    one.at_s = (first + 1) / 1e9
    never.at_s = (second + 1) / 1e9
    outages(history, [one, never])
    assert one.outage_s == pytest.approx((returned - first - 1) / 1e9)
    assert never.outage_s is None


# --- old messages


def test_old_messages_have_to_be_served_both_times() -> None:
    old = OldStore(Path("x"), {}, {("T", 0): {0: OldMessage(0, 100, 1, {})}})
    assert old_messages(old).verdict is Verdict.DID_NOT_RUN
    old.served["before the kills"] = 1
    assert "after the kills" in old_messages(old).note
    old.served["after the kills"] = 1
    assert old_messages(old).passed
    old.findings.append("T/0 offset 0: it came 0 times")
    assert old_messages(old).verdict is Verdict.VIOLATED


# --- verdict

HELD = judged("A1", 1, "things", [])
BROKEN = judged("A1", 1, "things", ["lost"])
CRASHED = judged(CRASH_CHECK, 1, "starts", ["gone"])
STUCK = judged(min(LIVENESS_CHECKS), 1, "restarts", ["no"])
OPEN = not_run("A1", "things", "no reason")


@pytest.mark.parametrize(
    ("checks", "stalled", "failed", "result", "code"),
    [
        ([HELD], False, False, Result.PASS, 0),
        ([], False, False, Result.UNKNOWN, 6),
        ([HELD, OPEN], False, False, Result.UNKNOWN, 6),
        ([HELD, BROKEN, CRASHED, OPEN], True, True, Result.ANOMALY, 1),
        ([HELD, CRASHED, STUCK, OPEN], True, True, Result.CRASHED, 3),
        ([HELD, STUCK], False, False, Result.STALLED, 2),
        ([HELD, OPEN], True, True, Result.STALLED, 2),
        ([HELD], False, True, Result.HARNESS_ERROR, 4),
    ],
)
def test_the_worst_counts(
    checks: list[CheckResult], stalled: bool, failed: bool, result: Result, code: int
) -> None:
    assert judge(checks, stalled=stalled, failed=failed) is result
    verdict = DemoVerdict(
        seed=1, checks=checks, stalled="slow" if stalled else "", error="no" if failed else ""
    )
    assert verdict.exit_code == code
    assert verdict.as_row()["result"] == str(result)


def test_offsets_are_read_off_the_runtime_information() -> None:
    info = {"commitLogMaxOffset": "5000", "remainHowManyDataToFlush": "1000 B"}
    assert offsets_of(info) == (5000, 4000)
    assert offsets_of({"commitLogMaxOffset": "5000"}) == (5000, None)
    assert offsets_of({}) == (None, None)
