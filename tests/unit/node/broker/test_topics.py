"""The topic table: built-in topics, what recovery concludes from it (T14), a slave copy."""

import pytest

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.topics import TIMER_TOPIC, Topics, topic_name_problem
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.wire.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketbed.wire.command import RequestCode
from rocketbed.wire.encoding.json_dialect import loads
from rocketbed.wire.frame import FrameReader
from rocketbed.world.api import World
from tests.support.broker import SMALL, STORE
from tests.support.wire_sessions import recorded_frames

SLAVE = ("brokerRole=SLAVE", "brokerId=1")


def topics_of(world: World, *options: str) -> Topics:
    config, _ = make_config(settings_from_options([*SMALL, *options]))
    topics = Topics(world, config)
    topics.load()
    return topics


async def make_one(world: World, *options: str) -> None:
    topics = topics_of(world, *options)
    topics.put(TopicConfig(topic_name="Own"))
    await topics.save()


def seen_by_a_start(image: DiskImage, *options: str) -> tuple[bool | None, bool | None]:
    """Return what a start concludes of a topic in the table, and of one that is not in it."""

    async def look(world: World) -> tuple[bool | None, bool | None]:
        topics = topics_of(world, *options)
        return topics.exists("Own"), topics.exists("Gone")

    result = run_solo(look, image=image).value
    assert isinstance(result, tuple)
    return result


def test_T14_only_a_cleanly_loaded_table_proves_a_deletion() -> None:
    image = run_solo(make_one).image
    assert seen_by_a_start(image) == (True, False)

    async def tear(world: World) -> None:
        file = world.disk.open(f"{STORE}/config/topics.json")
        file.truncate(100)
        await file.sync()

    assert seen_by_a_start(run_solo(tear, image=image).image)[1] is None
    assert seen_by_a_start(DiskImage()) == (None, None)


def test_a_save_looks_at_the_topics_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    refresh = Topics._refresh

    def count(self: Topics, name: str) -> None:
        looked.append(name)
        refresh(self, name)

    async def make_more(world: World) -> None:
        topics = topics_of(world)
        for name in ("One", "Two"):
            topics.put(TopicConfig(topic_name=name))
        await topics.save()
        looked.clear()
        topics.put(TopicConfig(topic_name="Three"))
        topics.put(TopicConfig(topic_name="Two", write_queue_nums=3))
        await topics.save()
        assert topics.sendable.keys() >= {"One", "Two", "Three"}
        assert all(topics.is_durable(name) for name in ("One", "Two", "Three"))

    monkeypatch.setattr(Topics, "_refresh", count)
    assert run_solo(make_more).outcome == "ended"
    assert {"Two", "Three"} <= {*looked}
    assert "One" not in looked


def test_slaves_table_proves_no_deletion_even_as_master() -> None:
    image = run_solo(make_one, *SLAVE).image
    assert seen_by_a_start(image, *SLAVE) == (True, None)
    assert seen_by_a_start(image) == (True, None)

    async def master_saves(world: World) -> None:
        await topics_of(world).save()

    assert seen_by_a_start(run_solo(master_saves, image=image).image) == (True, False)


def test_the_file_has_rocketmqs_shape() -> None:
    async def main(world: World) -> bytes:
        await make_one(world)
        file = world.disk.open(f"{STORE}/config/topics.json")
        return file.read_at(0, file.size())

    value = loads(run_solo(main).value)
    assert sorted(value) == ["dataVersion", "topicConfigTable"]
    assert value["topicConfigTable"]["Own"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 16,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Own",
        "topicSysFlag": 0,
        "writeQueueNums": 16,
    }


def test_built_in_topics_equal_a_real_brokers() -> None:
    registration = next(
        command
        for frame in recorded_frames("session-json")
        for command in FrameReader().feed(frame.data)
        if command.code == RequestCode.REGISTER_BROKER and frame.is_from_client
    )
    theirs = RegisterBrokerBody.decode(registration.body).topic_config_serialize_wrapper

    async def main(world: World) -> dict[str, TopicConfig]:
        return topics_of(world).body().topic_config_table

    ours = run_solo(main).value
    assert ours.pop(TIMER_TOPIC).read_queue_nums == 1  # that broker ran without timers
    assert ours == theirs.topic_config_table


def test_a_masters_table_replaces_a_slaves() -> None:
    async def main(world: World) -> list[str]:
        topics = topics_of(world, *SLAVE)
        changes: list[list[str]] = []
        topics.on_change.append(changes.append)
        topics.replace_all(TopicConfigTable(topic_config_table={"M": TopicConfig(topic_name="M")}))
        assert changes == [["M"]]
        await topics.save()
        reloaded = topics_of(world, *SLAVE)
        assert reloaded.get("M") is not None
        return topics.names()

    assert run_solo(main).value == ["M"]


def test_names() -> None:
    assert topic_name_problem("%RETRY%a|B_9-") is None
    assert topic_name_problem("%DLQ%" + "x" * 250) is None
    for name in ("", " ", "a b", "a.b", "\u4e2d", "x" * 128, "%DLQ%" + "x" * 251):
        assert topic_name_problem(name)
