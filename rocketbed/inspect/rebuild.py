"""Rebuild consume queues and index files from the log, as a broker would have written them.

Both are derived from the log, so a directory whose queues or index are wrong can be repaired
without a broker. The result goes to another directory, or in place under the store's lock: it is
then written beside the old files, flushed, and moved into their place at the end.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rocketbed.inspect.commitlog import Hole, LogEnd
from rocketbed.inspect.directory import StoreDirectory, open_directory
from rocketbed.inspect.dispatch import PLAIN, Dispatcher, Target, indexes_tags, tag_key
from rocketbed.inspect.record import Scanned
from rocketbed.inspect.slots import PlacedBatches, PlacedQueue
from rocketbed.inspect.writers import BatchQueueWriter, IndexWriter, QueueWriter

PARTS = ("consumequeue", "batchconsumequeue", "index")
_PROGRESS_BYTES = 16 << 20
_PENDING = "rebuild.new"
_REPLACED = "rebuild.old"


class RebuildRefused(Exception):
    """The rebuild was refused and nothing was changed; the text gives the reason and what to do."""


@dataclass(slots=True)
class RebuildReport:
    """Counts of what was written, and the parts of the log that could not be used."""

    records: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    log_end: int = 0
    holes: list[str] = field(default_factory=list)
    """Damaged ranges of the log; their messages are in no queue."""
    refused: list[str] = field(default_factory=list)
    """Records whose queue offset is impossible: they are in the index only."""
    begun_anew: dict[str, int] = field(default_factory=dict)
    """Queues whose offsets start again at 0, each with the log offset at which they do. Nothing
    shows that the topic was deleted there, so the earlier messages keep their slots."""
    corrected: list[str] = field(default_factory=list)
    """Records that claim another queue offset than the one they have."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Topics that were deleted (no queue, not in the topic table), each with its number of
    records."""

    def as_row(self) -> dict[str, object]:
        return {
            "records": self.records,
            "queues": self.queues,
            "units": self.units,
            "indexFiles": self.index_files,
            "indexEntries": self.index_entries,
            "logEnd": self.log_end,
            "holes": self.holes,
            "refused": self.refused,
            "begunAnew": self.begun_anew,
            "corrected": self.corrected,
            "leftOut": self.left_out,
        }


def rebuild(
    directory: StoreDirectory,
    out: str,
    progress: Callable[[int, int], None] | None = None,
    *,
    with_tags: bool | None = None,
) -> RebuildReport:
    """Write `consumequeue`, `batchconsumequeue` and `index` of a store into the directory `out`.

    `with_tags`: index tags too, as RocketMQ 5.5.0 does; None does as the present index does.
    `progress(done, total)` is called with bytes of the log. Raises `RebuildRefused` when `out` has
    one of the three already, or the layout of the index is neither derivable nor given.
    """
    for part in PARTS:
        if os.path.exists(os.path.join(out, part)):
            raise RebuildRefused(f"{os.path.join(out, part)} exists: give an empty directory")
    layout = directory.index_layout
    if layout is None:
        raise RebuildRefused(
            "the layout of the index cannot be read off its files: give --set maxHashSlotNum=N"
            " and maxIndexNum=N, or --config broker.conf"
        )
    report = RebuildReport()
    index = IndexWriter(os.path.join(out, "index"), layout)
    queues = _Queues(directory, out, report)
    dispatcher = Dispatcher(directory)
    if with_tags is None:
        with_tags = indexes_tags(directory)
    total = sum(segment.size for segment in directory.log.segments)
    reported = first = directory.log.min_offset
    os.makedirs(out, exist_ok=True)
    for item in directory.log.scan():
        if type(item) is Scanned:
            report.records += 1
            dispatch = dispatcher.dispatch(item)
            for target in dispatch.targets:
                queues.put(target, item)
            key_hash = dispatch.topic.hash.key_hash
            if dispatch.deleted:
                name = dispatch.topic.name
                report.left_out[name] = report.left_out.get(name, 0) + 1
                continue
            for key in dispatch.keys:
                index.put(key_hash(key), item.offset, item.store_ms)
            if with_tags and dispatch.tags:
                index.put(key_hash(tag_key(dispatch.tags)), item.offset, item.store_ms)
            if progress is not None and item.offset - reported > _PROGRESS_BYTES:
                reported = item.offset
                progress(reported - first, total)
        elif isinstance(item, Hole):
            report.holes.append(f"{item.offset} to {item.end}: {item.fault.reason}")
        elif isinstance(item, LogEnd):
            report.log_end = item.offset
    queues.close()
    index.close()
    report.index_files = index.files
    report.index_entries = index.total
    return report


def rebuild_in_place(
    directory: StoreDirectory,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Replace queues and index of a stopped store, holding its lock.

    The old files are removed once the new ones have their names. A crash before that leaves the old
    files, or `rebuild.old` and `rebuild.new`, from which the next call starts afresh. Raises
    `RebuildRefused` when a broker holds the lock, or when the log is damaged and `force` is not
    set.
    """
    pending, replaced = directory.path(_PENDING), directory.path(_REPLACED)
    with _store_lock(directory):
        _restore_interrupted(directory, replaced)
        shutil.rmtree(pending, ignore_errors=True)
        # Open the directory again: the store may have changed before the lock was acquired.
        fresh = open_directory(directory.root, directory.settings)
        try:
            report = rebuild(fresh, pending, progress)
        finally:
            fresh.close()
        if report.holes and not force:
            shutil.rmtree(pending)
            raise RebuildRefused(
                f"the log is damaged at {report.holes[0]}: heal it from a replica first, or"
                " rebuild around the hole with --force"
            )
        os.sync()
        os.mkdir(replaced)
        for part in PARTS:
            if os.path.exists(directory.path(part)):
                os.rename(directory.path(part), os.path.join(replaced, part))
            if os.path.exists(os.path.join(pending, part)):
                os.rename(os.path.join(pending, part), directory.path(part))
        os.sync()
        shutil.rmtree(replaced)
        shutil.rmtree(pending)
    return report


def _restore_interrupted(directory: StoreDirectory, replaced: str) -> None:
    """Move back the parts that an interrupted rebuild had moved aside and not replaced."""
    if not os.path.isdir(replaced):
        return
    for part in PARTS:
        old = os.path.join(replaced, part)
        if os.path.exists(old) and not os.path.exists(directory.path(part)):
            os.rename(old, directory.path(part))
    shutil.rmtree(replaced)


@contextmanager
def _store_lock(directory: StoreDirectory) -> Iterator[None]:
    """Hold the broker's own lock: POSIX, exclusive, byte 0 of `lock` (store.md 1.4)."""
    descriptor = os.open(directory.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise RebuildRefused(
                f"{directory.root} is in use: another process holds its lock. Stop the broker, or"
                " rebuild into another directory with --out"
            ) from None
        yield
    finally:
        os.close(descriptor)


class _Queues:
    """Writers of all queues, each created at the queue's first record."""

    def __init__(self, directory: StoreDirectory, out: str, report: RebuildReport) -> None:
        self._sizes = directory.sizes
        self._out = out
        self._report = report
        self._plain: dict[tuple[str, int], PlacedQueue] = {}
        self._batch: dict[tuple[str, int], PlacedBatches] = {}

    def put(self, target: Target, entry: Scanned) -> None:
        key = target.topic, target.queue_id
        if target.kind is not PLAIN:
            batch = self._batch.get(key)
            if batch is None:
                path = self._path("batchconsumequeue", key)
                batches = BatchQueueWriter(path, self._sizes.batch_queue_segment)
                batch = self._batch[key] = PlacedBatches(batches, f"{key[0]}/{key[1]}")
            batch.put(target.batch_unit(entry))
            return
        queue = self._plain.get(key)
        if queue is None:
            path = self._path("consumequeue", key)
            writer = QueueWriter(path, self._sizes.queue_segment)
            queue = self._plain[key] = PlacedQueue(writer, f"{key[0]}/{key[1]}")
        queue.put(target.slot, entry.offset, entry.size, target.tag_code)

    def close(self) -> None:
        queues: list[PlacedQueue | PlacedBatches] = [*self._plain.values(), *self._batch.values()]
        for queue in queues:
            queue.close()
            self._report.units += queue.units
            self._report.refused += queue.refused
            self._report.corrected += queue.corrected
            if isinstance(queue, PlacedQueue) and queue.begun_anew >= 0:
                self._report.begun_anew[queue.name] = queue.begun_anew
        self._report.queues = len(self._plain) + len(self._batch)

    def _path(self, kind: str, key: tuple[str, int]) -> str:
        topic, queue_id = key
        name = topic.replace("/", "_").replace("\0", "_")
        return os.path.join(
            self._out, kind, name if name not in ("", ".", "..") else "_", str(queue_id)
        )
