"""A slave of ours beside a RocketMQ master that lost its end (replication.md 7.13).

It followed that master, so what it has may be all that is left: it is cut only where an operator
says so.
"""

import re
import shutil

import pytest
import trio

from rocketbed.inspect import Severity
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.directories import assert_logs_equal, assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.traffic import varied

TOPIC = "PeerCut"
QUEUES = 2
LOOK_S = 0.05


async def offset_to_name(slave: Broker) -> str:
    """The offset that the slave's refusal names."""
    log = trio.Path(slave.process.log_path)
    while True:
        if matches := re.findall(r"set rbDiverged=(\d+) on this slave", await log.read_text()):
            return str(matches[-1])
        await trio.sleep(LOOK_S)


@pytest.mark.ci
@pytest.mark.parametrize("goes_on", [True, False])
async def test_slave_is_cut_for_a_truncated_master(site: Site, goes_on: bool) -> None:
    """The master's directory is set back to an older copy; then it goes on, or is only shorter."""
    await site.start_nameserver("rocketmq")
    master = site.broker()
    slave = site.broker(broker_id=1, settings={"rbDiverged": "cut"})
    await site.start(master, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(master.address, [TOPIC], QUEUES)
        await java.send(varied([TOPIC], 900, seed=1), wait=False)
        await site.stop(master)
        copy = site.directory / "copy"
        shutil.copytree(master.store, copy)
        await site.start(master, "rocketmq")
        await site.start(slave, "rocketbed")
        await site.wait_caught_up(slave, master)
        await java.send(varied([TOPIC], 900, seed=2), wait=False)
        await site.wait_caught_up(slave, master)
        await site.stop(slave)
        await site.kill(master)
        shutil.rmtree(master.store)
        shutil.copytree(copy, master.store)
        await site.start(master, "rocketmq")
        if goes_on:
            await java.send(varied([TOPIC], 1200, seed=3), wait=False)
        await site.start(slave, "rocketbed")
        slave.settings["rbDiverged"] = await offset_to_name(slave)
        await site.stop(slave)
        await site.start(slave, "rocketbed")
        await site.wait_caught_up(slave, master)
        await java.send(varied([TOPIC], 10, seed=4), wait=False)
        await site.wait_caught_up(slave, master)
    await site.kill(master)
    await site.kill(slave)
    assert_logs_equal(master.store, slave.store, segments=1)
    assert_sound(slave.store, Severity.TAIL)
    (cut_file,) = (slave.store / "rocketbed.cut").iterdir()
    assert cut_file.stat().st_size > 0
