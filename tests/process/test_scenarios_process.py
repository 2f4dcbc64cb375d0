"""The same scenarios on real processes: kills and promotions on loopback, links through the proxy.

Power cuts, disk faults and the packet switch need root and more, so they are slow tests.
"""

from pathlib import Path

import pytest

from rocketbed.chaos.hunt.runner import Options, run_plan
from rocketbed.chaos.process.backend import MISSING
from rocketbed.chaos.scenario.family import shorten
from rocketbed.chaos.scenario.library import load_scenario
from rocketbed.chaos.scenario.plan import Plan, Producers, Shape
from rocketbed.chaos.scenario.step import parse_step

pytestmark = pytest.mark.process
SHORT = (7.0, 6.0)
IMPOSSIBLE = (MISSING["nameserver.stale"], MISSING["clock.drift"])
POWER_AT_A_MARK = Plan(
    name="power-at-a-mark",
    seed=1,
    shape=Shape(brokers=1, nameservers=1, repl="async"),
    producers=Producers(count=1, rate=50),
    steps=(parse_step("at 1s crash leader mark * powercut for 200ms"),),
    storm_s=4.0,
    calm_s=5.0,
)


def run(
    name: str,
    net: str,
    directory: Path,
    *,
    seed: int = 1,
    quick: bool = True,
    seconds: tuple[float, float] | None = None,
) -> None:
    """A scenario has to pass, and only that may be skipped which no process can do.

    `seconds`: of its storm and its calm, shorter than in its quick form.
    """
    plan = load_scenario(name).plan(seed, "process", quick=quick)
    if seconds is not None:
        plan = shorten(plan, storm_s=seconds[0], calm_s=seconds[1])
    options = Options(backend="process", net=net)  # type: ignore[arg-type]
    outcome = run_plan(plan, options, directory=directory / "run")
    assert outcome.judgement is not None, outcome.error
    findings = [result.findings for result in outcome.judgement.findings if not result.harmless]
    assert (outcome.verdict, findings) == ("pass", [])
    assert outcome.record is not None
    assert all(text.endswith(IMPOSSIBLE) for text in outcome.record.skipped), outcome.record.skipped
    assert outcome.record.steps


def test_a_failover_by_hand_over_the_proxy(tmp_path: Path) -> None:
    run("sync-failover", "proxy", tmp_path, seconds=SHORT)


def test_a_rolling_restart_on_plain_loopback(tmp_path: Path) -> None:
    run("rolling-restart", "plain", tmp_path, seconds=SHORT)


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
@pytest.mark.parametrize(
    "name",
    [
        "bit-rot",
        "clock-jump",
        "demote-truncate",
        "disk-replace",
        "disk-sick",
        "double-master",
        "half-open",
        "isr-squeeze",
        "promote-async",
        "route-storm",
    ],
)
def test_other_scenarios_through_the_packet_switch(name: str, tmp_path: Path) -> None:
    run(name, "switch", tmp_path)


@pytest.mark.slow
def test_power_goes_at_a_point_of_the_nodes_work(tmp_path: Path) -> None:
    options = Options(backend="process", net="plain")
    outcome = run_plan(POWER_AT_A_MARK, options, directory=tmp_path / "run")
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.record is not None
    assert [image.cause for image in outcome.record.images] == ["powercut"]
