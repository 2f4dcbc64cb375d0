"""Time until slaves have what their master writes (R10)."""

from pathlib import Path

import pytest

from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.trace import Trace
from tests.support.run_maker import MS, SECOND, RunMaker

WRITES = 30


@pytest.mark.parametrize(
    ("late_ms", "count", "verdict"),
    [
        (5, WRITES, Verdict.OK),
        (400, WRITES, Verdict.OK),
        (600, WRITES, Verdict.VIOLATED),
        (600, 19, Verdict.OK),
    ],
)
def test_half_of_a_masters_writes(
    tmp_path: Path, late_ms: int, count: int, verdict: Verdict
) -> None:
    run = RunMaker(tmp_path / "run")
    run.record.recovery_ns, run.trace = 30 * SECOND, Trace()
    for node in run.nodes:
        late_ns = 0 if node == "b1" else late_ms * MS
        run.trace.node(node).add(SECOND, 1000, 1000)
        for number in range(count):
            end = 2000 + number
            run.trace.node(node).add((60 + number) * SECOND + late_ns, end, end)
    result = run.judge(only=["late-copies"]).result("late-copies")
    assert (result.verdict, result.examined) == (verdict, 2 * count)


def test_over_a_slow_network_copies_take_longer(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run")
    run.record.recovery_ns, run.trace = 30 * SECOND, Trace()
    run.record.facts["link_ns"] = 600 * MS
    for node in run.nodes:
        run.trace.node(node).add(SECOND, 1000, 1000)
        for number in range(WRITES):
            at_ns = (60 + number) * SECOND + (0 if node == "b1" else 1200 * MS)
            run.trace.node(node).add(at_ns, 2000 + number, 2000 + number)
    assert run.judge(only=["late-copies"]).result("late-copies").verdict is Verdict.OK


def test_before_the_calm_nothing_is_late(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run")
    run.record.recovery_ns = 0
    assert run.judge(only=["late-copies"]).result("late-copies").verdict is Verdict.NOT_APPLICABLE
