"""Invalid options, marks, replay files and packages that hide ours: the error is a sentence."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.search.replay import PlanResult, Replay, save_replay
from tests.support.suites import command, environment, run_pytest, run_suite

pytestmark = pytest.mark.slow

PLAIN = "async def test_one(cluster):\n    assert cluster.leader == 'b1'\n"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        (("--rb-backend", "proces"), "unknown backend 'proces'; did you mean 'process'?"),
        (("--rb-seeds", "0"), "--rb-seeds 0: must be an integer, at least 1"),
        (("--rb-seed", "x"), "argument --rb-seed: invalid int value: 'x'"),
        (("--rb-keep", "some"), "argument --rb-keep: invalid choice: 'some' (choose from"),
        (("--rb-budget", "60"), "--rb-budget: '60' needs a unit of time"),
        (("--rb-replay", "none.rbx"), "none.rbx: cannot read the replay file"),
    ],
)
def test_unusable_option_ends_the_run_before_it_begins(
    tmp_path: Path, options: tuple[str, ...], expected_text: str
) -> None:
    ran = run_suite(tmp_path, *options, test_one=PLAIN)
    assert ran.code == pytest.ExitCode.USAGE_ERROR, ran.text
    assert expected_text in ran.text
    assert "Traceback" not in ran.text


def test_unusable_mark_is_an_error_of_its_test(tmp_path: Path) -> None:
    bad = "@pytest.mark.rocketbed(brokrs=3)\nasync def test_bad(cluster):\n    pass\n"
    ran = run_suite(tmp_path, test_one=bad + PLAIN)
    assert ran.counts() == {"error": 1, "passed": 1}, ran.text
    assert "argument of the mark rocketbed 'brokrs'; did you mean 'brokers'?" in ran.text
    assert "Traceback" not in ran.text
    module = (
        "pytestmark = pytest.mark.rocketbed(brokers=0)\ndef test_all(cluster_module):\n    pass\n"
    )
    ran = run_suite(tmp_path, "test_module.py", test_module=module)
    assert ran.counts() == {"error": 1}, ran.text
    assert "ScenarioError" not in ran.text


WRONG = """
async def test_value(cluster):
    producer = await cluster.producer("orders")
    await producer.send(object())

async def test_fault(chaos):
    await chaos.kil("leader")

async def test_target(chaos):
    async with chaos.during(chaos.kill("b9")):
        pass
"""


def test_wrong_call_is_shown_at_its_line(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--no-rb-shrink", test_wrong=WRONG)
    assert ran.counts() == {"failed": 3}, ran.text
    for line in ("await producer.send(object())", 'await chaos.kil("leader")', 'chaos.kill("b9")'):
        assert line in ran.text, ran.text
    assert "unknown fault 'kil'; did you mean 'kill'?" in ran.text
    assert "\ntest_wrong.py:12: ScenarioError\n" in ran.text
    assert "rocketbed/chaos" not in ran.text
    ran = run_pytest(tmp_path, "--no-rb-shrink", "--full-trace", "-k", "value")
    assert "clients.py" in ran.text


def test_missing_capability_skips_with_its_reason(tmp_path: Path) -> None:
    suite = f"@pytest.mark.rb_needs('clock.drift')\n{PLAIN}"
    ran = run_suite(tmp_path, "-rs", "--rb-backend", "sim,process", test_one=suite)
    assert ran.counts() == {"passed": 1, "skipped": 1}, ran.text
    assert "clock.drift is missing on process: a real clock can be moved" in ran.text


def test_missing_fault_fails_and_names_the_mark(tmp_path: Path) -> None:
    suite = "async def test_one(cluster, chaos):\n    await chaos.clock('b1', drift=0.1)\n"
    ran = run_suite(tmp_path, "--rb-backend", "process", test_one=suite)
    assert ran.counts() == {"failed": 1}, ran.text
    assert "(the mark rb_needs('clock.jump') asks for it" in ran.text


def test_a_replay_file_of_something_else_is_refused(tmp_path: Path) -> None:
    plan = load_scenario("sync-failover").plan(1)
    save_replay(Replay(plan=plan, taken=PlanResult()), tmp_path / "scenario.rbx")
    (tmp_path / "other.rbx").write_text(json.dumps({"kind": "rocketbed replay", "format": 9}))
    ran = run_suite(tmp_path, "--rb-replay", "scenario.rbx", test_one=PLAIN)
    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert "rocketbed chaos replay scenario.rbx" in ran.text
    ran = run_pytest(tmp_path, "--rb-replay", "other.rbx")
    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert "written in format 9" in ran.text
    failing = PLAIN.replace("'b1'", "'b2'")
    run_suite(tmp_path, "--no-rb-shrink", test_one=failing)
    file = ".rocketbed/FAIL-test_one-test_one-sim-1.rbx"
    ran = run_suite(tmp_path, "--rb-replay", file, "test_two.py", test_two=PLAIN)
    assert ran.code == pytest.ExitCode.USAGE_ERROR, ran.text
    assert "test_one.py::test_one[sim-1], which is not among the tests" in ran.text


def test_users_packages_may_share_names_with_our_folders(tmp_path: Path) -> None:
    for name in ("node", "chaos", "pipeline", "routing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("WHOSE = 'the user'\n")
    theirs = "import chaos as own, node\nassert own.WHOSE == node.WHOSE == 'the user'\n"
    ran = run_suite(tmp_path, test_one=theirs + PLAIN)
    assert ran.counts() == {"passed": 1}, ran.text


def test_missing_extra_affects_only_tests_with_a_cluster(tmp_path: Path) -> None:
    """After a plain `pip install rocketbed` the plugin is there, its dependencies are not."""
    missing = "import sys\nsys.modules['jinja2'] = None\n"
    module = "def test_module(cluster_module):\n    pass\n"
    plain = "def test_plain():\n    import sys\n    assert 'numpy' not in sys.modules\n"
    suites = {"test_one": PLAIN, "test_module": module, "test_plain": plain}
    ran = run_suite(tmp_path, "test_plain.py", conftest=missing, **suites)
    assert ran.counts() == {"passed": 1}, ran.text
    plain_test = "def test_plain():\n    pass\n"  # what failed to load may have loaded NumPy before
    ran = run_suite(tmp_path, "-p", "no:randomly", test_plain=plain_test)
    assert ran.counts() == {"error": 2, "passed": 1}, ran.text
    assert ran.text.count("tests with a cluster need the testbed (") == 2, ran.text
    assert "pip install 'rocketbed[chaos] @ file:" in ran.text
    assert "Traceback" not in ran.text


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    suite = """
async def test_waits(cluster):
    with open("pids", "w") as file:
        for process in cluster.stage.backend._processes.values():
            print(process.pid(), file=file)
    await trio.sleep_forever()
"""
    run_suite(tmp_path, "--collect-only", test_waits=suite)
    session = subprocess.Popen(
        command("--rb-backend", "process"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = tmp_path / "pids"
    until = time.monotonic() + 60
    while not (pids.exists() and len(pids.read_text().split()) == 4):
        assert time.monotonic() < until
        assert session.poll() is None
        time.sleep(0.02)
    session.send_signal(signal.SIGINT)
    text, _ = session.communicate(timeout=60)
    assert session.returncode == pytest.ExitCode.INTERRUPTED, text
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists()
