"""Retention, and messages that may be missing because of retention."""

from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.checks.result import Verdict
from tests.support.run_maker import COUNT, MS, SECOND, RunMaker, Sent, spec_of

FIRST_SEGMENT = 18
"""Number of messages in a segment."""


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    maker.record.facts["retention_ns"] = 10 * SECOND
    maker.record.recovery_ns = 0
    return maker


def test_nothing_may_expire_where_retention_is_off(run: RunMaker) -> None:
    del run.record.facts["retention_ns"]
    assert run.judge(only=["retention"]).result("retention").verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(("after_s", "finds"), [(9, True), (11, False)])
def test_a_segment_with_a_young_message(run: RunMaker, after_s: int, finds: bool) -> None:
    """All messages are sent in the first quarter of a second."""
    run.event(after_s * SECOND, "b2", "expired", start=0, size=1 << 20)
    result = run.judge(only=["retention"]).result("retention")
    assert (result.verdict is Verdict.VIOLATED) == finds
    assert result.examined == 1


@pytest.mark.parametrize(
    ("reserved_s", "stop_s", "verdict"),
    [
        (10, 0, Verdict.DID_NOT_RUN),
        (96, 0, Verdict.NOT_APPLICABLE),
        (10, 12, Verdict.NOT_APPLICABLE),
    ],
)
def test_nothing_deleted(run: RunMaker, reserved_s: int, stop_s: int, verdict: Verdict) -> None:
    """The first segment is old enough after ten seconds, if nodes are not stopped before."""
    run.record.facts["retention_ns"] = reserved_s * SECOND
    run.record.stop_ns = stop_s * SECOND
    run.specs += [spec_of(COUNT + number) for number in range(20)]
    run.sends += [Sent(COUNT + number) for number in range(20)]
    assert run.judge(only=["retention"]).result("retention").verdict is verdict


@pytest.mark.parametrize(
    ("recovery_s", "round_s", "event", "finds"),
    [
        (60, 1, ("start", 0), True),
        (0, 1, ("start", 0), False),
        (80, 1, ("start", 0), False),
        (60, 1, ("start", 80), False),
        (60, 1, ("exit", 61), False),
        (60, 10, ("start", 0), False),
        (60, 0, ("start", 0), False),  # retention rests at some hours
        (60, 1, ("clock", 20), False),
    ],
)
def test_every_node_deletes_old_messages_in_the_recovery_phase(
    run: RunMaker, recovery_s: int, round_s: int, event: tuple[str, int], finds: bool
) -> None:
    """The first segment is old at 10 s, and nodes are stopped at 95 s."""
    run.record.recovery_ns, run.record.stop_ns = recovery_s * SECOND, 95 * SECOND
    run.record.facts["retention_round_ns"] = round_s * SECOND
    run.specs += [spec_of(COUNT + number) for number in range(20)]
    run.sends += [Sent(COUNT + number) for number in range(20)]
    kind, at_s = event
    for node in run.nodes:
        if kind == "clock":
            run.strike(at_s * SECOND, node, "clock")
        else:
            run.event(at_s * SECOND, node, kind, role="SLAVE", id=1)
    result = run.judge(only=["retention"]).result("retention")
    assert result.found == (len(run.nodes) if finds else 0)


@pytest.mark.parametrize(("disk_ms", "finds"), [(1, True), (50, True), (2000, False)])
def test_slow_disk_keeps_old_segments_until_its_mark_rises(
    run: RunMaker, disk_ms: int, *, finds: bool
) -> None:
    run.record.facts["disks_ns"] = dict.fromkeys(run.nodes, disk_ms * MS)
    test_every_node_deletes_old_messages_in_the_recovery_phase(run, 60, 1, ("start", 0), finds)


def test_segment_is_old_when_the_next_one_is(run: RunMaker) -> None:
    """Nothing was written for half a minute."""
    run.record.recovery_ns, run.record.stop_ns = 60 * SECOND, 95 * SECOND
    run.record.facts["retention_round_ns"] = SECOND
    run.specs += [spec_of(COUNT + number) for number in range(20)]
    run.sends += [Sent(COUNT + number) for number in range(20)]
    for number, sent in enumerate(run.sends):
        if number >= FIRST_SEGMENT:
            run.sends[number] = replace(sent, invoked_ns=70 * SECOND, returned_ns=70 * SECOND)
    assert run.judge(only=["retention"]).result("retention").found == 0
