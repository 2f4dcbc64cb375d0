"""S24, and what may be missing where retention is on."""

from pathlib import Path

import pytest

from rocketbed.chaos.checkers.result import Verdict
from tests.support.run_maker import SECOND, RunMaker


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    made = RunMaker(tmp_path / "run")
    made.record.facts["retention_ns"] = 10 * SECOND
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
