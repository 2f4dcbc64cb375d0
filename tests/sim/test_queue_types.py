"""A topic of BatchCQ whose messages come to a slave before the topic does."""

from pathlib import Path

import pytest

from rocketbed.chaos.sim.disk_image import DiskImage
from rocketbed.client.admin import Admin
from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.parts import AllTopics
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS
from tests.support.sim.promotion import Group
from tests.support.sim.store_session import pull, put, session, settings, settle

COUNT = 24


def begin(group: Group) -> None:
    """b2 has messages of a topic that its copy of the table lacks."""
    group.start("b1", "b2", metadata_sync_ms=60_000)
    group.simulation.run(2)

    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=2, attributes="+queue.type=BatchCQ")

    group.run(main)
    group.send(COUNT)
    group.run_until_equal("b2")
    group.simulation.run(2)


def are_batch(store: MessageStore) -> set[bool]:
    """Of which type the queues of T are."""
    queues = store._parts.queues.all()
    return {isinstance(one, BatchConsumeQueue) for one in queues if one.topic == "T"}


@pytest.mark.parametrize("how", ["", "kill", "power"])
def test_a_slave_makes_them_again_once_it_knows(how: str, tmp_path: Path) -> None:
    with Group(1, sync=True, sync_flush=True) as group:
        begin(group)
        assert are_batch(group.nodes["b1"].store) == {True}
        assert group.events("store.queue_type_learned", "b2")
        assert are_batch(group.nodes["b2"].store) == {True}
        if how:
            group.end("b2", power="random" if how == "power" else "")
            group.start("b2")
            group.simulation.run(2)
        group.send(3)
        group.run_until_equal("b2")
        group.simulation.run(1)
        group.restart("b2")
        group.simulation.run(2)
        assert are_batch(group.nodes["b2"].store) == {True}
        group.check_directory("b2", tmp_path)


class Copied(AllTopics):
    """A table that has come to know that T is a topic of BatchCQ."""

    knows = False

    def is_batch_queue(self, topic: str) -> bool:
        return self.knows and topic == "T"


@pytest.fixture(scope="module")
def image() -> DiskImage:
    """T has ordinary queues, and so has U."""

    async def work(store: MessageStore) -> None:
        for number in range(10):
            put(store, "T", number % 2, body=b"t-%d" % number)
            put(store, "U", body=b"u-%d" % number)
        await settle(store)

    return session(work, config=settings(is_slave=True)).image


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_at_any_moment(kind: str, image: DiskImage) -> None:
    config = settings(is_slave=True)

    async def learn(store: MessageStore) -> None:
        topics.knows = True
        await store.removal.match_types()
        put(store, "T", body=b"more")
        await settle(store)

    async def look(store: MessageStore) -> tuple[int, int, set[bool]]:
        await settle(store)
        found = [one for queue in (0, 1) for one in pull(store, "T", queue)]
        return len(found), len(pull(store, "U")), are_batch(store)

    topics = Copied()
    whole = session(learn, config=config, image=image, topics=topics)
    assert session(look, config=config, image=whole.image, topics=topics).value == (11, 10, {True})
    for event in range(1, whole.events + 1, 2):
        topics = Copied()
        crashed = session(
            learn, config=config, image=image, topics=topics, crash_at=event, kind=kind
        )
        topics.knows = True  # its table came to disk before: the queues are built as it says
        boots = 1 if kind == "kill" else 2
        again = session(look, config=config, image=crashed.image, topics=topics, boots=boots).value
        assert again[0] in (10, 11), event
        assert again[1:] == (10, {True}), event
