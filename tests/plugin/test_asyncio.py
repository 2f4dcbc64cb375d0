"""Tests of users on asyncio, marked for pytest-asyncio or anyio: the cluster is theirs too."""

from pathlib import Path

import pytest

from tests.support.suites import run_suite

pytestmark = pytest.mark.slow

SERVICE = """
import asyncio
import pytest_asyncio
from rocketbed.aio import Message, Producer

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync", failover_after="300ms"),
]

@pytest_asyncio.fixture
async def service(cluster):
    async with Producer(nameservers=cluster.nameserver_address) as producer:
        yield producer
    print("the service was stopped")

async def test_service(cluster, chaos, service):
    p, c = await cluster.producer("orders"), await cluster.consumer("orders")
    await p.send_all(range(20))
    async with chaos.during(chaos.kill("leader")) as names:
        assert names == ["b1"]
        await asyncio.gather(p.send_all(range(20, 40), retry=True), asyncio.sleep(0))
    await cluster.settled()
    async with cluster.real_producer() as real:
        assert (await real.send(Message("own", b"x"))).is_safe
    assert (await service.send(Message("own", b"y"))).is_safe
    await chaos.partition(cluster.leader, "others", for_=0.2)
    assert await c.read_all() == set(range(40))
    chaos.check()
    assert cluster.leader != "b1", names

async def test_cancelled(cluster):
    p = await cluster.producer("orders")
    await cluster.kill("all")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(p.send_all(range(5), retry=True), 0.5)
    assert not cluster.stage.script.waits
    await cluster.restart()
    assert not p.topic
"""


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_a_test_marked_for_asyncio_runs_there(tmp_path: Path, mode: str) -> None:
    ran = run_suite(tmp_path, "-o", f"asyncio_mode={mode}", test_service=SERVICE)
    assert ran.counts() == {"passed": 1, "failed": 1}, ran.text
    assert "AssertionError: assert not 'orders'" in ran.text
    assert "the service was stopped" not in ran.text  # of the test that passed


def test_hang_on_asyncio_ends_with_its_place(tmp_path: Path) -> None:
    suite = """
import asyncio

pytestmark = [pytest.mark.asyncio, pytest.mark.rocketbed(brokers=1, min_isr=1)]

async def deep():
    await asyncio.Event().wait()

async def test_waits(cluster):
    await deep()

async def test_child_waits(cluster):
    await asyncio.gather(deep(), deep())

async def test_spins(cluster):
    while True:
        pass
"""
    for budget in ("6s", "60s"):  # where a start takes longer, no test comes to its hang
        ran = run_suite(tmp_path, "--rb-budget", budget, test_hang=suite)
        if ran.text.count("waiting in wait") == 3 and "not awaiting" in ran.text:
            break
    assert ran.counts() == {"failed": 3}, ran.text
    assert "test_hang.py:9 in deep, waiting in wait" in ran.text
    assert "in test_spins, not awaiting" in ran.text


def test_simulation_skips_with_the_reason(tmp_path: Path) -> None:
    suite = "@pytest.mark.asyncio\nasync def test_one(cluster):\n    pass\n"
    ran = run_suite(tmp_path, "-rs", "--rb-backend", "sim", test_one=suite)
    assert ran.counts() == {"skipped": 1}, ran.text
    assert "a test on asyncio cannot run in simulation" in ran.text


def test_a_test_marked_for_anyio_runs_on_both(tmp_path: Path) -> None:
    suite = """
import anyio

pytestmark = [pytest.mark.anyio, pytest.mark.rocketbed(brokers=1, min_isr=1)]

@pytest.fixture
async def producer(cluster):
    made = await cluster.producer("orders")
    yield made
    await made.send(5)

async def test_both(cluster, chaos, producer, anyio_backend_name):
    await anyio.sleep(0.01)
    await producer.send_all(range(5))
    consumer = await cluster.consumer("orders")
    assert await consumer.read_all() == set(range(5))
    chaos.check()
"""
    ran = run_suite(tmp_path, "-v", test_both=suite)
    assert ran.counts() == {"passed": 2}, ran.text
    assert "[process-1-asyncio] PASSED" in ran.text
    assert "[process-1-trio] PASSED" in ran.text
    ran = run_suite(tmp_path, "--rb-backend", "sim", test_both=suite)
    assert ran.counts() == {"passed": 1, "skipped": 1}, ran.text
