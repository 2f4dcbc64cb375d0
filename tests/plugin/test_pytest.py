"""Features of pytest in tests with a cluster: they work as usual, or say why not."""

import re
from pathlib import Path

import pytest

from tests.support.suites import run_pytest, run_suite

pytestmark = pytest.mark.slow


@pytest.mark.ci
def test_unnamed_async_fixtures_and_methods_are_fixtures(tmp_path: Path) -> None:
    suite = """
seen = []

@pytest.fixture(autouse=True)
async def always(cluster):
    seen.append(cluster.leader)
    yield
    print("always given back")

@pytest.fixture
async def marked(cluster):
    seen.append("marked")

class TestOrders:
    def setup_method(self):
        self.topic = "orders"

    @pytest.fixture
    async def producer(self, cluster):
        return await cluster.producer(self.topic)

    @pytest.mark.usefixtures("marked")
    @pytest.mark.parametrize("count", [2, 3])
    async def test_sends(self, cluster, producer, count):
        assert producer.topic == self.topic and seen == ["b1", "marked"]
        assert len(await producer.send_all(range(count))) == count
        assert count == 2
"""
    ran = run_suite(tmp_path, test_methods=suite)
    assert ran.counts() == {"passed": 1, "failed": 1}, ran.text
    assert "assert 3 == 2" in ran.text
    assert ran.text.count("always given back") == 1


def test_output_and_logs_of_the_body_are_shown_once(tmp_path: Path) -> None:
    suite = """
import logging

async def test_says(cluster, capsys):
    print("read by the body")
    assert capsys.readouterr().out == "read by the body\\n"
    print("printed")
    logging.getLogger("mine").warning("logged")
    pytest.fail("now")
"""
    for capture in ("fd", "sys", "no"):
        ran = run_suite(tmp_path, f"--capture={capture}", "--rb-shrink", test_says=suite)
        assert ran.counts() == {"failed": 1}, ran.text
        assert "shrunk from 0 to 0 steps in 1 runs" in ran.text
        assert len(re.findall(r"\bprinted$", ran.text, re.MULTILINE)) == 1, ran.text
        assert len(re.findall("^WARNING .* logged$", ran.text, re.MULTILINE)) == 1, ran.text


def test_tests_of_the_same_name_have_separate_files(tmp_path: Path) -> None:
    suite = "async def test_one(cluster):\n    assert cluster.leader == 'b2'\n"
    ran = run_suite(tmp_path, "--no-rb-shrink", "a", "b", a__test_a=suite, b__test_b=suite)
    assert ran.counts() == {"failed": 2}, ran.text
    lines = [line for line in ran.text.splitlines() if line.startswith("replay: pytest ")]
    assert len(set(lines)) == 2
    for line in lines:
        replayed = run_pytest(tmp_path, *line.removeprefix("replay: pytest ").split())
        assert "the replay is identical to the last event" in replayed.text, replayed.text


def test_outcomes_stay_what_they_are_under_the_debugger(tmp_path: Path) -> None:
    suite = """
async def test_skip(cluster):
    pytest.skip("not today")

async def test_xfail(cluster):
    pytest.xfail("known")

async def test_passes(cluster):
    pass
"""
    ran = run_suite(tmp_path, "--pdb", test_outcomes=suite)
    assert ran.counts() == {"passed": 1, "skipped": 1, "xfailed": 1}, ran.text


def test_a_body_may_end_the_session(tmp_path: Path) -> None:
    suite = """
async def test_exit(cluster):
    pytest.exit("enough", returncode=5)

async def test_late(cluster):
    pass
"""
    ran = run_suite(tmp_path, test_exit=suite)
    assert ran.code == 5, ran.text
    assert "Exit: enough" in ran.text
    assert "passed" not in ran.text


def test_subtests_are_refused_as_they_would_be_lost(tmp_path: Path) -> None:
    suite = """
@pytest.fixture
def subtests():
    return None

async def test_parts(cluster, subtests):
    pass
"""
    ran = run_suite(tmp_path, test_parts=suite)
    assert ran.counts() == {"error": 1}, ran.text
    assert "subtests report to pytest's own process" in ran.text
