"""A store directory as a whole: its parts, located and opened, never changed.

`open_directory` accepts any state: missing parts count as empty, foreign files are listed, and
sizes that were not given are derived from the files. It reports what it could not derive, and
leaves judgement to `check`.
"""

import fcntl
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rocketbed.inspect.commitlog import CommitLog
from rocketbed.inspect.config import (
    BATCH_QUEUE_SEGMENT_SIZE_DEFAULT,
    INDEX_ENTRIES_DEFAULT,
    INDEX_SLOTS_DEFAULT,
    QUEUE_SEGMENT_SIZE_DEFAULT,
    SEGMENT_SIZE_DEFAULT,
    Settings,
    read_json,
)
from rocketbed.inspect.consumequeue import BatchConsumeQueue, ConsumeQueue
from rocketbed.inspect.files import (
    INDEX_NAME_SIZE,
    FilePool,
    Listing,
    SegmentFile,
    SegmentRow,
    list_segments,
    read_regular,
)
from rocketbed.inspect.index import IndexFile, IndexLayout, derive_layout
from rocketbed.inspect.marks import CKPT_NAME, FLUSHED_NAME, Marks, read_marks

_CHECKPOINT = struct.Struct(">6q")
_FLOCK = struct.Struct("@hhqqi")
"""`struct flock` of Linux on 64 bits: type, whence, start, length, pid."""

QueueKey = tuple[str, int]


class NotAStore(Exception):
    """The directory is not a store that can be read; the text gives the reason."""


class Checkpoint(NamedTuple):
    """Times in milliseconds and offsets in bytes of the file `checkpoint` (store.md 1.5)."""

    physic_ms: int
    logics_ms: int
    index_ms: int
    master_flushed_offset: int
    confirm_offset: int
    logics_offset: int


class Sizes(NamedTuple):
    """Lengths of new files of the broker, bytes; derived where they were not given."""

    segment: int
    queue_segment: int
    batch_queue_segment: int


@dataclass(frozen=True)
class StoreDirectory:
    """The parts of one store directory."""

    root: str
    settings: Settings
    pool: FilePool
    log: CommitLog
    log_strays: tuple[str, ...]
    queues: dict[QueueKey, ConsumeQueue]
    batch_queues: dict[QueueKey, BatchConsumeQueue]
    extensions: dict[QueueKey, SegmentRow]
    queue_strays: tuple[str, ...]
    index_listing: Listing
    index_layout: IndexLayout | None
    """None if there are index files whose layout neither they nor the settings give."""
    sizes: Sizes
    checkpoint: Checkpoint | None
    """Values of the checkpoint; None when it is missing, zeros beyond the end of a short file. Like
    the marks it is read before the files are listed, so that it is not newer than the files of a
    live store."""
    marks: Marks | None
    """Rocketbed's own marks, if there are any."""

    @property
    def index_files(self) -> list[IndexFile]:
        """Index files by name (a time), oldest first; empty when the layout is unknown."""
        if self.index_layout is None:
            return []
        return [
            IndexFile(self.pool, file, self.index_layout) for file in self.index_listing.segments
        ]

    @property
    def has_abort(self) -> bool:
        """True if the broker runs or was not stopped cleanly."""
        return os.path.exists(self.path("abort"))

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def relative(self, path: str) -> str:
        """Path for display: relative to the root if it is below it."""
        relative = os.path.relpath(path, self.root)
        return path if relative.startswith("..") else relative

    def abort_lines(self) -> list[str]:
        """Lines of `abort`; the first is the broker's process id."""
        return _read_text(self.path("abort")).splitlines()

    def lock_holder(self) -> int | None:
        """Return the process id of the holder of the store's lock, None when it is free.

        Only asks the kernel, without taking the lock. It cannot see a lock of the calling process,
        and a call from that process would drop the lock (POSIX record locks end with the first
        close).
        """
        try:
            descriptor = os.open(self.path("lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request)[: _FLOCK.size])
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None if answer[0] == fcntl.F_UNLCK else int(answer[4])

    def config_files(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path("config")))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def config(self, name: str) -> Any:
        """Read a JSON file of `config`, or its `.bak` when it is missing, empty or unreadable.

        Returns None when neither can be read.
        """
        return first_json(
            _read_text(self.path("config", file_name)) for file_name in (name, name + ".bak")
        )

    def topics(self) -> dict[str, dict[str, Any]] | None:
        """Topic table by topic; None when there is no readable one."""
        return topic_table(self.config("topics.json"))

    def batch_topics(self) -> set[str]:
        """Topics whose queues are batch queues, according to the topic table and the
        directories."""
        named = {
            topic for topic, row in (self.topics() or {}).items() if queue_type(row) == "BatchCQ"
        }
        return named | {topic for topic, _ in self.batch_queues}

    def kind_conflicts(self) -> dict[str, tuple[str, str]]:
        """Topics whose queues are in the folder of another type, each with folder and declared
        type."""
        topics = self.topics() or {}
        conflicts: dict[str, tuple[str, str]] = {}
        for folder, kind, queues in (
            ("consumequeue", "SimpleCQ", self.queues),
            ("batchconsumequeue", "BatchCQ", self.batch_queues),
        ):
            for topic in sorted({topic for topic, _ in queues}):
                declared = queue_type(topics[topic]) if topic in topics else kind
                if declared != kind:
                    conflicts[topic] = folder, declared
        return conflicts

    def remade_topics(self) -> set[str]:
        """Topics whose queues rocketbed recreates at its next start, because it was killed during
        or just before that. Until then they may be short, or of two types."""
        if self.marks is None or not self.marks.trusted or not self.has_abort:
            return set()
        both = {topic for topic, _ in self.queues} & {topic for topic, _ in self.batch_queues}
        return {*self.marks.remaking, *self.kind_conflicts(), *both}

    def close(self) -> None:
        """Close the files that are open for reading."""
        self.pool.close()


def queue_type(row: dict[str, Any]) -> str:
    """Return the attribute queue.type of a row of the topic table."""
    attributes = row.get("attributes")
    value = attributes.get("queue.type") if isinstance(attributes, dict) else None
    return str(value) if value else "SimpleCQ"


def open_directory(
    root: str | os.PathLike[str], settings: Settings | None = None
) -> StoreDirectory:
    """Locate and open the parts of a store directory.

    Raises `NotAStore` when it has no part of a store, or its queues are in RocksDB.
    """
    root = os.fspath(root)
    if not os.path.isdir(root):
        raise NotAStore(f"{root}: no such directory")
    checkpoint, marks = _checkpoint(root), _marks(root)
    settings = _with_marked_sizes(settings or Settings(), marks)
    if settings.store_type == "defaultRocksDB":
        raise NotAStore(f"{root}: its queues are in RocksDB (storeType), which is not supported")
    log_paths = [path for path in settings.commitlog_paths if os.path.isdir(path)]
    log_paths = log_paths or [os.path.join(root, "commitlog")]
    if not any(os.path.isdir(path) for path in log_paths) and not any(
        os.path.exists(os.path.join(root, name)) for name in ("consumequeue", "checkpoint")
    ):
        inner = os.path.join(root, "store")
        hint = f"; try {inner}" if os.path.isdir(os.path.join(inner, "commitlog")) else ""
        raise NotAStore(f"{root}: neither commitlog nor consumequeue nor checkpoint is in it{hint}")
    pool = FilePool()
    listings = [list_segments(path) for path in log_paths]
    log_files = sorted(
        (file for listing in listings for file in listing.segments), key=lambda file: file.start
    )
    queues, queue_strays = _queues(root, "consumequeue")
    batches, batch_strays = _queues(root, "batchconsumequeue")
    extensions, _ = _queues(root, "consumequeue_ext")
    index_listing = list_segments(os.path.join(root, "index"), INDEX_NAME_SIZE)
    log = CommitLog(pool, tuple(log_files))
    if marks is not None and marks.trusted:
        log.flushed_offset = marks.flushed_offset
    return StoreDirectory(
        root=root,
        settings=settings,
        pool=pool,
        log=log,
        log_strays=tuple(stray for listing in listings for stray in listing.strays),
        queues={key: ConsumeQueue(pool, *key, files) for key, files in queues.items()},
        batch_queues={key: BatchConsumeQueue(pool, *key, files) for key, files in batches.items()},
        extensions={key: SegmentRow(pool, files) for key, files in extensions.items()},
        queue_strays=queue_strays + batch_strays,
        index_listing=index_listing,
        index_layout=_index_layout(pool, index_listing, settings),
        sizes=_sizes(settings, log_files, queues, batches),
        checkpoint=checkpoint,
        marks=marks,
    )


def _checkpoint(root: str) -> Checkpoint | None:
    try:
        data = read_regular(os.path.join(root, "checkpoint"), _CHECKPOINT.size)
    except OSError:
        return None
    return Checkpoint(*_CHECKPOINT.unpack(data.ljust(_CHECKPOINT.size, b"\0")))


def _marks(root: str) -> Marks | None:
    """Read rocketbed's marks of a directory."""

    def read(name: str) -> bytes:
        try:
            return read_regular(os.path.join(root, name), 1 << 20)
        except OSError:
            return b""

    abort = os.path.join(root, "abort")
    return read_marks(
        read(CKPT_NAME),
        read(FLUSHED_NAME),
        abort_lines=_read_text(abort).splitlines() if os.path.exists(abort) else None,
        checkpoint=read("checkpoint"),
    )


def _with_marked_sizes(settings: Settings, marks: Marks | None) -> Settings:
    """Take sizes that were not given from the marks."""
    marked = marks.sizes if marks is not None else {}
    return replace(
        settings,
        segment_size=settings.segment_size or marked.get("segment_size"),
        queue_segment_size=settings.queue_segment_size or marked.get("queue_segment_size"),
        batch_queue_segment_size=settings.batch_queue_segment_size
        or marked.get("batch_queue_segment_size"),
        index_slots=settings.index_slots or marked.get("index_slots"),
        index_entries=settings.index_entries or marked.get("index_entries"),
    )


def _index_layout(pool: FilePool, listing: Listing, settings: Settings) -> IndexLayout | None:
    if not listing.segments:
        return IndexLayout(
            settings.index_slots or INDEX_SLOTS_DEFAULT,
            settings.index_entries or INDEX_ENTRIES_DEFAULT,
        )
    return derive_layout(
        pool, listing.segments, slots=settings.index_slots, entries=settings.index_entries
    )


def _sizes(
    settings: Settings,
    log_files: list[SegmentFile],
    queues: dict[QueueKey, tuple[SegmentFile, ...]],
    batches: dict[QueueKey, tuple[SegmentFile, ...]],
) -> Sizes:
    return Sizes(
        settings.segment_size or _usual_size(log_files) or SEGMENT_SIZE_DEFAULT,
        settings.queue_segment_size
        or _usual_size([file for files in queues.values() for file in files])
        or QUEUE_SEGMENT_SIZE_DEFAULT,
        settings.batch_queue_segment_size
        or _usual_size([file for files in batches.values() for file in files])
        or BATCH_QUEUE_SEGMENT_SIZE_DEFAULT,
    )


def _usual_size(files: list[SegmentFile]) -> int | None:
    """Return the most frequent length, the greatest of equally frequent ones; None without
    files."""
    counted = Counter(file.size for file in files if file.size)
    return max(counted, key=lambda size: (counted[size], size)) if counted else None


def _queues(
    root: str, kind: str
) -> tuple[dict[QueueKey, tuple[SegmentFile, ...]], tuple[str, ...]]:
    """Return the segments of each queue below `<root>/<kind>/<topic>/<queue id>`, and stray
    paths."""
    queues: dict[QueueKey, tuple[SegmentFile, ...]] = {}
    strays: list[str] = []
    for topic_entry in _scan(os.path.join(root, kind)):
        if not topic_entry.is_dir():
            strays.append(topic_entry.path)
            continue
        for queue_entry in _scan(topic_entry.path):
            if not queue_entry.is_dir() or not _is_number(queue_entry.name):
                strays.append(queue_entry.path)
                continue
            listing = list_segments(queue_entry.path)
            queues[topic_entry.name, int(queue_entry.name)] = listing.segments
            strays += listing.strays
    return queues, tuple(strays)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _scan(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        yield from sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return


def first_json(texts: Iterable[str]) -> Any:
    """Return the value of the first text that is JSON; None when no text is."""
    for text in texts:
        try:
            if text.strip():
                return read_json(text)
        except ValueError:
            continue
    return None


def topic_table(value: Any) -> dict[str, dict[str, Any]] | None:
    """Return the topics in the value of `topics.json`; None if it is no topic table."""
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        return None
    return {name: row for name, row in table.items() if isinstance(row, dict)}


def _read_text(path: str) -> str:
    try:
        return read_regular(path).decode("utf-8-sig", errors="replace")
    except OSError:
        return ""
