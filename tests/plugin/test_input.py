"""What cannot be is said in a sentence: options, marks, replay files, packages that hide ours."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.plugin.suites import command, environment, run_pytest, run_suite

pytestmark = pytest.mark.slow

PLAIN = "async def test_one(cluster):\n    assert cluster.leader == 'b1'\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rb-backend", "proces"), "unknown backend 'proces'; did you mean 'process'?"),
        (("--rb-seeds", "0"), "--rb-seeds 0: a test needs one seed at least"),
        (("--rb-seed", "x"), "--rb-seed x: it is a whole number"),
        (("--rb-keep", "some"), "--rb-keep some: it is one of failed, all, none"),
        (("--rb-budget", "60"), "--rb-budget: '60' needs a unit of time"),
        (("--rb-replay", "none.rbx"), "none.rbx: no replay file can be read there"),
    ],
)
def test_an_option_that_cannot_be_used_ends_the_run_before_it_begins(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    ran = run_suite(tmp_path, *options, test_one=PLAIN)
    assert ran.code == pytest.ExitCode.USAGE_ERROR, ran.text
    assert said in ran.text
    assert "Traceback" not in ran.text


def test_a_mark_that_cannot_be_used_is_an_error_of_the_collection(tmp_path: Path) -> None:
    suite = f"@pytest.mark.rocketbed(brokrs=3)\n{PLAIN}"
    ran = run_suite(tmp_path, test_one=suite)
    assert ran.code == pytest.ExitCode.INTERRUPTED, ran.text
    assert "argument of the mark rocketbed 'brokrs'; did you mean 'brokers'?" in ran.text
    assert "Traceback" not in ran.text


def test_a_capability_that_is_missing_skips_with_its_reason(tmp_path: Path) -> None:
    suite = f"@pytest.mark.rb_needs('clock.drift')\n{PLAIN}"
    ran = run_suite(tmp_path, "-rs", "--rb-backend", "sim,process", test_one=suite)
    assert ran.counts() == {"passed": 1, "skipped": 1}, ran.text
    assert "clock.drift is missing on process: a real clock can be moved" in ran.text


def test_a_fault_that_is_missing_fails_and_says_which_mark_to_set(tmp_path: Path) -> None:
    suite = "async def test_one(cluster, chaos):\n    await chaos.clock('b1', drift=0.1)\n"
    ran = run_suite(tmp_path, "--rb-backend", "process", test_one=suite)
    assert ran.counts() == {"failed": 1}, ran.text
    assert "(the mark rb_needs('clock.jump') asks for it" in ran.text


def test_a_replay_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scenario.rbx").write_text(json.dumps({"kind": "rocketbed replay", "format": 1}))
    (tmp_path / "other.rbx").write_text(json.dumps({"kind": "rocketbed test replay", "format": 9}))
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


@pytest.mark.parametrize("name", ["node", "chaos"])
def test_a_package_that_hides_one_of_ours_is_refused_by_its_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    plain = f"def test_plain():\n    import {name}\n    assert not {name}.__doc__\n"
    ran = run_suite(tmp_path, test_one=PLAIN, test_plain=plain)
    assert ran.counts() == {"error": 1, "passed": 1}, ran.text
    assert ran.text.count(f"{tmp_path / name} hides rocketbed's own package {name!r}") == 1
    assert "Traceback" not in ran.text
    ran = run_pytest(tmp_path, "--rb-seeds", "2")
    assert ran.code == pytest.ExitCode.USAGE_ERROR, ran.text


def test_without_the_extra_only_tests_with_a_cluster_are_refused(tmp_path: Path) -> None:
    """As after a plain `pip install rocketbed`: the plugin is there, and what it needs is not."""
    missing = "import sys\nsys.modules['jinja2'] = None\n"
    module = "def test_module(cluster_module):\n    pass\n"
    plain = "def test_plain():\n    import sys\n    assert 'numpy' not in sys.modules\n"
    suites = {"test_one": PLAIN, "test_module": module, "test_plain": plain}
    ran = run_suite(tmp_path, "test_plain.py", conftest=missing, **suites)
    assert ran.counts() == {"passed": 1}, ran.text
    ran = run_pytest(tmp_path, "-p", "no:randomly")
    assert ran.counts() == {"error": 2, "passed": 1}, ran.text
    assert ran.text.count("tests with a cluster need more than the client (") == 2, ran.text
    assert "pip install 'rocketbed[chaos]'" in ran.text
    assert "Traceback" not in ran.text


def test_a_package_that_would_be_hidden_by_ours_is_refused_too(tmp_path: Path) -> None:
    late = f"import sys\nsys.path.insert(0, {str(tmp_path / 'late')!r})\n"
    (tmp_path / "late" / "routing").mkdir(parents=True)
    (tmp_path / "late" / "routing" / "__init__.py").write_text("")
    ran = run_suite(tmp_path, test_a=PLAIN, test_b=late + PLAIN)
    assert ran.code != 0
    assert "hides rocketbed's own package 'routing'" in ran.text, ran.text


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
