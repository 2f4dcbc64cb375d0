"""`chaos.check()`: passes where nothing is wrong, and finds what is."""

import re
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
    from rocketbed.chaos.demo.bug import plant

    plant()
'''


@pytest.mark.ci
def test_a_kill_takes_nothing_and_nothing_is_found(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, test_loss=LOSS.format(flush="async", fault='kill("leader")'))
    assert ran.counts() == {"passed": 1}, ran.text


def test_a_check_of_nothing_does_not_pass(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, test_none="async def test_none(cluster, chaos):\n    chaos.check()\n")
    assert ran.counts() == {"failed": 1}, ran.text
    assert "UNKNOWN" in ran.text
    assert "No send was recorded" in ran.text
    assert "did not run" in ran.text


REAL = """
from rocketbed import Message

pytestmark = pytest.mark.rocketbed(brokers=3, repl="sync", flush="sync")

async def test_real(REST, cluster, chaos):
    sent = []
    async with cluster.real_producer(timeout_s=20) as producer:
        async with chaos.during(chaos.kill("leader")):
            for number in range(20):
                sent.append(await producer.send(Message("own", b"the same")))
        batch = [Message("own", b"%d" % number) for number in range(5)]
        sent.append(await producer.send_batch(batch))
        await producer.send_oneway(Message("own", b"the same"))
        sent += [await producer.send(Message("own", b"late", delay_level=n)) for n in (1, 18)]
    await cluster.settled()
    reader = await cluster.real_consumer("readers")
    await reader.subscribe("own", start="first")
    admin = await cluster.admin()
    assert all(outcome.is_safe for outcome in sent)
    assert "own" in await admin.topics()
    chaos.check()
"""


def test_sends_of_a_real_producer_are_judged(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--rb-seeds", "3", test_real=REAL.replace("REST, ", ""))
    assert ran.counts() == {"passed": 3}, ran.text
    lost = """
import pytest

@pytest.fixture
async def bug(cluster):
    \"\"\"A master that forgets a message of these after it was acknowledged.\"\"\"
    from rocketbed.client.producer import Producer
    real = Producer.send_batch

    async def send_batch(self, messages, **options):
        return await real(self, messages[:-1], **options)

    Producer.send_batch = send_batch
"""
    ran = run_suite(tmp_path, "-q", conftest=lost, test_real=REAL.replace("REST", "bug"))
    assert ran.counts() == {"failed": 1}, ran.text
    assert "FINDING lost-write" in ran.text


def test_others_may_write_to_a_real_producers_topic(tmp_path: Path) -> None:
    suite = """
from rocketbed import Message, Producer

async def test_shared(cluster, chaos):
    async with cluster.real_producer() as ours:
        async with Producer(cluster.world, nameservers=cluster.nameserver_address) as theirs:
            for one in (ours, theirs):
                assert (await one.send(Message("own", b"x"))).is_safe
    chaos.check()
"""
    ran = run_suite(tmp_path, test_shared=suite)
    assert ran.counts() == {"passed": 1}, ran.text
    both = suite.replace("cluster.real_producer()", "cluster.producer('own')")
    both = both.replace("for one in (ours, theirs):", "for one in (theirs,):")
    ran = run_suite(tmp_path, "-q", test_shared=both)
    assert "FINDING unknown-value" in ran.text


def test_waiting_for_what_cannot_come_says_why(tmp_path: Path) -> None:
    suite = """
pytestmark = pytest.mark.rocketbed(failover=False)

async def test_waits(cluster):
    producer = await cluster.producer("orders")
    await producer.send_all(range(3))
    await cluster.kill("leader")
    await producer.send_all(range(100), retry=True, timeout_s=TIME)
"""
    ran = run_suite(tmp_path, "--no-rb-shrink", test_waits=suite.replace("TIME", "30"))
    assert ran.counts() == {"failed": 1}, ran.text
    assert "0 of 100 values were acknowledged; " in ran.text
    assert "b1, the master, is down and nobody promotes another" in ran.text
    assert re.search(r"seed 1 on sim, 3\d\.\d s simulated", ran.text), ran.text
    # Over the budget the reason is told too.
    options = ("--rb-backend", "process", "--rb-budget", "20s")
    ran = run_suite(tmp_path, *options, test_waits=suite.replace("TIME", "1000"))
    assert ran.counts() == {"failed": 1}, ran.text
    assert "waiting in send_all; 0 is not acknowledged: Refused (no broker accepts" in ran.text


def test_a_broken_promise_is_found_and_shrunk(tmp_path: Path) -> None:
    suite = LOSS.format(flush="sync", fault='powercut("leader", "strict")')
    suite = suite.replace('powercut("leader", "strict")', 'powercut("leader", strict=True)')
    good = run_suite(tmp_path, "-q", test_loss=suite)
    assert good.counts() == {"passed": 1}, good.text
    suite = suite.replace("test_loss(cluster", "test_loss(bug, cluster")
    bad = run_suite(tmp_path, "-q", conftest=PLANTED, test_loss=suite)
    assert bad.counts() == {"failed": 1}, bad.text
    assert ": ANOMALY  test_loss, seed 1, sim" in bad.text
    assert "FINDING lost-write" in bad.text
    assert "failed:  checks lost-write" in bad.text
    assert "steps:   at" in bad.text
    assert (tmp_path / ".rocketbed" / "test_loss-test_loss-sim-1" / "index.html").exists()


def test_named_checks_only(tmp_path: Path) -> None:
    suite = LOSS.format(flush="async", fault='kill("leader")')
    suite = suite.replace("chaos.check()", 'chaos.check("lost-write", "duplicate")')
    ran = run_suite(tmp_path, test_loss=suite)
    assert ran.counts() == {"passed": 1}, ran.text


def test_unexpected_end_of_a_node_fails_the_test(tmp_path: Path) -> None:
    suite = """
async def test_crash(cluster):
    stage = cluster.stage
    await stage.backend.kill("b2")
    await trio.sleep(2)
"""
    ran = run_suite(tmp_path, test_crash=suite)
    assert ran.counts() == {"failed": 1}, ran.text
    assert "b2 ended by itself" in ran.text
