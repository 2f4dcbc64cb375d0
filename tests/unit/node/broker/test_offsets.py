"""Consumer offsets that lie beyond their queues (store.md T20)."""

from pathlib import Path
from random import Random

import pytest

from rocketbed.node.broker.offsets import NOT_STORED, Offsets
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.config import StoreConfig
from rocketbed.wire.bodies import ConsumerOffsetTable
from rocketbed.world.real import real_world

ENDS = {("T", 0): 10, ("T", 1): 0, ("U", 0): 7}


def queue_max(topic: str, queue_id: int) -> int:
    return ENDS.get((topic, queue_id), 0)


async def test_offsets_are_lowered_to_their_queues_ends(tmp_path: Path) -> None:
    config = NodeConfig(store=StoreConfig(root=str(tmp_path)))
    offsets = Offsets(real_world("test"), config)
    for group, topic, queue_id, offset in (
        ("g", "T", 0, 11),
        ("g", "T", 1, 3),
        ("h", "T", 0, 10),
        ("h", "U", 0, 2),
        ("h", "gone", 4, 1),
        ("h", "%LMQ%light", 0, 5),
    ):
        offsets.commit(group, topic, queue_id, offset)
    await offsets.save()
    assert offsets.bring_down(queue_max) == 3
    assert offsets.body().offset_table == {
        "T@g": {0: 10, 1: 0},
        "T@h": {0: 10},
        "U@h": {0: 2},
        "gone@h": {4: 0},
        "%LMQ%light@h": {0: 5},
    }
    await offsets.save()
    reloaded = Offsets(real_world("test"), config)
    reloaded.load()
    assert reloaded.body().offset_table == offsets.body().offset_table
    assert reloaded.bring_down(queue_max) == 0


async def test_queue_end_is_read_once_for_all_groups(tmp_path: Path) -> None:
    offsets = Offsets(real_world("test"), NodeConfig(store=StoreConfig(root=str(tmp_path))))
    for group in ("g", "h", "i"):
        offsets.commit(group, "T", 0, 11)
        offsets.commit(group, "U", 0, 7)
    calls = []

    def queue_max_once(topic: str, queue_id: int) -> int:
        calls.append((topic, queue_id))
        return queue_max(topic, queue_id)

    assert offsets.bring_down(queue_max_once) == 3
    assert calls == [("T", 0), ("U", 0)]


async def test_follower_gets_lowered_offsets(tmp_path: Path) -> None:
    """Else it would go by the higher place, once it leads and the queue has grown to that."""
    offsets = Offsets(real_world("test"), NodeConfig(store=StoreConfig(root=str(tmp_path))))
    offsets.commit("g", "T", 0, 11)
    offsets.take_changes()
    offsets.bring_down(queue_max)
    assert offsets.take_changes() == {"T@g": {0: 10}}
    offsets.bring_down(queue_max)
    assert offsets.take_changes() == {}


Table = dict[tuple[str, int], int]


def table_of(offsets: Offsets) -> Table:
    rows = offsets.body().offset_table
    return {(key, queue): offset for key, row in rows.items() for queue, offset in row.items()}


@pytest.mark.parametrize("seed", range(4))
async def test_reports_and_saves_each_change(seed: int, tmp_path: Path) -> None:
    """Changes by commits here are reported; those that another broker reported are not."""
    random, config = Random(seed), NodeConfig(store=StoreConfig(root=str(tmp_path)))
    offsets, table, unreported = Offsets(real_world("test"), config), Table(), Table()
    offsets.load()
    offsets.take_changes()
    for _ in range(80):
        key, queue, draw = (
            random.choice(("A@g", "A@h", "B@g")),
            random.randrange(3),
            random.random(),
        )
        topic, _, group = key.partition("@")
        offset, before = random.randrange(-1, 9), dict(table)
        if draw < 0.3:
            offsets.commit(group, topic, queue, offset)
            table |= {(key, queue): offset} if offset >= 0 else {}
        elif draw < 0.5:
            rows = {number: random.randrange(-1, 9) for number in range(random.randrange(3))}
            offsets.apply({key: rows})
            table |= {(key, number): at for number, at in rows.items()}
            table = before = {place: at for place, at in table.items() if at >= 0}
        elif draw < 0.55:
            replaced = {key: {queue: max(offset, 0)}, "A@g": {0: 1}}
            offsets.replace_all(ConsumerOffsetTable(offset_table=replaced))
            table = before = table_of(offsets)
            assert table == {(k, n): at for k, row in replaced.items() for n, at in row.items()}
        elif draw < 0.65:
            ends = {(name, number): random.randrange(9) for name in "AB" for number in range(3)}
            count = offsets.bring_down(lambda *place, high=ends: high[place])
            table = {(k, n): min(at, ends[k[0], n]) for (k, n), at in table.items()}
            assert count == sum(table[place] != before[place] for place in table)
        elif draw < 0.7:
            offsets.delete_topics({"A"})
            table = {place: at for place, at in table.items() if not place[0].startswith("A@")}
        elif draw < 0.75:
            offsets.delete_group("g")
            table = {place: at for place, at in table.items() if not place[0].endswith("@g")}
        else:
            reported = {
                (k, n): at for k, row in offsets.take_changes().items() for n, at in row.items()
            }
            assert reported == {place: table.get(place, NOT_STORED) for place in unreported}
            unreported.clear()
        changed = [at for at in {**before, **table} if before.get(at) != table.get(at)]
        unreported |= dict.fromkeys(changed, 0)
        assert table_of(offsets) == table
        if random.random() < 0.1:
            await offsets.save()
            loaded = Offsets(real_world("test"), config)
            loaded.load()
            assert table_of(loaded) == table
