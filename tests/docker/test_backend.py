"""The scenarios of the testbed in containers: unchanged, with the verdicts that processes have."""

from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.backends.process.backend import MISSING
from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan.family import shorten
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import Options, Outcome, run_plan
from rocketbed.host.docker.client import Daemon
from tests.support.docker_daemon import nothing_left

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("image")]
SHORT = (9.0, 8.0)
IMPOSSIBLE = (MISSING["nameserver.stale"], MISSING["clock.drift"])
TIMEOUT_S = 300.0


def run(plan: Plan, backend: str, directory: Path, net: str = "auto") -> Outcome:
    options = Options(backend=backend, net=net, timeout_s=TIMEOUT_S)  # type: ignore[arg-type]
    return run_plan(plan, options, directory=directory / backend)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        "power-lone",  # volumes lose power beneath a container
        "failover",  # a controller and its register in a container
        "rolling-handover",  # a node in a container hands over before it ends
        "register-loss",  # files are changed under a container's user
        "sync-failover",  # kills, promotions, links through the switch
        "disk-sick",  # faults by the preloaded library, limits
        "bit-rot",  # a node refuses to start, and exits
        "clock-jump",
    ],
)
def test_a_scenario_passes(name: str, daemon: Daemon, tmp_path: Path) -> None:
    faults_s, recovery_s = SHORT
    plan = load_scenario(name).plan(1, "docker", quick=True)
    outcome = run(shorten(plan, faults_s=faults_s, recovery_s=recovery_s), "docker", tmp_path)
    assert outcome.judgement is not None, outcome.error
    findings = [result.findings for result in outcome.judgement.findings if not result.harmless]
    assert (outcome.verdict, findings) == ("pass", [])
    assert outcome.record is not None
    assert outcome.record.backend == "docker"
    assert all(text.endswith(IMPOSSIBLE) for text in outcome.record.skipped), outcome.record.skipped
    assert outcome.record.steps
    assert nothing_left(daemon)


LOSING = Plan(
    name="losing",
    seed=1,
    shape=Shape(
        brokers=1,
        nameservers=1,
        repl="async",
        flush="async",
        settings={"flushIntervalCommitLog": "60000"},  # none within the run
    ),
    producers=Producers(count=1, rate=200),
    steps=(parse_step("at 3s powercut leader for 300ms"),),
    needs=("disk.powercut",),
    faults_s=5.0,
    recovery_s=4.0,
    expect=Expectation(loss="none"),
)
"""Asynchronous flush, a power cut, and a promise that nothing is lost: it cannot be kept."""


def lose(backend: str, directory: Path) -> Outcome:
    """Wait until something is lost; data that the system wrote back just before is not."""
    for seed in range(1, 9):
        place = directory / str(seed)
        place.mkdir(exist_ok=True)
        outcome = run(replace(LOSING, seed=seed), backend, place)
        if outcome.verdict != "pass":
            break
    return outcome


@pytest.mark.ci
def test_unkept_promise_is_found_in_containers_too(tmp_path: Path) -> None:
    contained, plain = (lose(backend, tmp_path) for backend in ("docker", "process"))
    assert contained.judgement is not None, contained.error
    assert plain.judgement is not None, plain.error
    assert contained.verdict == plain.verdict == "stalled"  # a service level missed
    assert contained.finding_ids == plain.finding_ids == ["nothing-lost"]


PLAIN = Plan(
    name="plain",
    seed=1,
    shape=Shape(brokers=2, nameservers=1, repl="sync"),
    producers=Producers(count=1, rate=50),
    steps=(
        parse_step("at 1s kill leader for 500ms"),
        parse_step("at 3s pause follower:any for 500ms"),
        parse_step("at 4s cpu leader slow 4 for 500ms"),
        parse_step("at 5s stop leader gracefully for 200ms"),
        parse_step("at 6s partition leader -> follower:all for 500ms"),
    ),
    faults_s=7.0,
    recovery_s=5.0,
)


def test_docker_bridge_has_all_but_network_faults(daemon: Daemon, tmp_path: Path) -> None:
    outcome = run(PLAIN, "docker", tmp_path, net="plain")
    assert outcome.judgement is not None, outcome.error
    assert outcome.verdict == "pass", outcome.judgement.findings
    assert outcome.record is not None
    assert [step.split()[2] for step in map(str, outcome.record.steps)] == [
        "kill",
        "pause",
        "cpu",
        "stop",
    ]
    assert len(outcome.record.skipped) == 1
    assert "choose --net switch" in outcome.record.skipped[0]
    assert nothing_left(daemon)
