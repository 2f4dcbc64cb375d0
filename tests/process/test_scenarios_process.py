"""The same scenarios on real processes: kills and promotions on loopback, links through the proxy.

Power cuts, disk faults and the packet switch need root and more, so they are slow tests.
"""

from pathlib import Path

import pytest

from chaos.runner import Options, run_plan
from chaos.scenario.library import load_scenario

pytestmark = pytest.mark.process


def run(name: str, net: str, directory: Path, *, seed: int = 1, quick: bool = True) -> None:
    """A scenario has to pass, and nothing of it may be skipped."""
    plan = load_scenario(name).plan(seed, "process", quick=quick)
    options = Options(backend="process", net=net)  # type: ignore[arg-type]
    outcome = run_plan(plan, options, directory=directory / "run")
    assert outcome.judgement is not None, outcome.error
    findings = [result.findings for result in outcome.judgement.findings if not result.harmless]
    assert (outcome.verdict, findings) == ("pass", [])
    assert outcome.record is not None
    assert outcome.record.skipped == []
    assert outcome.record.steps


def test_a_failover_by_hand_over_the_proxy(tmp_path: Path) -> None:
    run("sync-failover", "proxy", tmp_path)


def test_a_rolling_restart_on_plain_loopback(tmp_path: Path) -> None:
    run("rolling-restart", "plain", tmp_path)


@pytest.mark.slow
def test_kills_within_writes_and_recoveries(tmp_path: Path) -> None:
    run("abort-file", "plain", tmp_path)


@pytest.mark.slow
def test_power_cuts_of_real_file_systems(tmp_path: Path) -> None:
    run("power-lone", "plain", tmp_path)


@pytest.mark.slow
def test_a_failover_by_hand_through_the_packet_switch(tmp_path: Path) -> None:
    run("sync-failover", "switch", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["disk-replace", "isr-squeeze", "promote-async", "route-storm"])
def test_other_scenarios_through_the_packet_switch(name: str, tmp_path: Path) -> None:
    run(name, "switch", tmp_path)
