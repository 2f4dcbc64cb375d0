"""Tests of users on real processes: plain functions, modules with one cluster, hangs."""

from pathlib import Path

import pytest

from tests.support.suites import run_suite

pytestmark = pytest.mark.slow


@pytest.mark.ci
def test_a_plain_function_has_the_same_without_await(tmp_path: Path) -> None:
    suite = """
from rocketbed.blocking import Message, Producer

@pytest.mark.rocketbed(flush="sync", failover_after="300ms")
def test_all(cluster, chaos):
    producer, consumer = cluster.producer("orders"), cluster.consumer("orders")
    producer.send_all(range(50))
    with chaos.during(chaos.kill("leader")) as names:
        assert names == ["b1"]
        producer.send_all(range(50, 80), retry=True)
    cluster.settled()
    assert cluster.leader != "b1"
    assert chaos.partition(cluster.leader, "others", for_=0.2).now() == [cluster.leader]
    cluster.pause("b1")
    assert cluster.state("b1") == "paused"
    cluster.resume()
    with Producer(nameservers=cluster.nameserver_address) as own:
        cluster.create_topic("own")
        assert own.send(Message("own", b"x")).is_safe
    cluster.settled()
    assert consumer.read_all() == set(range(80))
    chaos.check()

@pytest.mark.rb_backend("process")
def test_fails(cluster):
    place = cluster.nameserver_address
    assert place == 3
"""
    ran = run_suite(tmp_path, test_all=suite)
    assert ran.counts() == {"passed": 1, "failed": 1}, ran.text
    assert "assert place == 3" in ran.text
    ran = run_suite(tmp_path, "-rs", "--rb-backend", "sim", "-k", "all", test_all=suite)
    assert ran.counts()["skipped"] == 1, ran.text
    assert "cannot run in simulation" in ran.text


SELF = """
pytestmark = pytest.mark.rocketbed(failover="auto", seeds={"sim": 3})

async def test_self(cluster, chaos):
    async with cluster.producer("orders") as producer, cluster.consumer("orders") as consumer:
        await producer.send_all(range(50))
        first = cluster.leader
        await chaos.kill(first)
        await producer.send_all(range(50, 100), retry=True)
        await chaos.pause("leader", for_=1.0)
        await producer.send_all(range(100, 150), retry=True)
        await cluster.restart(first)
        await cluster.settled()
        assert cluster.leader != first
        assert await consumer.read_all() == set(range(150))
    chaos.check()
"""


def test_cluster_fails_over_automatically(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--rb-backend", "sim,process", test_self=SELF)
    assert ran.counts() == {"passed": 4}, ran.text


def test_a_module_may_share_one_cluster(tmp_path: Path) -> None:
    suite = """
pytestmark = pytest.mark.rocketbed(brokers=1, min_isr=1)

def test_one(cluster_module):
    cluster_module.producer("orders").send_all([1, 2])

def test_two(cluster_module):
    assert cluster_module.nodes == ["b1"]
    assert cluster_module.consumer("orders").read_all() == {1, 2}
"""
    ran = run_suite(tmp_path, test_module=suite)
    assert ran.counts() == {"passed": 2}, ran.text


def test_a_hang_on_processes_is_ended_in_order(tmp_path: Path) -> None:
    suite = """
import time

pytestmark = [pytest.mark.rocketbed(brokers=1, min_isr=1), pytest.mark.rb_backend("process")]

def note(cluster):
    with open("pids", "a") as file:
        for process in cluster.stage.backend._processes.values():
            print(process.pid(), file=file)

async def test_waits(cluster):
    note(cluster)
    await trio.sleep_forever()

async def test_spins(cluster):
    note(cluster)
    while True:
        time.sleep(0.01)

def test_plain(cluster):
    note(cluster.inner)
    time.sleep(1000)
"""
    for budget in ("8s", "80s"):  # where a start takes longer, no test comes to its hang
        (tmp_path / "pids").write_text("")
        ran = run_suite(tmp_path, "--rb-budget", budget, test_hang=suite)
        if "in test_waits, waiting" in ran.text and "in test_spins, not awaiting" in ran.text:
            break
    assert ran.counts() == {"failed": 3}, ran.text
    assert "test_hang.py:15 in test_waits, waiting in sleep_forever" in ran.text
    assert "in test_spins, not awaiting" in ran.text
    assert "test_hang.py:24 in test_plain, not awaiting" in ran.text
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 6
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
