"""S24, and what may be missing where retention is on."""

from pathlib import Path

import pytest

from rocketbed.chaos.checkers.result import Verdict
from tests.support.run_maker import COUNT, SECOND, RunMaker, Sent, spec_of


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    made = RunMaker(tmp_path / "run")
    made.record.facts["retention_ns"] = 10 * SECOND
    made.record.calm_ns = 0
    return made


def test_nothing_may_expire_where_retention_is_off(run: RunMaker) -> None:
    del run.record.facts["retention_ns"]
    assert run.judge(only=["S24"]).result("S24").verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(("after_s", "finds"), [(9, True), (11, False)])
def test_a_segment_with_a_young_message(run: RunMaker, after_s: int, finds: bool) -> None:
    """All messages are sent within the first quarter of a second."""
    run.event(after_s * SECOND, "b2", "expired", start=0, size=1 << 20)
    result = run.judge(only=["S24"]).result("S24")
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
    """All that the first segment has is old enough after ten seconds (seed 859634), if nodes are
    not stopped before (seed 1290043)."""
    run.record.facts["retention_ns"] = reserved_s * SECOND
    run.record.stop_ns = stop_s * SECOND
    run.specs += [spec_of(COUNT + number) for number in range(20)]
    run.sends += [Sent(COUNT + number) for number in range(20)]
    assert run.judge(only=["S24"]).result("S24").verdict is verdict


@pytest.mark.parametrize(
    ("calm_s", "up_s", "finds"), [(60, 0, True), (0, 0, False), (80, 0, False), (60, 80, False)]
)
def test_in_the_calm_every_node_deletes_what_is_old(
    run: RunMaker, calm_s: int, up_s: int, finds: bool
) -> None:
    """Its first segment is old at 10 s, and nodes are stopped at 95 s."""
    run.record.calm_ns, run.record.stop_ns = calm_s * SECOND, 95 * SECOND
    run.specs += [spec_of(COUNT + number) for number in range(20)]
    run.sends += [Sent(COUNT + number) for number in range(20)]
    for node in run.nodes:
        run.event(up_s * SECOND, node, "start", role="SLAVE", id=1)
    result = run.judge(only=["S24"]).result("S24")
    assert result.found == (len(run.nodes) if finds else 0)
