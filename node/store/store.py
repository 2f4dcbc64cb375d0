"""The store as the broker and replication see it: open, put, get, close."""

import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import NoReturn

import trio

from rocketbed.node.store.aside import IN_THE_WAY, kept_bytes
from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.boot_report import RecoveryReport
from rocketbed.node.store.checkpointer import Checkpointer
from rocketbed.node.store.commitlog import CommitLog
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.consumequeue import ConsumeQueue
from rocketbed.node.store.dispatch import Arrival, Dispatcher
from rocketbed.node.store.epochs import StoreEpochs
from rocketbed.node.store.errors import (
    BadStoreDirectory,
    PutFailed,
    StoreError,
    StoreFailed,
)
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.locks import lock_store
from rocketbed.node.store.parts import TopicSource, make_parts
from rocketbed.node.store.picker import GetResult, Range
from rocketbed.node.store.reader import QueryResult, Reader
from rocketbed.node.store.recovery import Recovery
from rocketbed.node.store.removal import Removal
from rocketbed.node.store.retention import Retention
from rocketbed.node.store.run import Run
from rocketbed.node.store.scrub import Scrubber
from rocketbed.node.store.status import PutStatus
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import Lock, NotAFile, World

_READ_AHEAD = 3
"""Segments that are read into the page cache at a start (design.md 8)."""
_SLOW_WRITE = (
    PutStatus.OS_PAGE_CACHE_BUSY,
    "a write took longer than osPageCacheBusyTimeOutMills",
)
_PREPARE_SHARE = 0.5
"""Share of the last segment from which on the next one is created."""


class MessageStore:
    """A store directory, opened by this process.

    Life cycle: `await MessageStore.open(...)`, `await nursery.start(store.run)` (flush, dispatch,
    retention), puts and gets, `await store.close()`. Anything but `close` leaves `abort` in place,
    and the next `open` recovers.
    """

    def __init__(
        self,
        world: World,
        config: StoreConfig,
        topics: TopicSource | None,
        confirmed: Watermark | None = None,
    ) -> None:
        self._world = world
        self.config = config
        self._parts = make_parts(world, config, topics, confirmed)
        self._failure = self._parts.failure
        self._locks: list[Lock] = []
        self._flusher = Flusher(self._parts)
        self._dispatcher = Dispatcher(self._parts)
        self._checkpointer = Checkpointer(self._parts, self._flusher, self._dispatcher)
        self._retention = Retention(self._parts, self._checkpointer)
        self._reader = Reader(self._parts)
        self.scrubber = Scrubber(self._parts, self._checkpointer.note)
        """Searches for damage in the part that this start did not scan."""
        self.removal = Removal(
            self._parts,
            self._flusher,
            self._dispatcher,
            self._checkpointer,
            self.scrubber,
        )
        """Removes the end of the log, or a topic's queues, permanently."""
        self.epochs = StoreEpochs(self._parts, self._flusher, self._dispatcher, self.removal)
        if confirmed is not None:
            self._flusher.whole_end = self.epochs.whole_end
        """The log of a replica in a group with failover."""
        self.on_arrival: list[Arrival] = self._dispatcher.on_arrival
        """Called, in this order, when messages can be pulled."""
        self._closing = trio.Event()
        self.recovery = RecoveryReport()
        """Findings at opening."""
        log = self._parts.log
        self.written: Watermark = log.written
        """End of the log."""
        self.flushed: Watermark = log.flushed
        """End of what is on disk."""
        self.dispatched: Watermark = self._parts.dispatched
        """End of what can be pulled and queried."""
        self.store_host_bytes = log.tail.store_host_bytes

    @classmethod
    async def open(
        cls,
        world: World,
        config: StoreConfig,
        topics: TopicSource | None = None,
        confirmed: Watermark | None = None,
    ) -> "MessageStore":
        """Lock the directory, write `abort`, recover. Nothing beyond `confirmed` can be pulled.

        Raises `StoreLocked`, `BadStoreDirectory` or `DamagedLog`; messages are unchanged then.
        """
        store = cls(world, config, topics, confirmed)
        try:
            with _naming_obstacles(config.root):
                for directory in (config.root, config.log_dir):
                    store._parts.pool.make_dir(directory)
                store.recovery = await store._lock_and_prepare().run()
        except BaseException:
            store._release()
            raise
        report = store.recovery
        world.log.info(
            "store.recovered",
            clean=report.was_clean,
            scanned_from=report.scanned_from,
            end=report.end,
            records=report.records,
            seconds=round(report.seconds, 3),
        )
        return store

    @classmethod
    async def check(
        cls, world: World, config: StoreConfig, topics: TopicSource | None = None
    ) -> list[str]:
        """Return what `open` would do, without changing anything. Raises what `open` would
        raise."""
        store = cls(world, config, topics)
        if not world.disk.is_dir(config.root):
            raise BadStoreDirectory(f"{config.root} does not exist (storePathRootDir)")
        try:
            with _naming_obstacles(config.root):
                return await store._lock_and_prepare().preview()
        finally:
            store._release()

    def _lock_and_prepare(self) -> Recovery:
        # Before anything is read: RocketMQ locks last, and two brokers may recover one directory
        # (T13).
        self._locks = lock_store(self._world, self.config)
        self._world.mark("store.lock_taken")
        return Recovery(self._parts, self._flusher, self._dispatcher, self._checkpointer)

    def _release(self) -> None:
        self._parts.pool.close()
        for lock in self._locks:
            lock.release()
        self._locks = []

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush, dispatch, raise the mark, delete old segments, scrub, until `close` is called.

        Raises `StoreFailed`; the process must end then, and `abort` stays.
        """
        self._read_ahead()
        async with trio.open_nursery() as nursery:
            for task in (self._flusher, self._dispatcher, self._checkpointer, self._retention):
                nursery.start_soon(self._guard, task.run)
            nursery.start_soon(self._guard, self._prepare)
            nursery.start_soon(self.scrubber.run, self.recovery.scanned_from)
            nursery.start_soon(self.wait_failed)
            task_status.started()
            await self._closing.wait()
            nursery.cancel_scope.cancel()

    def _read_ahead(self) -> None:
        """Read the newest segments ahead: pulls after a start mostly need them."""
        segments, end = self._parts.log.segments, self._parts.log.written.value
        for start in segments.starts[-_READ_AHEAD:]:
            if end > start:
                segments.file(start).read_ahead(0, min(end - start, segments.size))

    async def _prepare(self) -> None:
        """Create the next segment before it is needed."""
        log = self._parts.log
        while True:
            share = _PREPARE_SHARE * log.segment_size
            await log.written.wait_above(int(log.segments.end - share) - 1)
            if log.segments.starts:
                try:
                    await log.prepare_next()
                except OSError as exc:
                    log.lacks_room(exc)
            await log.written.wait_above(log.written.value)

    async def _guard(self, run: Callable[[], Awaitable[None]]) -> None:
        """Fail the store at once: a sync under way delays the end of the nursery, and until then
        nothing may be put or promised any more."""
        try:
            await run()
        except StoreError as exc:
            self._failure.set(exc)

    async def wait_failed(self) -> NoReturn:
        """Wait until the store has failed, then raise why: a `StoreError`."""
        await self._failure.wait()

    async def close(self) -> None:
        """Stop cleanly: dispatch and flush everything, raise W, then remove `abort`.

        Call it when nothing is put any more, with `run` still running. If dispatch is stuck or
        queues have to be rebuilt, `abort` stays. Raises `StoreFailed`.
        """
        parts = self._parts
        if parts.confirmed is not None:
            # There are no readers any more, and the next start hides unconfirmed records.
            parts.confirmed.reset(parts.log.written.value)
        while self._dispatcher.step():
            await trio.lowlevel.checkpoint()
        self._closing.set()
        self._world.mark("store.stop_dispatched")
        await self._flusher.flush()
        self._world.mark("store.stop_flushed")
        while self._dispatcher.step():
            await trio.lowlevel.checkpoint()
        caught_up = parts.dispatched.value == parts.log.written.value or self._partial_tail()
        reason = "" if caught_up else self._dispatcher.stuck
        if topics := self.removal.topics_to_rebuild():
            reason = f"the next start makes the queues of {', '.join(sorted(topics))} again"
        if reason or not caught_up:
            self._world.log.error("store.not_clean", reason=reason)
            self._release()
            return
        parts.log.drop_unused()
        # `abort` is removed last: `clean` vouches for the checkpoint only once W is at the end, and
        # a crash before the unlink leaves a directory that is recovered as after a crash.
        if await self._checkpointer.raise_mark():
            checkpoint = parts.witnesses.checkpoint_bytes().hex()
            await parts.marks.update(clean=checkpoint)
            await parts.witnesses.remove_abort()
        self._release()

    def _partial_tail(self) -> bool:
        """True if the log may end inside a record, as a slave's may: such a stop is clean."""
        return self.config.is_slave and not self._dispatcher.stuck

    # Puts

    def trouble(self) -> str:
        """Return why a master accepts no messages until an operator acts; empty if it does."""
        if self._failure.reason is not None:
            return str(self._failure.reason)
        if self._retention.disk_full and not self.config.is_slave:
            return self._too_full()
        return self._dispatcher.stuck

    def _too_full(self) -> str:
        percent = self.config.disk_warning_percent
        return f"the disk is fuller than diskSpaceWarningLevelRatio ({percent} %)"

    def unfit(self) -> str:
        """Return why a replica with the same messages would serve clients better; empty if it would
        not."""
        log = self._parts.log
        if reason := self.trouble() or self.lack_of_room():
            return reason
        if self._retention.disk_full:
            return self._too_full()
        if self._world.disk.usage(log.segments.directory).free < log.segment_size:
            return f"{log.segments.directory} has no room for another {log.segment_size} bytes"
        present = (damage for damage in self.scrubber.damage if damage.end > log.min_offset)
        unread = [damage for damage in present if not damage.is_readable]
        if unread:
            return f"the log is damaged at {unread[0].start}: {unread[0].reason}"
        return ""

    def lack_of_room(self) -> str:
        """Return why messages that need a new segment are refused; empty once there is room."""
        log = self._parts.log
        if log.no_room and self._world.disk.usage(log.segments.directory).free < log.segment_size:
            return log.no_room
        return ""

    def refusal(self) -> tuple[PutStatus, str] | None:
        """Return why no message is accepted now, or None. Called once before each run: a slow write
        refuses one run."""
        obstacle = self.obstacle()
        if obstacle is _SLOW_WRITE:
            self._parts.log.last_write_s = 0.0
        return obstacle

    def obstacle(self) -> tuple[PutStatus, str] | None:
        """Return what `refusal` would return."""
        if self._closing.is_set() or self._failure.reason is not None:
            return PutStatus.SERVICE_NOT_AVAILABLE, "the store is shut down"
        if self.config.is_slave:
            return PutStatus.SERVICE_NOT_AVAILABLE, "this broker is a slave"
        if trouble := self.trouble():
            return PutStatus.SERVICE_NOT_AVAILABLE, trouble
        log = self._parts.log
        if log.written.value - log.flushed.value > self.config.dirty_max:
            return PutStatus.OS_PAGE_CACHE_BUSY, "the disk is behind (rbDirtyMax)"
        if log.last_write_s * 1000 > self.config.busy_timeout_ms:
            return _SLOW_WRITE
        if self._dispatcher.overloaded:
            return PutStatus.OS_PAGE_CACHE_BUSY, "dispatch is behind (rbDispatchRing)"
        return None

    def begin(self) -> Run:
        """Return a run of messages; `commit` it before anything awaits."""
        return self._parts.log.begin()

    def commit(self, run: Run) -> None:
        """Write a run. Raises `PutFailed`: nothing of it is stored."""
        try:
            self._parts.log.commit(run)
        except PutFailed:
            raise
        except StoreError as exc:  # it failed earlier
            raise PutFailed(PutStatus.SERVICE_NOT_AVAILABLE, str(exc)) from exc
        except OSError as exc:
            failure = self._failure.set(
                StoreFailed(
                    f"the log at offset {run.start} cannot be written nor cleared:"
                    f" {exc.strerror}; the node stops and leaves its abort file"
                )
            )
            raise PutFailed(PutStatus.SERVICE_NOT_AVAILABLE, str(failure)) from exc

    # Gets

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int | None = None,
        tag_codes: Set[int] | None = None,
    ) -> GetResult:
        """Return the records for a pull (see `Reader.get_messages`)."""
        return self._reader.get_messages(
            topic, queue_id, offset, max_messages, max_bytes=max_bytes, tag_codes=tag_codes
        )

    def units(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Return up to `count` units of an ordinary queue: physical offset, size, code. May end
        early."""
        queue = self._parts.queues.find(topic, queue_id)
        if not isinstance(queue, ConsumeQueue):
            return []
        units = queue.units(offset, min(count, queue.max_offset - offset))
        return [(physical, size, code) for physical, size, code in units]

    def read_cached(self, ranges: list[Range]) -> bytes | None:
        """Return records that the page cache holds, or None."""
        return self._reader.read_cached(ranges)

    async def read(self, ranges: list[Range]) -> bytes:
        """Return records, from the disk if need be."""
        return await self._reader.read(ranges)

    async def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record that begins at a physical offset, or None."""
        return await self._reader.record_at(physical_offset)

    def refuse_damaged(self, physical_offset: int) -> None:
        """Raise `CorruptRecord` for an offset that is known to be damaged."""
        self._parts.damaged.refuse(physical_offset)

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        return await self._reader.offset_by_time(topic, queue_id, time_ms, upper=upper)

    async def query(
        self, topic: str, key: str, count: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Return records by key and store time."""
        return await self._reader.query(topic, key, count, begin_ms, end_ms)

    def places(self, topic: str, key: str) -> list[int]:
        """Return log offsets of all records that may have a key, rising."""
        return self._reader.places(topic, key)

    async def indexed(self, offsets: Iterable[int]) -> list[bytes]:
        """Return records at offsets that the index gave. Raises `CorruptRecord`."""
        return await self._reader.indexed(offsets)

    async def stored_ms(self, topic: str, queue_id: int, offset: int | None = None) -> int:
        """Return the store time of the message at a queue offset, or of the first one; -1 if it
        does not exist."""
        return await self._reader.stored_ms(topic, queue_id, offset)

    def queue_keys(self) -> list[tuple[str, int, bool]]:
        """Return topic and queue id of every queue that has messages, and True for a batch
        queue."""
        return [
            (queue.topic, queue.queue_id, isinstance(queue, BatchConsumeQueue))
            for queue in self._parts.queues.all()
            if queue.max_offset
        ]

    def queue_min(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that still exists; 0 for an unknown queue."""
        queue = self._parts.queues.find(topic, queue_id)
        return queue.min_offset if queue else 0

    def queue_max(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the queue offset after the last message that can be pulled, or (not committed) was
        put."""
        if not committed:
            return self._parts.log.tail.next_queue_offsets.get((topic, queue_id), 0)
        queue = self._parts.queues.find(topic, queue_id)
        return queue.max_offset if queue else 0

    def new_queues(self) -> list[tuple[str, int, bool]]:
        """Return the same as `queue_keys` for messages that were put and cannot be pulled yet."""
        tail = self._parts.log.tail.next_queue_offsets
        find = self._parts.queues.find
        return [(*key, False) for key in sorted(tail) if find(*key) is None]

    def queues(self) -> list[tuple[str, int]]:
        """Return topic and id of every queue, sorted."""
        return sorted((queue.topic, queue.queue_id) for queue in self._parts.queues.all())

    # The log, for replication

    @property
    def followed(self) -> str | None:
        """Address of the master that this log followed last (`replication.api.MasterMemory`)."""
        marks = self._parts.marks
        return marks.mark.followed if marks.is_sure else None

    async def note(self, master: str) -> None:
        """Record that the log is this master's now; raises as `Marks.update` does.

        It does not wait for a rise of the mark, since acknowledgements wait for it.
        """
        await self._parts.marks.update(followed=master)

    @property
    def log(self) -> CommitLog:
        return self._parts.log

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that still exists."""
        return self._parts.log.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset of the end of the log."""
        return self._parts.log.written.value

    def delete_expired(self) -> None:
        """Delete expired segments at any hour (an operator's order)."""
        self._retention.delete_now()

    @property
    def damaged_ranges(self) -> str:
        """Damaged ranges of the log that the scrub found, for people; empty if there are none."""
        return self._parts.damaged.summary()

    def unqueued(self) -> dict[str, tuple[int, int, int]]:
        """Return topics with good records that are in no queue, as far as is known: physical offset
        of the first, their number, and where the queue offsets begin at 0 again (-1: nowhere)."""
        scrubbed = self.scrubber.unqueued
        topics = {topic: (first, count, -1) for topic, (first, count) in scrubbed.items()}
        for queue in self._parts.queues.all():
            if queue.outside:
                start = queue.first_outside
                first, count, anew = topics.get(queue.topic, (start, 0, -1))
                anew = max(anew, queue.anew_at)
                topics[queue.topic] = min(first, start), count + queue.outside, anew
        return topics

    @property
    def lost_bytes(self) -> bool:
        """True if a start found less of the log than was on disk, and that was not sent again
        yet."""
        return self._parts.marks.mark.resend_to >= 0

    @property
    def odd_records(self) -> int:
        """Records since the start that were not the next ones of their queue."""
        return self._parts.queues.odd

    @property
    def shows_unconfirmed(self) -> bool:
        """True if queues hold unconfirmed records: after a stop, until these are confirmed or cut
        off."""
        confirmed = self._parts.confirmed
        return confirmed is not None and self.dispatched.value > confirmed.value

    def runtime_info(self) -> dict[str, str]:
        """The store's part of RocketMQ's runtime info (code 28)."""
        parts = self._parts
        usage = self._world.disk.usage(parts.log.segments.directory)
        ratio = f"{(usage.total - usage.free) / usage.total:.4f}" if usage.total else "0.0"
        return {
            "commitLogMinOffset": str(self.min_offset),
            "commitLogMaxOffset": str(self.max_offset),
            "dispatchBehindBytes": str(self._dispatcher.lag),
            "dispatchMaxBuffer": str(self._dispatcher.backlog),
            "remainHowManyDataToFlush": f"{parts.log.written.value - parts.log.flushed.value} B",
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {usage.total} B, Free : {usage.free} B.",
            "pageCacheLockTimeMills": str(int(parts.log.last_write_s * 1000)),
            **(
                {} if parts.confirmed is None else {"rbConfirmedOffset": str(parts.confirmed.value)}
            ),
            "lastDurableOffsetAtBoot": str(self.recovery.last_durable),
            "trouble": self.trouble(),
            "mendedUnits": str(self.scrubber.healed),
            "unqueuedRecords": str(sum(count for _, count, _ in self.unqueued().values())),
            "unqueuedWhere": "; ".join(
                f"{topic}: {count} from offset {first} on"
                + (f", its queue offsets begin anew at {anew}" if anew >= 0 else "")
                for topic, (first, count, anew) in self.unqueued().items()
            ),
            "queuesUnmade": ", ".join(sorted(self.removal.topics_to_rebuild())),
            "scrubbedTo": str(self.scrubber.position),
            "acceptedCuts": ";".join(
                f"{cut.offset}:{cut.flushed}:{cut.messages}:{cut.time_ms}"
                for cut in parts.marks.mark.accepted
            ),
            "keptCutBytes": str(kept_bytes(self._world, self.config.root)),
            "indexDamage": self.scrubber.index_damage,
            "damagedRanges": self.damaged_ranges,
            "damageCount": str(parts.damaged.count),
        }


@contextmanager
def _naming_obstacles(root: str) -> Iterator[None]:
    """Raise `BadStoreDirectory` instead of a bare `OSError` if a directory or a pipe obstructs a
    file, permissions are missing, or the disk is full: an operator has to act."""
    try:
        yield
    except (*IN_THE_WAY, PermissionError, NotAFile) as exc:
        raise BadStoreDirectory(
            f"{exc.filename2 or exc.filename}: {exc.strerror}. The store has a file or directory of"
            " its own there: move what is in the way, or let this user have it, then start again"
        ) from exc
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BadStoreDirectory(
            f"{exc.filename or root}: {exc.strerror}. A start needs room for a few small files and"
            " for queues and index that are not on disk yet: make room, then start again; no"
            " message was changed"
        ) from exc
