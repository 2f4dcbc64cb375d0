"""A directory of RocketMQ whose index files have other sizes than the settings say: a start does
not look for entries where none can stand, and builds the index anew."""

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import ROOT, edited, put, session, settings, settle

KEYS = 40


async def fill(store: MessageStore) -> None:
    for number in range(KEYS):
        put(store, keys=(f"k{number}",))
    await settle(store)
    await store.close()


def forget_us(disk: SimDisk) -> None:
    for name in ("rocketbed.ckpt", "rocketbed.flushed"):
        disk.remove_name(f"{ROOT}/{name}")


@pytest.mark.parametrize("slots", [1, 11, 1000])
def test_a_start_builds_the_index_anew(slots: int) -> None:
    async def look(store: MessageStore) -> list[int]:
        return [
            len((await store.query("T", f"k{number}", 8, 0, 1 << 50)).records)
            for number in range(KEYS)
        ]

    theirs = settings(index_slots=10, index_entries=KEYS + 1)
    ours = settings(index_slots=slots, index_entries=KEYS + 1)
    image = edited(session(fill, config=theirs).image, forget_us)
    assert session(look, config=ours, image=image).value == [1] * KEYS
