"""The scrub lets others run: where each record is of another queue, each opens a file."""

import pytest

from rocketbed.node.store.entry import Entry
from rocketbed.node.store.scrub import PIECE, Scrubber
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import put, session, settings, settle

CONFIG = settings(scrub_rate=1 << 30)
COUNT = 3 * PIECE + 1


async def fill(store: MessageStore) -> None:
    for number in range(COUNT):
        put(store, queue_id=number)
    await settle(store)
    await store.close()


async def scrub(store: MessageStore) -> None:
    await store.scrubber.finished.wait()
    assert store.scrubber.damage == []


def test_records_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    image = session(fill, config=CONFIG).image
    compared: list[int] = []
    compare = Scrubber._compare

    def count(self: Scrubber, entries: list[Entry]) -> None:
        compared.append(len(entries))
        compare(self, entries)

    monkeypatch.setattr(Scrubber, "_compare", count)
    assert session(scrub, config=CONFIG, image=image).outcome == "ended"
    assert sum(compared) == COUNT
    assert max(compared) <= PIECE
