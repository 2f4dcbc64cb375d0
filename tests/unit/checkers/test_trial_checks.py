"""The trial's checks: a clean run passes, and each planted wrong is found by its own check.

Runs are made from a history and from directories that the format's own encoder writes, so nothing
of the broker is needed, and every wrong can be planted exactly.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from chaos.checkers import CheckResult, Verdict, all_passed, check_trial
from chaos.checkers.result import judged, not_run
from chaos.history import Function, HistoryWriter, Outcome
from chaos.workload import Writer, body_crc, encode_body
from rocketbed.inspect import Settings
from tests.unit.inspect_support import Spec, build, flip, overwrite, segment_of

COUNT = 30
SETTINGS = Settings.from_properties({"maxHashSlotNum": "10", "maxIndexNum": "20"})
NODES = ("m", "s1", "s2")


def body_of(value: int) -> bytes:
    return encode_body(Writer(value, operation=value, producer=1, sequence=value), 64)


def spec_of(value: int) -> Spec:
    properties = (("UNIQ_KEY", f"7F00000100002A9F00000000{value:08X}"),)
    return Spec("Trial", queue_id=value % 2, body=body_of(value), properties=properties)


@dataclass
class Send:
    """What the history says of one send; offsets default to the truth."""

    value: int
    outcome: Outcome = Outcome.OK
    queue_offset: int | None = None
    physical_offset: int | None = None
    body: bytes | None = None


class Run:
    """One run that can be told wrong: logs of three nodes, and a history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs = [spec_of(value) for value in range(COUNT)]
        self.sends = [Send(value) for value in range(COUNT)]
        self.events: list[tuple[Function, str, str]] = [(Function.NEMESIS, "m", "kill")]
        self.after: list[Callable[[Path], None]] = []
        self.leader = "m"

    def directory(self, node: str) -> Path:
        return self.path / node

    def check(self, **arguments: bool) -> dict[str, CheckResult]:
        offsets = build(self.directory(NODES[0]), self.specs)
        for node in NODES[1:]:
            shutil.copytree(self.directory(NODES[0]), self.directory(node))
        for harm in self.after:
            harm(self.path)
        self._write_history(offsets)
        directories = {node: str(self.directory(node)) for node in NODES}
        found = check_trial(
            self.path / "history", directories, self.leader, settings=SETTINGS, **arguments
        )
        return {result.title: result for result in found}

    def _write_history(self, offsets: Sequence[int]) -> None:
        times = iter(range(1 << 20))
        with HistoryWriter(self.path / "history", lambda: next(times)) as writer:
            for function, node, what in self.events:
                writer.event(function, node, what)
            for send in self.sends:
                body = body_of(send.value) if send.body is None else send.body
                attempt = writer.begin(
                    Function.SEND,
                    process=1,
                    topic="Trial",
                    queue=send.value % 2,
                    value=send.value,
                    operation=send.value,
                    length=len(body),
                    body_crc=body_crc(body),
                )
                place = send.queue_offset, send.physical_offset
                known = (send.value // 2, offsets[min(send.value, len(offsets) - 1)])
                queue_offset, physical = (
                    truth if said is None else said
                    for said, truth in zip(place, known, strict=True)
                )
                attempt.finish(
                    send.outcome, queue_offset=queue_offset, physical_offset=physical, node="m"
                )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def wrong(results: dict[str, CheckResult]) -> set[str]:
    assert not all_passed(list(results.values()))
    return {name for name, result in results.items() if result.verdict is not Verdict.OK}


def test_a_clean_run_passes(run: Run) -> None:
    results = run.check()
    assert all_passed(list(results.values())), results
    assert len(results) == 25
    assert all(result.examined > 0 for result in results.values())
    assert results["2.3 allowed loss"].note.startswith("allowed 0 messages, lost 0 of 30")
    assert results["A1 lost write"].examined == COUNT
    assert results["A4 unknown value"].examined == 3 * COUNT


def test_a_lost_message(run: Run) -> None:
    run.sends.append(Send(99, queue_offset=15, physical_offset=9999))
    results = run.check()
    assert wrong(results) == {"A1 lost write", "2.3 allowed loss"}
    assert "value 99" in results["A1 lost write"].findings[0]
    assert "lost 1 of 31" in results["2.3 allowed loss"].note


def test_a_message_of_unknown_fate_may_be_there_or_not(run: Run) -> None:
    run.sends[4] = Send(4, Outcome.INFO, queue_offset=-1, physical_offset=-1)
    run.sends += [Send(99, Outcome.INFO), Send(98, Outcome.WEAK), Send(97, Outcome.FAIL)]
    assert all_passed(list(run.check().values()))


def test_a_duplicated_message(run: Run) -> None:
    run.specs.append(spec_of(4))
    results = run.check()
    assert wrong(results) == {"A5 duplicate"}
    assert "2 times in the log of m" in results["A5 duplicate"].findings[0]


def test_a_retry_that_is_stored_again_is_counted(run: Run) -> None:
    """Another attempt of the same operation has its own value; both may be stored (A6)."""
    retried = encode_body(Writer(30, operation=4, producer=1, sequence=4), 64)
    run.specs.append(replace(spec_of(30), body=retried))
    run.sends.append(Send(30, body=retried))
    results = run.check()
    assert all_passed(list(results.values()))
    assert results["A6 retry duplicate"].note.startswith("1 messages stored again")


def test_a_moved_message(run: Run) -> None:
    run.sends[6] = Send(6, queue_offset=3, physical_offset=17)
    assert wrong(run.check()) == {"A8 moved write"}


def test_a_message_moved_to_another_queue_offset(run: Run) -> None:
    run.sends[6] = Send(6, queue_offset=4)
    assert wrong(run.check()) == {
        "A8 moved write",
        "A7 inconsistent offset",
        "A9 nonmonotonic send",
    }


def test_a_torn_message(run: Run) -> None:
    def tear(path: Path) -> None:
        for node in NODES:
            log, position = segment_of(path / node, 300)
            overwrite(log, position, bytes(60))

    run.after.append(tear)
    results = run.check()
    assert {"A1 lost write", "S9 no silent damage", "I13 queues dense"} <= wrong(results)


def test_a_torn_last_message(run: Run) -> None:
    """Its bytes are there in part: lost, and no reason to say that the log is damaged."""

    def tear(path: Path) -> None:
        for node in NODES:
            log = segment_of(path / node, 4096)[0]
            data = log.read_bytes().rstrip(b"\0")
            overwrite(log, len(data) - 60, bytes(60))
            (path / node / "abort").touch()

    run.after.append(tear)
    results = run.check(stopped_cleanly=False)
    assert {"A1 lost write", "2.3 allowed loss"} <= wrong(results)
    assert results["S1 logs tile"].verdict is Verdict.OK


def test_a_phantom(run: Run) -> None:
    run.sends[7] = Send(7, Outcome.FAIL, queue_offset=-1, physical_offset=-1)
    assert wrong(run.check()) == {"A3 phantom"}


def test_a_message_that_nobody_sent(run: Run) -> None:
    del run.sends[11]
    results = run.check()
    assert wrong(results) == {"A4 unknown value"}
    assert "value 11" in results["A4 unknown value"].findings[0]


def test_another_body_than_the_one_sent(run: Run) -> None:
    run.sends[3] = Send(3, body=body_of(3) + b"more")
    assert wrong(run.check()) == {"A4 unknown value"}


def test_a_body_that_names_no_writer(run: Run) -> None:
    run.specs[3] = replace(run.specs[3], body=b"something else")
    assert wrong(run.check()) == {"A1 lost write", "A4 unknown value", "2.3 allowed loss"}


def test_two_messages_at_one_offset(run: Run) -> None:
    """A slave that holds another message at a queue offset: diverged."""

    def diverge(path: Path) -> None:
        shutil.rmtree(path / "s2")
        specs = [*run.specs[:-1], replace(spec_of(29), body=body_of(777))]
        build(path / "s2", specs)

    run.after.append(diverge)
    run.sends.append(Send(777, Outcome.INFO, queue_offset=-1, physical_offset=-1))
    results = run.check()
    assert wrong(results) == {"A7 inconsistent offset", "R1 logs byte-equal"}
    assert "m and s2 differ from log" in results["R1 logs byte-equal"].findings[0]


def test_a_slave_that_is_behind_is_no_divergence(run: Run) -> None:
    def fall_behind(path: Path) -> None:
        shutil.rmtree(path / "s2")
        build(path / "s2", run.specs[:20])

    run.after.append(fall_behind)
    assert all_passed(list(run.check().values()))


def test_a_slave_without_data_is_not_a_pass(run: Run) -> None:
    def empty(path: Path) -> None:
        shutil.rmtree(path / "s2")
        (path / "s2" / "commitlog").mkdir(parents=True)

    run.after.append(empty)
    results = run.check()
    assert results["R1 logs byte-equal"].verdict is Verdict.DID_NOT_RUN
    assert "nothing in common" in results["R1 logs byte-equal"].note
    assert results["S4 queues agree with the log"].note == "none in s2"


def test_a_hole_in_a_queues_numbers(run: Run) -> None:
    run.specs[20:] = [replace(run.specs[20], queue_offset=12), *run.specs[21:]]
    results = run.check()
    assert {"S6 queue slots", "A8 moved write", "I13 queues dense"} <= wrong(results)


def test_a_queue_that_disagrees(run: Run) -> None:
    run.after.append(
        lambda path: flip(path / "s1" / "consumequeue" / "Trial" / "0" / f"{0:020d}", 47)
    )
    results = run.check()
    assert wrong(results) == {"S6 queue slots"}
    assert results["S6 queue slots"].findings[0].startswith("s1: S6")


def test_an_index_that_disagrees(run: Run) -> None:
    run.after.append(lambda path: flip(next((path / "s1" / "index").iterdir()), 40 + 40 + 43))
    assert wrong(run.check()) == {"S8 index agrees with the log", "S10 index complete"}


def test_an_abort_file_is_fine_and_a_missing_one_over_a_tail_is_not(run: Run) -> None:
    def tail(path: Path) -> None:
        log = segment_of(path / "m", 4096)[0]
        overwrite(log, len(log.read_bytes().rstrip(b"\0")) + 100, b"remains")

    run.after.append(tail)
    assert wrong(run.check()) == {"S1 logs tile", "S12 abort file"}


def test_a_history_that_is_cut_proves_nothing(run: Run) -> None:
    run.check()
    size = os.path.getsize(run.path / "history")
    os.truncate(run.path / "history", size - 1)
    directories = {node: str(run.directory(node)) for node in NODES}
    results = check_trial(run.path / "history", directories, "m", settings=SETTINGS)
    by_name = {result.title: result for result in results}
    assert by_name["H1 history"].verdict is Verdict.DID_NOT_RUN
    assert by_name["A1 lost write"].verdict is Verdict.DID_NOT_RUN
    assert by_name["R1 logs byte-equal"].verdict is Verdict.OK
    assert not all_passed(results)


def test_no_history_no_pass(tmp_path: Path, run: Run) -> None:
    run.check()
    directories = {node: str(run.directory(node)) for node in NODES}
    assert not all_passed(check_trial(tmp_path / "absent", directories, "m", settings=SETTINGS))


def test_an_empty_history_is_not_a_pass(run: Run) -> None:
    run.sends.clear()
    results = run.check()
    assert results["H1 history"].verdict is Verdict.DID_NOT_RUN
    assert results["A1 lost write"].verdict is Verdict.DID_NOT_RUN
    assert not all_passed(list(results.values()))


def test_a_missing_directory_is_not_a_pass(run: Run) -> None:
    run.after.append(lambda path: shutil.rmtree(path / "s1"))
    results = run.check()
    assert results["E1 evidence"].verdict is Verdict.DID_NOT_RUN
    assert not all_passed(list(results.values()))


def test_an_unread_leader_is_not_a_pass(run: Run) -> None:
    run.leader = "elsewhere"
    results = run.check()
    for name in ("A1 lost write", "A8 moved write", "I13 queues dense", "2.3 allowed loss"):
        assert results[name].verdict is Verdict.DID_NOT_RUN


def test_a_power_cut_needs_a_trace_for_its_bound(run: Run) -> None:
    run.events.append((Function.NEMESIS, "m", "powercut"))
    results = run.check()
    assert wrong(results) == {"2.3 allowed loss"}
    assert results["2.3 allowed loss"].verdict is Verdict.DID_NOT_RUN


def test_nothing_examined_is_never_a_pass() -> None:
    assert judged("x", 0, "things", []).verdict is Verdict.DID_NOT_RUN
    assert judged("x", 1, "things", []).passed
    assert not judged("x", 1, "things", ["wrong"]).passed
    assert not not_run("x", "things", "because").passed
    assert not all_passed([])
    many = judged("x", 1, "things", ["wrong"] * 100)
    assert (len(many.findings), many.found) == (32, 100)
    assert many.as_row()["verdict"] == "violated"
