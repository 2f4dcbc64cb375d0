"""The topic table beside a model: which topics may be sent to, and which are in the file."""

from random import Random
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.topics import SCHEDULE_TOPIC, Topics
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.wire.bodies import TopicConfig, TopicConfigTable
from rocketbed.world.api import World
from tests.support.broker import SMALL, STORE

NAMES = ("A", "B", "C", "%RETRY%g", SCHEDULE_TOPIC)
READ_ONLY = 4
INTERNAL = (
    SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer",
)  # fmt: skip
Table = dict[str, TopicConfig]


def drawn_row(name: str, random: Random) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=random.randrange(1, 4),
        write_queue_nums=random.randrange(1, 4), order=random.random() < 0.3,
        topic_filter_type=random.choice(("SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG")),
        attributes=random.choice(({}, {}, {"queue.type": "BatchCQ"}, {"queue.type": "SimpleCQ"})),
    )  # fmt: skip


def is_plain(row: TopicConfig, permission: int) -> bool:
    """Return True if a send to the topic needs no more checks."""
    is_internal = row.topic_name.startswith("%RETRY%") or row.topic_name in INTERNAL
    is_closed = row.order and permission == READ_ONLY
    is_special = row.topic_filter_type == "MULTI_TAG"
    is_special = is_special or row.attributes.get("queue.type") == "BatchCQ"
    return not (is_internal or is_closed or is_special)


async def check_topics(world: World, random: Random, permission: int) -> None:
    disk: Any = world.disk
    options = [*SMALL, f"brokerPermission={permission}"]
    config, _ = make_config(settings_from_options(options))
    topics = Topics(world, config)
    topics.load()
    await topics.save()
    table: Table = dict(topics.body().topic_config_table)
    durable, dirty, reported = set(table), False, list[str]()
    sendable = {name for name, row in table.items() if is_plain(row, permission)}
    topics.on_change.append(reported.extend)
    for _ in range(80):
        name, removed = random.sample(NAMES, 2)
        row, draw, changed = drawn_row(name, random), random.random(), list[str]()
        if draw < 0.25:
            changed = [name] * (table.get(name) != row)
            topics.put(row)
            table[name] = row
        elif draw < 0.35:
            changed = [name] * (name in table)
            assert topics.delete(name) == (name in table)
            table.pop(name, None)
        elif draw < 0.45:
            topics.apply({name: row, removed: None})
            changed, table[name] = [name, removed], row
            table.pop(removed, None)
        elif draw < 0.55:
            table = {topic: drawn_row(topic, random) for topic in random.sample(NAMES, 3)}
            topics.replace_all(TopicConfigTable(topic_config_table=table.copy()))
            changed = [*table]
            sendable.clear()
        else:
            fails = random.random() < 0.3
            fault = SimFault(operation="*", path=f"{STORE}/config/*", times=None)
            disk.faults[:] = [fault] * fails
            if fails and dirty:
                with pytest.raises(ConfigFileError):
                    await topics.save()
            else:
                await topics.save()
                durable, dirty = set(table), False
                sendable = {topic for topic, row in table.items() if is_plain(row, permission)}
            disk.faults.clear()
        dirty |= bool(changed)
        sendable -= set(changed)
        durable &= table.keys()
        assert reported == changed
        reported.clear()
        assert topics.sendable == {topic: table[topic].queue_nums for topic in sendable}
        assert [topic for topic in NAMES if topics.is_durable(topic)] == [
            topic for topic in NAMES if topic in durable
        ]
    await topics.save()
    loaded = Topics(world, config)
    loaded.load()
    stored = {
        topic: row for topic, row in loaded.body().topic_config_table.items() if topic in NAMES
    }
    if SCHEDULE_TOPIC not in table:
        del stored[SCHEDULE_TOPIC]  # the broker's own
    assert stored == {topic: row for topic, row in table.items() if topic in NAMES}


@pytest.mark.parametrize("permission", [6, READ_ONLY])
@pytest.mark.parametrize("seed", range(3))
def test_a_topic_may_be_sent_to_once_it_is_in_the_file(seed: int, permission: int) -> None:
    assert run_solo(check_topics, Random(seed), permission).outcome == "ended"
