"""`chaos.check()`: passes where nothing is wrong, and finds what is."""

from pathlib import Path

import pytest

from tests.support.suites import run_suite

pytestmark = pytest.mark.slow

LOSS = """
pytestmark = pytest.mark.rocketbed(brokers=1, min_isr=1, repl="async", flush={flush!r})

async def test_loss(cluster, chaos):
    producer = await cluster.producer("orders")
    await cluster.settled()
    await producer.send_all(range(200))
    await chaos.{fault}
    await cluster.restart()
    await cluster.settled()
    chaos.check()
"""
PLANTED = '''
import pytest

@pytest.fixture
async def bug():
    """In the process of the run only: an acknowledgement no longer waits for the disk."""
    from rocketbed.chaos.mutants.catalogue import mutants

    next(one for one in mutants() if one.id == "M1").plant()
'''


def test_a_kill_takes_nothing_and_nothing_is_found(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, test_loss=LOSS.format(flush="async", fault='kill("leader")'))
    assert ran.counts() == {"passed": 1}, ran.text


def test_a_check_of_nothing_does_not_pass(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, test_none="async def test_none(cluster, chaos):\n    chaos.check()\n")
    assert ran.counts() == {"failed": 1}, ran.text
    assert "UNKNOWN" in ran.text
    assert "did not run" in ran.text


def test_a_broken_promise_is_found_and_shrunk(tmp_path: Path) -> None:
    suite = LOSS.format(flush="sync", fault='powercut("leader", "strict")')
    suite = suite.replace('powercut("leader", "strict")', 'powercut("leader", strict=True)')
    good = run_suite(tmp_path, "-q", test_loss=suite)
    assert good.counts() == {"passed": 1}, good.text
    suite = suite.replace("test_loss(cluster", "test_loss(bug, cluster")
    bad = run_suite(tmp_path, "-q", conftest=PLANTED, test_loss=suite)
    assert bad.counts() == {"failed": 1}, bad.text
    assert ": ANOMALY  test_loss, seed 1, sim" in bad.text
    assert "FINDING A1 lost write" in bad.text
    assert "failed:  checks A1" in bad.text
    assert "steps:   at" in bad.text
    assert (tmp_path / ".rocketbed" / "test_loss-test_loss-sim-1" / "index.html").exists()


def test_named_checks_only(tmp_path: Path) -> None:
    suite = LOSS.format(flush="async", fault='kill("leader")')
    suite = suite.replace("chaos.check()", 'chaos.check("A1", "A5")')
    ran = run_suite(tmp_path, test_loss=suite)
    assert ran.counts() == {"passed": 1}, ran.text


def test_a_node_that_ends_by_itself_fails_the_test(tmp_path: Path) -> None:
    suite = """
async def test_crash(cluster):
    stage = cluster.stage
    await stage.backend.kill("b2")
    await trio.sleep(2)
"""
    ran = run_suite(tmp_path, test_crash=suite)
    assert ran.counts() == {"failed": 1}, ran.text
    assert "b2 ended by itself" in ran.text
