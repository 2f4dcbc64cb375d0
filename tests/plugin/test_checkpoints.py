"""Every public coroutine of the plugin for trio is a checkpoint."""

from pathlib import Path

import pytest

from tests.support.suites import run_suite

pytestmark = pytest.mark.slow

COROUTINES = """
import inspect
import trio.testing
from rocketbed.chaos.pytest_plugin.clients import TopicConsumer, TopicProducer
from rocketbed.chaos.pytest_plugin.cluster import Cluster
from rocketbed.chaos.pytest_plugin.faults import Chaos

pytestmark = pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync")
CLASSES = (TopicProducer, TopicConsumer, Cluster, Chaos)

async def test_coroutines(cluster, chaos):
    p, c = await cluster.producer("orders"), await cluster.consumer("orders")
    calls = {
        "TopicProducer.send": lambda: p.send(1),
        "TopicProducer.send_all": lambda: p.send_all([]),
        "TopicConsumer.read": lambda: c.read(0),
        "TopicConsumer.commit": c.commit,
        "TopicConsumer.read_all": c.read_all,
        "Cluster.create_topic": lambda: cluster.create_topic("orders"),
        "Cluster.settled": cluster.settled,
        "Cluster.resume": cluster.resume,
        "Cluster.promote": cluster.promote,
        "Cluster.kill": lambda: cluster.kill("follower:any"),
        "Cluster.restart": cluster.restart,
        "Cluster.pause": lambda: cluster.pause("follower:any"),
        "Cluster.recover": cluster.recover,
        "Cluster.stop": lambda: cluster.stop("follower:any"),
        "Chaos.recover": chaos.recover,
        "Chaos.fault_phase": lambda: chaos.fault_phase(0.1),
    }
    public = {
        f"{kind.__name__}.{name}"
        for kind in CLASSES
        for name, member in vars(kind).items()
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }
    assert sorted(public) == sorted(calls)
    for name, call in calls.items():
        try:
            with trio.testing.assert_checkpoints():
                await call()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
"""


@pytest.mark.ci
def test_every_public_coroutine_is_a_checkpoint(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, test_coroutines=COROUTINES)
    assert ran.counts() == {"passed": 1}, ran.text
