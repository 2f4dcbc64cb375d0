"""Bugs in bringing a directory up again."""

from typing import Any

from rocketbed.node.store.config import parse_delay_levels
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.locks import lock_store
from rocketbed.node.store.recovery import Recovery
from rocketbed.node.store.scan import RecordScanner
from tests.mutation.planted.mutant import mutant, planted, swap

_OPEN = "rocketbed.node.store.store:MessageStore.open"


@mutant(
    "M9",
    "undispatched tail not re-dispatched",
    "rocketbed.node.store.recovery:Recovery._dispatch",
    bug="after a crash the first record behind the mark gets no queue entry (467, 1434, T2)",
    edit="recovery dispatches from one record late",
    caught_by=(
        "queue-entries-complete",
        "queue-entry-places",
        "unseen-message",
        "group-skip",
        "dense-queue-offsets",
    ),
    family="abort-file",
)
def _dispatch_one_late(original: Any, self: Any, entries: list[Any]) -> None:
    if not self.report.records:
        self.report.records = 1
        entries = entries[1:]
    if entries:
        original(self, entries)


@mutant(
    "M10",
    "last index file dropped",
    "rocketbed.node.store.index:Index.restore",
    bug="recovery throws the newest index file away and indexes only the tail again (3868, 8007)",
    edit="going back to the mark removes the marked index file",
    caught_by=("index-complete", "query-mismatch"),
    family="abort-file",
)
def _last_index_file_dropped(original: Any, self: Any, mark: Any) -> None:
    original(self, mark)
    if self.files:
        self._pool.remove(self.files.pop().path)


@mutant(
    "M17",
    "body CRC not checked at recovery",
    "rocketbed.node.store.recovery:Recovery.__init__",
    bug="a record whose body never came to the disk is taken for good",
    edit="recovery scans without checksums",
    caught_by=(
        "record-checksums",
        "unknown-value",
        "lost-write",
        "equal-logs",
        "store-images",
        "recovered-end",
    ),
    family="power-lone",
)
def _checksum_not_checked(original: Any, self: Any, parts: Any, *args: Any) -> None:
    original(self, parts, *args)
    delays_ms = parse_delay_levels(parts.config.delay_levels)
    self._scanner = RecordScanner(check_crc=False, delays_ms=delays_ms)


@mutant(
    "M18",
    "JSON table overwritten in place",
    "rocketbed.node.broker.config_file:ConfigFile.replace",
    bug="a crash within the write leaves neither the old table nor the new one (T11)",
    edit="a table is truncated and written again, without a temporary file",
    caught_by=("tables-readable", "tables-replaced-whole", "store-images"),
    family="abort-file",
)
async def _table_in_place(_original: Any, self: Any, data: bytes) -> None:
    disk = self._world.disk
    disk.makedirs(self._directory)
    file = disk.open(self.path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        self._world.mark(f"{self._mark}.written")
        await file.sync()
    finally:
        file.close()
    await disk.sync_dir(self._directory)


@mutant(
    "M21",
    "empty segment is fatal",
    "rocketbed.node.store.segments:SegmentRow.load",
    bug="a segment that a power cut left short or empty keeps the node from starting (T3, 10108)",
    edit="a file of another length than its row's is an error, whatever made it so",
    caught_by=("no-unexpected-exit", "set-up", "leader-serves"),
    family="power-lone",
)
def _empty_segment_fatal(
    original: Any, self: Any, *, key: str, tolerant: bool = False
) -> list[str]:
    strays: list[str] = original(self, key=key, tolerant=tolerant)
    for start in self.suspects:
        raise BadStoreDirectory(f"{self.path(start)} is no whole segment")
    return strays


@planted(
    "M23",
    "lock taken after recovery",
    bug="a second process on the directory recovers it under the first one's feet (T13)",
    edit="the lock is asked for once recovery is done",
    caught_by=("one-store-owner",),
    family="abort-file",
    targets=(_OPEN,),
)
def _lock_after_recovery() -> None:
    async def open_store(
        cls: Any, world: Any, config: Any, topics: Any = None, confirmed: Any = None
    ) -> Any:
        store = cls(world, config, topics, confirmed)
        parts = store._parts
        try:
            for directory in (config.root, config.log_dir):
                parts.pool.make_dir(directory)
            recovery = Recovery(parts, store._flusher, store._dispatcher, store._checkpointer)
            store.recovery = await recovery.run()
            store._locks = lock_store(world, config)
        except BaseException:
            store._release()
            raise
        world.log.info("store.recovered", end=store.recovery.end)
        return store

    swap(_OPEN, classmethod(open_store))
