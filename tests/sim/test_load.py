"""The load of a run: how many operations begin, and when."""

from collections import Counter
from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import Function, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.search.runner import run_plan

pytestmark = pytest.mark.slow


def begun(rate: float, directory: Path) -> Counter[int]:
    """Operations by the moment at which they began, in a run of about two seconds of load."""
    plan = Plan(
        name="load",
        seed=4,
        shape=Shape(brokers=1, nameservers=1, repl="async"),
        producers=Producers(count=1, rate=rate, in_flight=32, batch=0.0, body=(64, 64)),
        consumers=Consumers(count=0),
        faults_s=1.0,
        recovery_s=1.0,
    )
    outcome = run_plan(plan, directory=directory)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    columns = read_history(directory / HISTORY_FILE).columns
    times = zip(columns["function"], columns["invoked_ns"], strict=True)
    return Counter(time_ns for function, time_ns in times if function == Function.SEND)


@pytest.mark.ci
@pytest.mark.parametrize("rate", [100.0, 600.0])
def test_operations_begin_one_by_one(rate: float, tmp_path: Path) -> None:
    moments = begun(rate, tmp_path)
    assert set(moments.values()) == {1}
    assert 1.6 * rate < moments.total() < 2.4 * rate


def test_sends_within_three_milliseconds_start_together(tmp_path: Path) -> None:
    moments = begun(1200.0, tmp_path)
    assert set(moments.values()) == {3}
    assert 1.6 * 1200 < moments.total() < 2.4 * 1200
