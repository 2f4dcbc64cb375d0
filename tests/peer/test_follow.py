"""Classic replication between the kinds: a master of one, a slave of the other."""

import pytest

from rocketbed.inspect import Severity
from tests.support.peer.brokers import Kind, Site
from tests.support.peer.directories import assert_logs_equal, assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import assert_acknowledged, assert_held, by_key, by_place
from tests.support.peer.traffic import query, read, varied, write

TOPICS = ("PeerFollow", "PeerMixed")
QUEUES = 4
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("nameserver", "master_kind", "slave_kind"),
    [("rocketmq", "rocketmq", "rocketbed"), ("rocketbed", "rocketbed", "rocketmq")],
)
async def test_slave_follows_through_kill_and_return_of_its_master(
    site: Site, nameserver: Kind, master_kind: Kind, slave_kind: Kind
) -> None:
    await site.start_nameserver(nameserver)
    master, slave = site.broker(settings=SYNC), site.broker(broker_id=1)
    await site.start(master, master_kind)
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(master.address, TOPICS, QUEUES)
        # More than a segment that the slave, which begins with nothing, has to fetch.
        mixed = await java.send(varied(TOPICS[1:], 900, seed=1), wait=False)
        await site.start(slave, slave_kind)
        # RocketMQ's slave would copy the table of topics a minute later.
        await java.create(slave.address, TOPICS, QUEUES)
        await site.wait_caught_up(slave, master)

        acknowledged = await java.load(
            TOPICS[0],
            master,
            threads=3,
            queues=QUEUES,
            kill_after=1000,
            kill=lambda: site.kill_now(master),
        )
        await master.process.wait_ended()
        assert {row["status"] for row in acknowledged} == {"SEND_OK"}
        await site.wait_dispatched(slave)
        await site.wait_gone(master)
        rows = by_place(await read(site.nameserver, TOPICS))
        assert_acknowledged(rows, acknowledged)
        assert_held(rows, mixed)
        by_keys = by_key(rows.values(), TOPICS[0])
        assert await query(site.nameserver, TOPICS[0], by_keys) == by_keys
        assert by_place(await java.read(TOPICS)) == rows

        await site.start(master, master_kind)
        # A slave of RocketMQ's looks for its master every 5 s; a message tells when it is back.
        mixed += await java.send(varied(TOPICS[1:], 1, seed=3), wait=False)
        await site.wait_caught_up(slave, master)
        mixed += await write(site.nameserver, varied(TOPICS[1:], 200, seed=2))
        await site.wait_caught_up(slave, master)
        after = by_place(await java.read(TOPICS))
        assert rows.items() <= after.items()
        assert_held(after, mixed)
    await site.kill(master)
    await site.kill(slave)
    assert_logs_equal(master.store, slave.store, segments=3)
    for broker in (master, slave):
        assert_sound(broker.store, Severity.TAIL)
