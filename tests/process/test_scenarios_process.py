"""The same scenarios on real processes: kills and promotions on loopback, links through the proxy.

Power cuts, disk faults and the packet switch need root and more, so they are slow tests.
"""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.backends.process.backend import MISSING, ProcessBackend, SetUp
from rocketbed.chaos.backends.process.machine.machine import Machine
from rocketbed.chaos.backends.process.network.base import Machines, PlainNetwork
from rocketbed.chaos.backends.process.run import ProcessHost, run_in_processes
from rocketbed.chaos.evidence.history import read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE
from rocketbed.chaos.plan.family import shorten
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.run.api import CrashPoint
from rocketbed.chaos.search.runner import Options, run_plan
from tests.support.network import set_up

pytestmark = pytest.mark.process
SHORT = (7.0, 6.0)
IMPOSSIBLE = (MISSING["nameserver.stale"], MISSING["clock.drift"])
POWER_AT_A_MARK = Plan(
    name="power-at-a-mark",
    seed=1,
    shape=Shape(brokers=1, nameservers=1, repl="async"),
    producers=Producers(count=1, rate=50),
    steps=(parse_step("at 1s crash leader mark * powercut for 200ms"),),
    faults_s=4.0,
    recovery_s=5.0,
)


LONE = replace(
    POWER_AT_A_MARK,
    name="crash-point-withdrawn",
    steps=(parse_step("at 100ms crash b1 at mark no.such_mark"),),
    faults_s=2.0,
    recovery_s=3.0,
)


class LateBackend(ProcessBackend):
    """A backend whose node dies of its crash point just when that is withdrawn."""

    async def crash(self, name: str, point: CrashPoint) -> None:
        await super().crash(name, point)
        if point == CrashPoint():
            await self._processes[name].send(signal.SIGKILL)


class LateHost(ProcessHost):
    def backend(self, setup: SetUp) -> ProcessBackend:
        return LateBackend(setup)


@pytest.mark.slow
def test_crash_point_may_strike_while_withdrawn(tmp_path: Path) -> None:
    record = run_in_processes(LONE, tmp_path, net="plain", host=LateHost())
    ends = [event for event in read_history(tmp_path / HISTORY_FILE).events if event.kind == "exit"]
    assert [event.fields["cause"] for event in ends] == ["kill", "stop"]
    assert (record.crashes, record.stalls) == ([], [])


async def test_kill_without_a_crash_point_is_unexplained(tmp_path: Path) -> None:
    (tmp_path / "b1").mkdir()
    machines = {"b1": Machine(tmp_path / "b1", "b1")}
    with set_up(PlainNetwork(Machines(["b1"], ["ns1"])), machines, tmp_path / "run") as setup:
        async with ProcessBackend(setup) as backend:
            for point, reason in ((CrashPoint(mark="no.such_mark"), ""), (None, "(exit code -9)")):
                await backend.start("b1", {})
                if point is not None:
                    await backend.crash("b1", point)
                    await backend.crash("b1", CrashPoint())
                await backend._processes["b1"].send(signal.SIGKILL)
                await backend.settled("b1")
                assert backend.end_reason("b1").endswith(reason)
                assert bool(backend.end_reason("b1")) == bool(reason)


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

    `seconds`: of its fault phase and its recovery phase, shorter than in its quick form.
    """
    plan = load_scenario(name).plan(seed, "process", quick=quick)
    if seconds is not None:
        plan = shorten(plan, faults_s=seconds[0], recovery_s=seconds[1])
    options = Options(backend="process", net=net)  # type: ignore[arg-type]
    outcome = run_plan(plan, options, directory=directory / "run")
    assert outcome.judgement is not None, outcome.error
    findings = [result.findings for result in outcome.judgement.findings if not result.harmless]
    assert (outcome.verdict, findings) == ("pass", [])
    assert outcome.record is not None
    assert all(text.endswith(IMPOSSIBLE) for text in outcome.record.skipped), outcome.record.skipped
    assert outcome.record.steps


@pytest.mark.slow
def test_a_failover_by_hand_over_the_proxy(tmp_path: Path) -> None:
    run("sync-failover", "proxy", tmp_path, seconds=SHORT)


@pytest.mark.slow
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
        "controller-loss",
        "demote-truncate",
        "disk-replace",
        "disk-sick",
        "double-master",
        "failover",
        "half-open",
        "isr-squeeze",
        "promote-async",
        "register-loss",
        "rolling-handover",
        "route-storm",
        "split-brain",
    ],
)
def test_other_scenarios_through_the_packet_switch(name: str, tmp_path: Path) -> None:
    run(name, "switch", tmp_path)


@pytest.mark.slow
def test_power_cut_at_a_point_of_the_nodes_work(tmp_path: Path) -> None:
    options = Options(backend="process", net="plain")
    outcome = run_plan(POWER_AT_A_MARK, options, directory=tmp_path / "run")
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.record is not None
    assert [image.cause for image in outcome.record.images] == ["powercut"]
