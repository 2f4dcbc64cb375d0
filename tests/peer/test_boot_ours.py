"""The real broker boots a directory that rocketbed wrote."""

import pytest

from rocketbed.inspect import Severity
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import Row, assert_held, by_key, by_place
from tests.support.peer.traffic import query, read, varied, write

TOPICS = ("PeerOne", "Peer-two_%|", "PeerBatch")
SETTINGS = {"stop": {}, "kill": {"messageIndexSafe": "true"}}
"""By how we end. Without this setting RocketMQ deletes the unfinished index file of an unclean stop
and builds anew only what the last segments hold (docs/reference/differences.md, T9)."""


@pytest.mark.ci
@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_the_real_broker_reads_every_message_we_wrote(site: Site, ending: str) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker(settings=SETTINGS[ending])
    await site.start(broker, "rocketbed")
    written = await write(site.nameserver, varied(TOPICS[:2], 800, seed=1))
    await site.wait_mark(broker)
    written += await write(site.nameserver, varied(TOPICS[:2], 800, seed=2))
    written += await write(site.nameserver, varied(TOPICS[2:], 200, seed=3), batch=8)
    ours = by_place(await read(site.nameserver, TOPICS))
    assert_held(ours, written)
    if ending == "stop":
        await site.stop(broker)
        assert_sound(broker.store)
    else:
        await site.kill(broker)
        assert_sound(broker.store, Severity.TAIL)
    assert_filled_several(broker)

    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        assert by_place(await java.read(TOPICS)) == ours
        await assert_found_by_key(java, ours)
        written += await java.send(varied(TOPICS, 100, seed=4))
    await site.stop(broker)
    assert_sound(broker.store)

    await site.start(broker, "rocketbed")
    after = by_place(await read(site.nameserver, TOPICS))
    assert_held(after, written)
    for topic in TOPICS:
        by_keys = by_key(after.values(), topic)
        assert await query(site.nameserver, topic, by_keys) == by_keys


def assert_filled_several(broker: Broker) -> None:
    for kind, least in (("commitlog", 3), ("index", 3), (f"consumequeue/{TOPICS[0]}/0", 2)):
        files = list((broker.store / kind).iterdir())
        assert len(files) >= least, f"the test should fill several files: {files}"


async def assert_found_by_key(java: JavaClient, rows: dict[tuple[str, int, int], Row]) -> None:
    for topic in TOPICS:
        by_keys = by_key(rows.values(), topic)
        assert len(by_keys) > 100
        assert await java.query(topic, by_keys) == by_keys
