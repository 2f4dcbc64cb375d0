"""The index: a row of index files, the last one being filled (store.md 4)."""

import datetime
from collections.abc import Callable

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.files import FilePool
from rocketbed.node.store.indexfile import HEADER, Header, IndexFile
from rocketbed.node.store.log_bodies import log_bodies
from rocketbed.wire.javahash import index_hash, key_state
from rocketbed.world.api import World

INDEX_DIR = "index"
_NAME_DIGITS = 17
"""An index file is named by the local time of its creation, to milliseconds."""


class Index:
    """Puts, queries and expiry over all index files."""

    def __init__(self, world: World, pool: FilePool, config: StoreConfig, staging: str) -> None:
        self._world = world
        self._pool = pool
        self._config = config
        self._bodies = log_bodies(enabled=config.native)
        self._staging = staging
        self.directory = f"{config.root}/{INDEX_DIR}"
        self.files: list[IndexFile] = []
        """Oldest first; only the last one takes entries."""
        self._waiting: list[Entry] = []
        self._keys_done = 0
        """Keys of the first waiting record that are in a file already."""
        self.filled_ms = 0
        """End time of the last file that became full and is durable (RocketMQ's checkpoint)."""

    def load(self) -> None:
        """Open the existing index files; files with other names are reported and left alone."""
        for name in self._world.disk.listdir(self.directory):
            path = f"{self.directory}/{name}"
            is_file = self._world.disk.is_file(path)
            if not (is_file and len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()):
                self._world.log.warning("store.stray", path=path)
                continue
            file = self._file(name)
            file.load()
            self.files.append(file)

    def _file(self, name: str) -> IndexFile:
        config = self._config
        return IndexFile(
            self._pool,
            f"{self.directory}/{name}",
            slots=config.index_slots,
            entries=config.index_entries,
            bodies=self._bodies,
        )

    def put_all(self, entries: list[Entry]) -> None:
        """Take the keys of records; `drain` puts them into files."""
        if self._config.index_enabled:
            self._waiting.extend(entries)

    def drain(self) -> None:
        """Put waiting keys. Raises `OSError` when a new file cannot be created or slots cannot be
        read; further keys wait."""
        waiting, first = self._waiting, 0
        try:
            while first < len(waiting):
                file = self.files[-1] if self.files else None
                if file is None or (file.full and waiting[first].keys):
                    file = self._next_file()
                first, self._keys_done = file.put_entries(waiting, first, self._keys_done)
                if file.failure is not None:
                    failure, file.failure = file.failure, None
                    raise failure
        finally:
            del waiting[:first]
        if self.files:
            self.files[-1].flush_buffer()

    def _next_file(self) -> IndexFile:
        """Create a file; it begins with the end values of the one before (store.md 4.2)."""
        before = self.files[-1] if self.files else None
        file = self._file(self._new_name())
        self._pool.create(file.path, file.size, staging=self._staging, allocate=False)
        if before is not None:
            before.write()
            end = before.header
            file.header = Header(end.end_ms, end.end_ms, end.end_offset, end.end_offset)
        self.files.append(file)
        self._world.mark("store.index_file_made")
        return file

    def _new_name(self) -> str:
        """Return the local time as 17 digits, later than every existing name."""
        clock = self._world.clock
        local_ms = clock.wall_ms() + clock.utc_offset_ms()
        while True:
            seconds, ms = divmod(local_ms, 1000)
            moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
            name = f"{moment:%Y%m%d%H%M%S}{ms:03d}"
            if not self.files or name > self.files[-1].path.rpartition("/")[2]:
                return name
            last = self.files[-1].path.rpartition("/")[2]
            parsed = datetime.datetime.strptime(last[:14], "%Y%m%d%H%M%S")
            local_ms = int(parsed.replace(tzinfo=datetime.UTC).timestamp()) * 1000
            local_ms += int(last[14:]) + 1

    def write(self) -> None:
        """Write everything buffered. Raises `OSError`."""
        for file in self.files:
            file.write()

    async def sync(self) -> None:
        """fsync every file that changed."""
        for file in self.files:
            await file.sync()
            if file is not self.files[-1]:
                file.release()

    def last_filled_ms(self) -> int:
        """Return the store time of the last entry in a full file, for the durable mark: on disk
        once this is synced. Called before the log is flushed, or it may be of an unflushed record
        (T1)."""
        filled = [file.end_ms for file in self.files if file.full]
        self.filled_ms = max([self.filled_ms, *filled])
        return self.filled_ms

    def mark(self) -> tuple[str, Header] | None:
        """Return name and header of the newest file, for the durable mark."""
        if not self.files:
            return None
        return self.files[-1].path.rpartition("/")[2], self.files[-1].header

    def restore(self, mark: tuple[str, Header] | None) -> None:
        """Go back to a durable mark: younger files are removed, the marked one is restored (8.6,
        Index)."""
        keep = mark[0] if mark else ""
        while self.files and self.files[-1].path.rpartition("/")[2] > keep:
            self._pool.remove(self.files.pop().path)
        if mark and self.files and self.files[-1].path.rpartition("/")[2] == keep:
            # A new object: a reader in the middle of the old file's entries notices the change.
            self.files[-1] = self._file(keep)
            self.files[-1].restore(mark[1])

    def mark_all_dirty(self) -> None:
        """Treat every file as never fsynced (a foreign directory)."""
        for file in self.files:
            file.dirty = True

    def has_marked(self, mark: tuple[str, Header] | None) -> bool:
        """True if the file that a mark names exists."""
        return mark is None or any(file.path.endswith("/" + mark[0]) for file in self.files)

    def fits(self) -> bool:
        """True if every file has the length of the configured slots and entries."""
        return all(file.file.size() == file.size for file in self.files)

    def extend(self) -> None:
        """Extend files that a crash left short, and empty, to their length. Raises `OSError`."""
        for file in self.files:
            file.extend()

    def damage(self, mark: tuple[str, Header] | None) -> str:
        """Return what is wrong with the files up to a mark, as far as headers and lengths show."""
        for file in self.files:
            name = file.path.rpartition("/")[2]
            if mark is None or name > mark[0]:
                break
            if file.was_short and (name < mark[0] or mark[1].next_entry > 1):
                return f"{file.path} was cut short"
            if name < mark[0] and not file.full:
                return f"{file.path} is not full, and is not the last"
            if name == mark[0] and file.next_entry < mark[1].next_entry:
                return f"{file.path} has lost entries"
        return ""

    def mark_at(self, offset: int, store_ms_at: Callable[[int], int]) -> tuple[str, Header] | None:
        """Return what `mark` would be if the log ended at `offset`; nothing is changed.

        `store_ms_at` gives the store time of the record at a physical offset. The count of used
        slots is left to `restore`.
        """
        for file in reversed(self.files):
            low, high = 1, file.next_entry
            while low < high:
                middle = (low + high) // 2
                if file.entry(middle)[1] < offset:
                    low = middle + 1
                else:
                    high = middle
            if low > 1:
                end_offset = file.entry(low - 1)[1]
                header = file.header._replace(
                    end_ms=store_ms_at(end_offset), end_offset=end_offset, next_entry=low
                )
                return file.path.rpartition("/")[2], header
        return None

    def query(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records that may have `key`, newest file first (store.md 4.4).

        Each from one file only: a recovery of RocketMQ indexes again what earlier full files hold
        already. Within a file a record occurs as often as it names the key, as upstream.
        """
        key_hash = index_hash(key_state(topic, key))
        offsets: list[int] = []
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                newer = set(offsets)
                older = file.query(key_hash, begin_ms, end_ms, count)
                offsets += [offset for offset in older if offset not in newer]
            if file.begin_ms < begin_ms or len(offsets) >= count:
                break
        return offsets[:count]

    def delete_before(self, log_min: int) -> int:
        """Unlink files whose records are all below `log_min`, never the last; return their
        number."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end_offset < log_min:
            self._pool.remove(self.files.pop(0).path)
            removed += 1
        return removed


def pack_header(header: Header) -> str:
    """Return a header as the durable mark stores it: hex of its 40 bytes."""
    return HEADER.pack(*header).hex()


def unpack_header(text: str) -> Header:
    """Return the header of such a text. Raises `ValueError`."""
    data = bytes.fromhex(text)
    if len(data) != HEADER.size:
        raise ValueError(f"an index header has {HEADER.size} bytes, not {len(data)}")
    return Header(*HEADER.unpack(data))
