"""A real RocketMQ in containers: the verdicts that it has as processes, from anybody's image."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketbed.chaos.backends.foreign.image import NAME, image_of
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import Options, Outcome, run_plan
from rocketbed.cli.main import main
from rocketbed.host.docker.client import Daemon
from tests.support.docker_daemon import nothing_left
from tests.support.peer.images import LIKE_THEIRS, NO_ROCKETMQ, NO_SHELL, build
from tests.support.peer.installation import Installation

pytestmark = pytest.mark.slow
EMPTY_TABLE = "tables-readable config/"
"""T11: tables that RocketMQ had just written are empty in the image of a power cut."""
THEIRS = "apache/rocketmq:like-theirs"
ROUGH = Plan(
    name="rough",
    seed=1,
    shape=Shape(brokers=1, nameservers=1, flush="sync", repl="async"),
    producers=Producers(count=2, rate=30),
    steps=(
        parse_step("at 1s kill leader for 500ms"),
        parse_step("at 8s pause leader for 500ms"),
        parse_step("at 9s cpu leader slow 4 for 500ms"),
        parse_step("at 15s powercut leader for 300ms"),
    ),
    needs=("disk.powercut",),
    faults_s=16.0,
    recovery_s=18.0,
    expect=Expectation(loss="none"),
)
"""What was answered is on disk, in the one file of the log that recovery reads whole. A start
may register only after 10 s: so long between kill and power cut, and longer in recovery."""


@pytest.fixture(scope="module")
def maven_image(docker_host: str, base_image: str, installation: Installation) -> str:
    """The image that is made here of Maven's jars; its name."""
    with Daemon.connect(docker_host) as daemon:
        image_of(daemon, installation.jars)
    return f"{NAME}:{installation.jars.version}"


@pytest.fixture(scope="module")
def theirs(docker_host: str, maven_image: str, installation: Installation) -> str:
    """Return the name of an image with the layout of RocketMQ's own."""
    text = LIKE_THEIRS.format(made=maven_image, version=installation.jars.version)
    with Daemon.connect(docker_host) as daemon:
        return build(daemon, THEIRS, text)


@pytest.fixture
def run(daemon: Daemon, tmp_path: Path) -> Callable[[Plan, str], Outcome]:
    def run(plan: Plan, target: str) -> Outcome:
        options = Options(backend="docker", target=target)
        outcome = run_plan(plan, options, directory=tmp_path / "run")
        assert outcome.judgement is not None, outcome.error
        assert nothing_left(daemon)
        return outcome

    return run


@pytest.mark.ci
def test_faults_lose_nothing_that_was_flushed(
    run: Callable[[Plan, str], Outcome], theirs: str
) -> None:
    outcome = run(ROUGH, f"image:{theirs}")
    assert outcome.judgement is not None
    for result in outcome.judgement.findings:
        assert all(EMPTY_TABLE in text for text in result.findings), result
    assert outcome.record is not None
    assert [str(step).split()[2] for step in outcome.record.steps] == [
        "kill",
        "pause",
        "cpu",
        "powercut",
    ]
    assert outcome.record.stopped_cleanly == ["b1"]
    assert outcome.record.facts["software"] == "rocketmq-5.3.3"
    assert outcome.record.facts["target"] == f"image:{theirs}"
    assert outcome.record.facts["net"] == "switch"


def test_power_cut_loses_the_same_in_containers_as_processes(
    run: Callable[[Plan, str], Outcome], maven_image: str, installation: Installation
) -> None:
    """T1, as in `test_foreign`, with the jars in an image that the testbed makes."""
    plan = load_scenario("power-roll").plan(1, "docker", quick=True)
    outcome = run(plan, f"rocketmq:{installation.lib}")
    assert outcome.verdict == "anomaly"
    assert outcome.judgement is not None
    assert outcome.judgement.result("unseen-message").verdict is Verdict.VIOLATED
    assert outcome.judgement.result("lost-write").passed


def test_unusable_image_is_refused_and_leaves_nothing(
    daemon: Daemon,
    base_image: str,
    maven_image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build(daemon, "rocketbed/test:no-shell", NO_SHELL)
    build(daemon, "rocketbed/test:no-rocketmq", NO_ROCKETMQ.format(made=maven_image))
    refusals = {
        base_image: "has no java that its user 10001 can read",
        "rocketbed/test:no-rocketmq": "has no RocketMQ that its user 10001 can read",
        "rocketbed/test:no-shell": "has no shell that runs",
        "127.0.0.1:9/nowhere/rocketmq:5.3.3": "and cannot pull it (",
        "NoName::": "invalid reference format",
    }
    for name, sentence in refusals.items():
        report = tmp_path / "report"
        run = ["chaos", "run", "power-roll", "--backend", "docker", "--report", str(report)]
        assert main([*run, "--target", f"image:{name}"]) == 4
        errors = capsys.readouterr().err
        assert sentence in errors
        assert name in errors
        assert not report.exists()
        assert nothing_left(daemon)
