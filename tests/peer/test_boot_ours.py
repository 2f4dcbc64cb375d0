"""The real broker boots a directory that rocketbed wrote."""

import pytest

from tests.peer.brokers import Site
from tests.peer.java_client import JavaClient
from tests.peer.rows import by_key, by_place
from tests.peer.traffic import assert_held, read, varied, write

TOPICS = ("PeerOne", "Peer-two_%|", "PeerBatch")


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_the_real_broker_reads_every_message_we_wrote(site: Site, ending: str) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    written = await write(site.nameserver, varied(TOPICS[:2], 1600, seed=1))
    written += await write(site.nameserver, varied(TOPICS[2:], 200, seed=2), batch=8)
    ours = by_place(await read(site.nameserver, TOPICS))
    assert_held(ours, written)
    await (site.stop(broker) if ending == "stop" else site.kill(broker))
    for kind, least in (("commitlog", 3), ("index", 3), ("consumequeue/PeerOne/0", 2)):
        files = list((broker.store / kind).iterdir())
        assert len(files) >= least, f"the test should fill several files: {files}"

    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        assert by_place(await java.read(TOPICS)) == ours
        for topic in TOPICS:
            wanted = by_key(ours.values(), topic)
            rare = {key: ids for key, ids in wanted.items() if len(ids) <= 64}
            assert await java.query(topic, rare) == rare
