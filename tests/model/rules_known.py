"""Tables of topics and of positions by themselves: what one's own changes, another broker's log and
its whole table make of them, what is in the file once it is saved, and which topics may be sent to
without more questions.
"""

from random import Random
from types import SimpleNamespace
from typing import Any, Final

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.offsets import NOT_STORED, Offsets
from rocketbed.node.broker.topics import Topics
from rocketbed.wire.bodies import ConsumerOffsetTable, TopicConfig, TopicConfigTable
from rocketbed.world.api import World

STEPS: Final = 80
NAMES: Final = ("A", "B", "C", "%RETRY%g", "SCHEDULE_TOPIC_XXXX")
PLAIN: Final = NAMES[:3]
KEYS: Final = ("A@g", "A@h", "B@g")
NO_SENDS: Final = 4
"""A broker's permission that lets nobody send."""


async def ask_known(world: World, random: Random) -> None:
    for number in range(3):
        await _topics(world, random, f"/topics-{number}")
        await _positions(world, random, f"/positions-{number}")


def _config(folder: str, permission: int = 6) -> Any:
    return SimpleNamespace(
        config_dir=folder, is_slave=False, replica=None, cluster_name="c", broker_name="b",
        auto_create_topic=True, default_topic_queues=4, trace_topic=False,
        broker_permission=permission,
    )  # fmt: skip


# --- topics


async def _topics(world: World, random: Random, folder: str) -> None:
    """A topic may be sent to once it stands in the file as it is now."""
    disk: Any = world.disk
    permission = random.choice((6, NO_SENDS))
    config, heard = _config(folder, permission), list[str]()
    topics = Topics(world, config)
    topics.load()
    await topics.save()
    table = dict(topics.body().topic_config_table)
    durable, dirty = set(table), False
    sendable = {name for name, row in table.items() if _is_plain(row, permission)}
    topics.on_change.append(heard.extend)
    for _ in range(STEPS):
        name, other = random.sample(NAMES, 2)
        row, draw, changed = _row(name, random), random.random(), list[str]()
        if draw < 0.25:
            changed = [name] * (table.get(name) != row)
            topics.put(row)
            table[name] = row
        elif draw < 0.35:
            changed = [name] * (name in table)
            assert topics.delete(name) == (name in table), f"topics: {name} was deleted"
            table.pop(name, None)
        elif draw < 0.45:
            topics.apply({name: row, other: None})
            changed, table[name] = [name, other], row
            table.pop(other, None)
        elif draw < 0.55:
            table = {one: _row(one, random) for one in random.sample(NAMES, 3)}
            topics.replace_all(TopicConfigTable(topic_config_table=table.copy()))
            changed = [*table]
            sendable.clear()
            durable &= table.keys()
        else:
            fails = random.random() < 0.3
            disk.faults[:] = [SimFault(operation="*", path=f"{folder}/*", times=None)] * fails
            try:
                await topics.save()
                assert not fails or not dirty, "topics: a disk that fails takes them"
                durable, dirty = set(table), False
                sendable = {one for one, row in table.items() if _is_plain(row, permission)}
            except ConfigFileError:
                assert fails and dirty, "topics: a disk that takes them refuses"
            disk.faults.clear()
        dirty |= bool(changed)
        sendable -= set(changed)
        durable &= table.keys()
        assert heard == changed, f"topics: {heard} have changed, not {changed}"
        heard.clear()
        want = {one: table[one].queue_nums for one in sorted(sendable)}
        told = dict(sorted(topics.sendable.items()))
        assert told == want, f"topics: {told} may be sent to, not {want}"
        kept = [one for one in NAMES if topics.is_durable(one)]
        assert kept == [one for one in NAMES if one in durable], f"topics: {kept} are in the file"
    await topics.save()
    again = Topics(world, config)
    again.load()
    found = {one: row for one, row in again.body().topic_config_table.items() if one in NAMES}
    want_rows = {one: row for one, row in table.items() if one in NAMES}
    if "SCHEDULE_TOPIC_XXXX" not in table:  # the broker's own
        del found["SCHEDULE_TOPIC_XXXX"]
    assert found == want_rows, f"topics: {found} are in the file, not {want_rows}"


def _row(name: str, random: Random) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=random.randrange(1, 4),
        write_queue_nums=random.randrange(1, 4), order=random.random() < 0.3,
        topic_filter_type=random.choice(("SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG")),
        attributes=random.choice(({}, {}, {"queue.type": "BatchCQ"}, {"queue.type": "SimpleCQ"})),
    )  # fmt: skip


def _is_plain(row: TopicConfig, permission: int) -> bool:
    is_others = row.topic_name.startswith("%RETRY%") or row.topic_name in (
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer",
    )  # fmt: skip
    is_closed = row.order and permission == NO_SENDS
    is_odd = row.topic_filter_type == "MULTI_TAG" or row.attributes.get("queue.type") == "BatchCQ"
    return not is_others and not is_closed and not is_odd


# --- positions


async def _positions(world: World, random: Random, folder: str) -> None:
    """Whatever changes them, they are in the file once it is saved; what is told of them since the
    last time is just what has changed here."""
    config = _config(folder)
    offsets = Offsets(world, config)
    offsets.load()
    table, ends = dict[tuple[str, int], int](), {}
    told = dict[tuple[str, int], None]()
    offsets.take_changes()
    for _ in range(STEPS):
        key, queue = random.choice(KEYS), random.randrange(3)
        topic, _, group = key.partition("@")
        at, draw = random.randrange(-1, 9), random.random()
        before = dict(table)
        if draw < 0.3:
            offsets.commit(group, topic, queue, at)
            table |= {(key, queue): at} if at >= 0 else {}
        elif draw < 0.5:
            rows = {number: random.randrange(-1, 9) for number in range(random.randrange(3))}
            offsets.apply({key: rows})
            table |= {(key, number): offset for number, offset in rows.items()}
            table = before = {place: offset for place, offset in table.items() if offset >= 0}
        elif draw < 0.55:
            one = {key: {queue: max(at, 0)}, KEYS[0]: {0: 1}}
            offsets.replace_all(ConsumerOffsetTable(offset_table=one))
            table = before = {(k, number): o for k, row in one.items() for number, o in row.items()}
        elif draw < 0.65:
            ends = {(one, number): random.randrange(9) for one in "AB" for number in range(3)}
            count = offsets.bring_down(lambda *place, high=ends: high[place])
            table = {(k, n): min(o, ends[k[0], n]) for (k, n), o in table.items()}
            lower = sum(table[place] != before[place] for place in table)
            assert count == lower, f"positions: {count} were brought down, of {lower}"
        elif draw < 0.7:
            offsets.delete_topics({"A"})
            table = {place: o for place, o in table.items() if not place[0].startswith("A@")}
        elif draw < 0.75:
            offsets.delete_group("g")
            table = {place: o for place, o in table.items() if not place[0].endswith("@g")}
        else:
            found = offsets.take_changes()
            rows_told = {(k, number): o for k, row in found.items() for number, o in row.items()}
            rows_due = {place: table.get(place, NOT_STORED) for place in told}
            assert rows_told == rows_due, f"positions: {rows_told} are told, not {rows_due}"
            told.clear()
        changed = [p for p in {**before, **table} if before.get(p) != table.get(p)]
        told |= dict.fromkeys(changed)
        assert _rows(offsets) == table, f"positions: {_rows(offsets)}, not {table}"
        if random.random() < 0.4:
            await offsets.save()
            again = Offsets(world, config)
            again.load()
            assert _rows(again) == table, f"positions: {_rows(again)} is saved, not {table}"


def _rows(offsets: Offsets) -> dict[tuple[str, int], int]:
    found = offsets.body().offset_table
    return {(key, queue): offset for key, row in found.items() for queue, offset in row.items()}
