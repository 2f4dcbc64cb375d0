"""Consumer offsets that lie beyond their queues (store.md T20)."""

from pathlib import Path

from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.config import StoreConfig
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
