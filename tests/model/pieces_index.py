"""Files of an index by themselves: what each question finds, what is brought to disk once more
where the disk failed, what a start takes up, and what the check says of it.
"""

from dataclasses import replace
from random import Random
from typing import Any, Final

from rocketbed.node.store.entry import Entry
from rocketbed.node.store.index import Index
from rocketbed.node.store.index_check import IndexCheck
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.javahash import index_hash, key_state
from rocketbed.world.api import World
from tests.model.store import ROOT

KEYS: Final = ("a", "b", "c", "d")
Row = tuple[Entry, str, int]
"""A record, one of its keys, and the seconds that its entry says."""


class _Pool:
    """Opens files as a store does; a sync of each is noted, or fails."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.synced: list[str] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def sync(self, path: str) -> None:
        if path == self.fails:
            raise OSError(5, "it fails", path)
        self.synced.append(path)


async def ask_index(world: World, random: Random, store: MessageStore) -> None:
    root, disk = f"{ROOT}/pieces{random.getrandbits(32)}", world.disk
    config = replace(store._parts.config, root=root, index_slots=3, index_entries=5)
    pool: Any = _Pool(store._parts.pool)
    index = Index(world, pool, config, f"{root}/tmp")
    disk.makedirs(index.directory)
    told = IndexCheck(index).compare(Entry("T", 0, 0, 0, 9, 0, 0, ("a",), 1))
    assert bool(told), "index: nothing has a key"
    entries, files, at_ms = list[Entry](), list[list[Row]](), 5_000
    for number in range(random.randrange(1, 14)):
        at_ms += 1000 * random.randrange(3)
        keys = tuple(random.sample(KEYS, random.randrange(3)))
        entries.append(Entry("T", 0, number, number * 100, 99, 0, at_ms, keys, 1))
        for key in keys:
            if not files or len(files[-1]) == config.index_entries - 1:
                files.append([])
            last = files[-1][0][0].store_ms if files[-1] else at_ms
            if not files[-1] and len(files) > 1:
                last = files[-2][-1][0].store_ms
            files[-1].append((entries[-1], key, (at_ms - last) // 1000))
        index.put_all(entries[-1:])
        if random.random() < 0.4:
            index.drain()
        if random.random() < 0.3:
            index.write()
    index.drain()
    _found(random, index, files)
    check = IndexCheck(index)
    for entry in entries:
        assert not check.compare(entry), f"index: of {entry}: {check.compare(entry)}"
    index.write()
    await _synced(index, pool)
    other = Index(world, pool, config, f"{root}/tmp")
    disk.makedirs(f"{other.directory}/{'1' * 17}")
    for name in ("1" * 16, "x" * 17, "\u0663" * 17):
        disk.open(f"{other.directory}/{name}", create=True).close()
    other.load()
    assert [one.header for one in other.files] == [one.header for one in index.files], (
        f"index: {[one.path for one in other.files]} are found"
    )
    _found(random, other, files)
    for low in range(0, 1500, 50):
        mark = other.mark_at(low, lambda at: entries[at // 100].store_ms)
        rows = [[row for row in rows if row[0].physical_offset < low] for rows in files]
        some = [number for number, found in enumerate(rows) if found]
        if not some:
            assert mark is None, f"index: {mark} below {low}"
            continue
        assert mark is not None
        newest = rows[some[-1]][-1][0]
        want = newest.physical_offset, newest.store_ms, len(rows[some[-1]]) + 1
        found = mark[1].end_offset, mark[1].end_ms, mark[1].next_entry
        assert found == want and other.has_marked(mark), f"index: {mark} below {low}: {want}"
        assert other.files[some[-1]].path.endswith(mark[0]), f"index: {mark} below {low}"
    assert not other.has_marked(("x", other.files[0].header)) if files else True, "index: of none"
    _expired(random, other, entries, files)
    store._parts.pool.close()


def _found(random: Random, index: Index, files: list[list[Row]]) -> None:
    """What a key has within a time, the newest first, of the newest files."""
    times = [row[0].store_ms + more for rows in files for row in rows for more in (-1, 0, 1000)]
    for _ in range(30):
        key, count = random.choice(KEYS), random.randrange(1, 6)
        begin, end = sorted(random.choice([*times, 0, 99_000]) for _ in range(2))
        slot = index_hash(key_state("T", key)) % 3
        want = list[int]()
        for rows in reversed(files):
            first, last = rows[0][0].store_ms, rows[-1][0].store_ms
            here = list[int]()
            for entry, name, seconds in reversed(rows) if first <= end and begin <= last else ():
                if index_hash(key_state("T", name)) % 3 != slot:
                    continue
                at_ms = first + 1000 * seconds
                if name == key and begin <= at_ms <= end:
                    here.append(entry.physical_offset)
                if len(here) == count or at_ms < begin:
                    break
            want += [one for one in here if one not in want]
            if len(want) >= count or first < begin:
                break
        found = index.query("T", key, count, begin, end)
        assert found == want[:count], f"index: {key} from {begin} to {end}: {found}, not {want}"


async def _synced(index: Index, pool: Any) -> None:
    """Every file once; where one fails, that one and those behind it once more."""
    paths = [one.path for one in index.files]
    for number, path in enumerate(paths):
        index.mark_all_dirty()
        pool.synced.clear()
        pool.fails = path
        try:
            await index.sync()
        except OSError:
            pool.fails = ""
        else:
            raise AssertionError(f"index: {path} is not brought to disk")
        assert pool.synced == paths[:number], f"index: {pool.synced} before {path}"
        await index.sync()
        assert pool.synced == paths, f"index: {pool.synced} are brought to disk"
        await index.sync()
        assert pool.synced == paths, f"index: {pool.synced}, some of them twice"


def _expired(random: Random, index: Index, entries: list[Entry], files: list[list[Row]]) -> None:
    """Files whose records are all gone go, but for the last one."""
    low = random.randrange(0, 1500, 50)
    ends = [rows[-1][0].physical_offset for rows in files[:-1]]
    gone = sum(end < low for end in ends)
    assert index.delete_before(low) == gone, f"index: {gone} are below {low} of {ends}"
    assert len(index.files) == max(len(files), 1) - gone, f"index: {len(index.files)} are left"
    check, kept = IndexCheck(index), {row[:2] for rows in files[gone:] for row in rows}
    for entry in entries:
        is_whole = all((entry, key) in kept for key in entry.keys)
        is_gone = not any((entry, key) in kept for key in entry.keys)
        if is_whole or is_gone:
            told = check.compare(entry)
            assert (not told) == is_whole, f"index: {entry} of {gone} files less: {told!r}"
