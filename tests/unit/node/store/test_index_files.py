"""Files of the message index: answers, syncs that fail, loading, expiry, and their check."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.index import Index
from rocketbed.node.store.index_check import IndexCheck
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.javahash import index_hash, key_state
from rocketbed.world.api import World
from tests.support.sim.small_store import ROOT, Topics, small_config

KEYS = ("a", "b", "c", "d")
SLOTS, PER_FILE = 3, 4
Row = tuple[Entry, str, int]
"""A record, a key of it, and the seconds in its index entry."""


class Pool:
    """The store's file pool, which notes each sync or fails it."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.synced: list[str] = []
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def sync(self, path: str) -> None:
        if path == self.failing:
            raise OSError(5, "failed", path)
        self.synced.append(path)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_beside_its_records(seed: int) -> None:
    assert run_solo(check_index, Random(seed)).outcome == "ended"


async def check_index(world: World, random: Random) -> None:
    store = await MessageStore.open(world, small_config(), Topics())
    config = replace(
        store._parts.config, root=f"{ROOT}/other", index_slots=SLOTS, index_entries=PER_FILE + 1
    )
    pool: Any = Pool(store._parts.pool)
    index, disk = Index(world, pool, config, f"{config.root}/tmp"), world.disk
    disk.makedirs(index.directory)
    assert IndexCheck(index).compare(Entry("T", 0, 0, 0, 9, 0, 0, ("a",), 1))
    entries, files, at_ms = list[Entry](), list[list[Row]](), 5_000
    for number in range(random.randrange(1, 14)):
        at_ms += 1000 * random.randrange(3)
        keys = tuple(random.sample(KEYS, random.randrange(3)))
        entries.append(Entry("T", 0, number, number * 100, 99, 0, at_ms, keys, 1))
        for key in keys:
            add_row(files, entries[-1], key)
        index.put_all(entries[-1:])
        if random.random() < 0.4:
            index.drain()
        if random.random() < 0.3:
            index.write()
    index.drain()
    check_queries(random, index, files)
    assert not any(IndexCheck(index).compare(entry) for entry in entries)
    index.write()
    await check_syncs(index, pool)
    loaded = Index(world, pool, config, f"{config.root}/tmp")
    disk.makedirs(f"{loaded.directory}/{'1' * 17}")
    for name in ("1" * 16, "x" * 17, "\u0663" * 17):
        disk.open(f"{loaded.directory}/{name}", create=True).close()
    loaded.load()
    assert [file.header for file in loaded.files] == [file.header for file in index.files]
    check_queries(random, loaded, files)
    check_marks(loaded, entries, files)
    check_expiry(random, loaded, entries, files)
    store._parts.pool.close()


def add_row(files: list[list[Row]], entry: Entry, key: str) -> None:
    """Put it into the last file, or into a new one; times count from the file's first record."""
    if not files or len(files[-1]) == PER_FILE:
        files.append([])
    base = files[-1][0][0].store_ms if files[-1] else entry.store_ms
    if not files[-1] and len(files) > 1:
        base = files[-2][-1][0].store_ms
    files[-1].append((entry, key, (entry.store_ms - base) // 1000))


def slot(key: str) -> int:
    return index_hash(key_state("T", key)) % SLOTS


def check_queries(random: Random, index: Index, files: list[list[Row]]) -> None:
    """Newest records first, file by file; a file is left at the first older record of the slot."""
    times = [row[0].store_ms + more for rows in files for row in rows for more in (-1, 0, 1000)]
    for _ in range(30):
        key, count = random.choice(KEYS), random.randrange(1, 6)
        begin, end = sorted(random.choice([*times, 0, 99_000]) for _ in range(2))
        expected = list[int]()
        for rows in reversed(files):
            first, last = rows[0][0].store_ms, rows[-1][0].store_ms
            matches = list[int]()
            for entry, name, seconds in reversed(rows) if first <= end and begin <= last else ():
                if slot(name) != slot(key):
                    continue
                at_ms = first + 1000 * seconds
                if name == key and begin <= at_ms <= end:
                    matches.append(entry.physical_offset)
                if len(matches) == count or at_ms < begin:
                    break
            expected += [offset for offset in matches if offset not in expected]
            if len(expected) >= count or first < begin:
                break
        assert index.query("T", key, count, begin, end) == expected[:count]


async def check_syncs(index: Index, pool: Any) -> None:
    """Each file is synced once; after a failure the failed one and those after it."""
    paths = [file.path for file in index.files]
    for number, path in enumerate(paths):
        index.mark_all_dirty()
        pool.synced.clear()
        pool.failing = path
        with pytest.raises(OSError, match="failed"):
            await index.sync()
        pool.failing = ""
        assert pool.synced == paths[:number]
        for _ in range(2):
            await index.sync()
            assert pool.synced == paths


def check_marks(index: Index, entries: list[Entry], files: list[list[Row]]) -> None:
    """A mark is the newest index entry below an offset."""
    for low in range(0, 1500, 50):
        mark = index.mark_at(low, lambda at: entries[at // 100].store_ms)
        below = [[row for row in rows if row[0].physical_offset < low] for rows in files]
        numbers = [number for number, rows in enumerate(below) if rows]
        if not numbers:
            assert mark is None
            continue
        assert mark is not None
        rows = below[numbers[-1]]
        newest, (name, header) = rows[-1][0], mark
        actual = header.end_offset, header.end_ms, header.next_entry
        assert actual == (newest.physical_offset, newest.store_ms, len(rows) + 1)
        assert index.has_marked(mark)
        assert index.files[numbers[-1]].path.endswith(name)
    if files:
        assert not index.has_marked(("x", index.files[0].header))


def check_expiry(
    random: Random, index: Index, entries: list[Entry], files: list[list[Row]]
) -> None:
    """Files with only expired records are deleted, except the last."""
    low = random.randrange(0, 1500, 50)
    expired = sum(rows[-1][0].physical_offset < low for rows in files[:-1])
    assert index.delete_before(low) == expired
    assert len(index.files) == max(len(files), 1) - expired
    check, indexed = IndexCheck(index), {row[:2] for rows in files[expired:] for row in rows}
    for entry in entries:
        present = {(entry, key) in indexed for key in entry.keys}
        if len(present) < 2:
            assert (not check.compare(entry)) == (present != {False})
