"""rocketbed boots what a real broker left after SIGKILL under load, and gives it back."""

import pytest

from rocketbed.inspect import Severity
from tests.support.peer.brokers import Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import assert_acknowledged, assert_held, by_key, by_place
from tests.support.peer.traffic import query, read, varied, write

LOAD, MIXED = "PeerLoad", "PeerMixed"
QUEUES = 8
MESSAGES = 4000


@pytest.mark.ci
async def test_nothing_acknowledged_is_lost_when_rocketbed_takes_over(site: Site) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(broker.address, (LOAD, MIXED), QUEUES)
        mixed = await java.send(varied([MIXED], 300, seed=1))
        await java.send_batch(varied([MIXED], 20, seed=2))
        acknowledged = await java.load(
            LOAD,
            broker,
            threads=6,
            queues=QUEUES,
            kill_after=MESSAGES,
            kill=lambda: site.kill_now(broker),
        )
        assert len(acknowledged) >= MESSAGES
        await broker.process.wait_ended()
        assert (broker.store / "abort").exists()
        assert_sound(broker.store, Severity.TAIL)

        await site.start(broker, "rocketbed")
        rows = by_place(await read(site.nameserver, (LOAD, MIXED)))
        assert_acknowledged(rows, acknowledged)
        assert_held(rows, mixed)
        by_keys = by_key(rows.values(), LOAD)
        assert await query(site.nameserver, LOAD, by_keys) == by_keys

        mixed += await write(site.nameserver, varied([MIXED], 300, seed=3))
        after = by_place(await read(site.nameserver, (LOAD, MIXED)))
        assert rows.items() <= after.items()
        assert_held(after, mixed)
        await site.stop(broker)
        assert_sound(broker.store)

        await site.start(broker, "rocketmq")
        assert by_place(await java.read((LOAD, MIXED))) == after
        assert await java.query(LOAD, by_keys) == by_keys
