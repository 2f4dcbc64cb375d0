"""Verdict of a run by the results of its checks; nothing passes by default."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rocketbed.chaos.checks.judgement import RunVerdict, decide, judge_run
from rocketbed.chaos.checks.result import Severity, Verdict, judged, not_applicable, not_run
from rocketbed.chaos.evidence.history import HistoryWriter, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE, TRACE_FILE, Crash, Stall
from rocketbed.chaos.evidence.trace import Trace, read_trace
from tests.support.plain_passes import form
from tests.support.run_maker import COUNT, SECOND, RunMaker, Sent, results, violated

GOOD = judged("lost-write", 1, "messages", [])
ANOMALY = judged("phantom-write", 1, "messages", ["wrong"])
WARNING = judged("time-search", 1, "searches", ["wrong"], severity=Severity.WARNING)
STALL = judged("replicas-equal", 1, "waits", ["wrong"], severity=Severity.LIVENESS)
CRASH = judged("no-unexpected-exit", 1, "nodes", ["wrong"], severity=Severity.CRASH)
MISSING = not_run("moved-write", "places", "no log")
BESIDE = not_applicable("group-skip", "messages", "no group")


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([GOOD], RunVerdict.PASS),
        ([GOOD, WARNING, BESIDE], RunVerdict.PASS),
        ([GOOD, MISSING], RunVerdict.UNKNOWN),
        ([], RunVerdict.UNKNOWN),
        ([BESIDE], RunVerdict.UNKNOWN),
        ([GOOD, MISSING, STALL], RunVerdict.STALLED),
        ([GOOD, MISSING, STALL, CRASH], RunVerdict.CRASHED),
        ([MISSING, STALL, CRASH, ANOMALY], RunVerdict.ANOMALY),
    ],
)
def test_the_worst_counts(parts: list[Any], expected: RunVerdict) -> None:
    assert decide(parts) is expected


def test_the_row_says_all_of_it(run: RunMaker) -> None:
    run.sends.append(Sent(99, queue_offset=12, physical=9000))
    run.record.digest = "abc"
    run.strike(SECOND, "b2", "pause", for_s=1.0)
    row = json.loads(json.dumps(run.judge().as_row()))
    assert (row["verdict"], row["exit_code"], row["digest"]) == ("anomaly", 1, "abc")
    assert row["finding_ids"] == ["loss-within-bound", "lost-write"]
    first = row["findings"][0]
    assert (first["id"], first["severity"]) == ("lost-write", "S")
    assert first["examples"][0]["value"] == 99
    assert {entry["id"] for entry in row["waiting"]} == {"dirty-half", "lost-commit"}
    assert row["faults"][0]["step"] == "pause b2"
    assert row["rto"][0]["rto_s"] is None


def test_time_to_the_next_acknowledgement(run: RunMaker) -> None:
    run.strike(51_000_000, "b1", "kill", for_s=0.1)
    assert run.judge().rto[0]["rto_s"] == pytest.approx(0.014)


def test_pauses_of_all_writes_and_of_each_failover(run: RunMaker) -> None:
    run.strike(51_000_000, "b3", "pause", for_s=0.1)
    run.strike(52_000_000, "b1", "kill", for_s=0.1)
    run.strike(53_000_000, "b2", "pause", for_s=0.1)
    run.event(54_000_000, "b2", "promote", former="b1")
    judgement = run.judge()
    (failover,) = judgement.pauses.failovers
    assert (failover.node, failover.former, failover.step) == ("b2", "b1", "kill b1")
    assert failover.seconds == judgement.rto[1]["rto_s"] == pytest.approx(0.013)
    assert judgement.as_row()["pauses"]["failovers"][0]["seconds"] == failover.seconds


def test_load_without_any_acknowledgement_is_one_pause(run: RunMaker) -> None:
    last_ns = max(send.value for send in run.sends) * 10_000_000 + 5_000_000
    run.record.recovery_ns = last_ns + 3 * SECOND
    pauses = run.judge().pauses
    assert pauses.longest_s == pytest.approx(3.0)
    assert (pauses.begin_ns, pauses.failovers) == (last_ns, [])


def test_crashes_and_stalls_of_the_record(run: RunMaker) -> None:
    run.record.stalls = [Stall(what="replicas-equal", subject="b", reason="b2 is behind")]
    assert str(run.judge().verdict) == "stalled"


def test_a_crash_is_worse_than_a_stall(run: RunMaker) -> None:
    run.record.crashes = [Crash(node="b2", time_ns=SECOND, reason="boom")]
    run.record.stalls = [Stall(what="leader", subject="b", reason="nobody")]
    judgement = run.judge()
    assert (str(judgement.verdict), judgement.exit_code) == ("crashed", 3)
    assert judgement.finding_ids == ["leader-serves", "no-unexpected-exit"]


def test_a_cut_history_proves_nothing(run: RunMaker) -> None:
    run.write()
    path = run.path / HISTORY_FILE
    os.truncate(path, os.path.getsize(path) - 1)
    judgement = judge_run(run.path)
    assert (str(judgement.verdict), judgement.exit_code) == ("unknown", 6)
    by_id = results(judgement)
    assert by_id["lost-write"].verdict is Verdict.DID_NOT_RUN
    assert "the last one returned at" in by_id["history"].note
    assert by_id["equal-logs"].passed


def test_truncated_history_does_not_hide_a_broken_store(run: RunMaker) -> None:
    run.after.append(lambda path: os.truncate(path / "stores" / "b2" / "checkpoint", 10))
    run.write()
    os.truncate(run.path / HISTORY_FILE, 20)
    assert str(judge_run(run.path).verdict) == "anomaly"


def test_no_record_no_judgement(tmp_path: Path) -> None:
    judgement = judge_run(tmp_path)
    assert (str(judgement.verdict), judgement.exit_code) == ("harness-error", 4)
    assert "run.json" in judgement.error
    assert judgement.as_row()["verdict"] == "harness-error"


def test_a_missing_store_is_not_a_pass(run: RunMaker) -> None:
    run.write()
    run.record.stores["b3"] = "stores/elsewhere"
    run.record.save(run.path)
    judgement = judge_run(run.path)
    assert str(judgement.verdict) == "unknown"
    assert "elsewhere" in results(judgement)["evidence"].note


def test_unknown_master_is_not_a_pass(run: RunMaker) -> None:
    run.record.leaders = {}
    judgement = run.judge()
    assert str(judgement.verdict) == "unknown"
    assert "had no master" in results(judgement)["lost-write"].note


def test_invalid_trace_is_not_a_pass(run: RunMaker) -> None:
    run.write()
    (run.path / TRACE_FILE).write_bytes(b"nonsense")
    assert str(judge_run(run.path).verdict) == "unknown"


def test_trace_with_a_flipped_bit_is_not_a_pass(run: RunMaker) -> None:
    run.trace = Trace()
    run.trace.node("b1").add(1, 200, 100)
    run.write()
    path = run.path / TRACE_FILE
    data = path.read_bytes()
    assert read_trace(path).node("b1").at(1) == (200, 100)
    for at in range(8 * len(data)):
        whole = int.from_bytes(data) ^ 1 << at
        path.write_bytes(whole.to_bytes(len(data)))
        with pytest.raises(ValueError, match="checksum"):
            read_trace(path)
    assert str(judge_run(run.path).verdict) == "unknown"


def test_a_check_that_crashes_is_not_a_pass(run: RunMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_case: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("rocketbed.chaos.checks.messages.stored.phantom_writes.run", crash)
    judgement = run.judge()
    assert str(judgement.verdict) == "unknown"
    assert "RuntimeError('boom') at test_judgement.py:" in results(judgement)["phantom-write"].note


def test_only_some_checks(run: RunMaker) -> None:
    run.sends.append(Sent(99, queue_offset=12, physical=9000))
    judgement = run.judge(only=["phantom-write", "moved-write"])
    assert str(judgement.verdict) == "pass"
    assert {result.id for result in judgement.results} == {
        "history",
        "evidence",
        "phantom-write",
        "moved-write",
    }


def test_an_empty_run_is_not_a_pass(run: RunMaker) -> None:
    run.sends.clear()
    run.delivered = run.read_values = []
    run.specs = run.specs[:1]
    judgement = run.judge()
    assert str(judgement.verdict) in ("unknown", "anomaly")


def test_a_run_with_nothing_done_is_skipped(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", nodes=())
    run.record.skipped = ["powercut leader: no loop devices"]
    run.sends.clear()
    run.specs = []
    judgement = run.judge()
    assert (str(judgement.verdict), judgement.exit_code) == ("skipped", 5)


def test_both_forms_say_the_same(run: RunMaker) -> None:
    run.sends[3] = Sent(3, physical=17)
    run.sends.append(Sent(99, queue_offset=4, physical=9000))
    run.read_values = list(range(1, COUNT))
    run.write()
    with form(plain=True):
        in_plain = judge_run(run.path).as_row()
    assert judge_run(run.path).as_row() == in_plain
    assert violated(judge_run(run.path)) >= {
        "lost-write",
        "unseen-message",
        "inconsistent-offset",
        "moved-write",
    }


def test_a_history_of_foreign_rows_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with HistoryWriter(path, lambda: 0) as writer:
        writer._add([1, 2, 3])
    with pytest.raises(ValueError, match="zip"):
        read_history(path)
