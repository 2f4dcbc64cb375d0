"""The consume queues of a store, by topic and queue id."""

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from functools import partial

from rocketbed.node.store.aside import clear_the_way
from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.consumequeue import ConsumeQueue
from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.node.store.files import FilePool
from rocketbed.node.store.segments import SegmentRow, sync_rows
from rocketbed.world.api import World

QUEUE_DIR = "consumequeue"
BATCH_DIR = "batchconsumequeue"
NO_LIMIT = 1 << 62
AnyQueue = ConsumeQueue | BatchConsumeQueue
Key = tuple[str, int]


class Queues:
    """The queues, created with their first unit.

    Invariant: `total` is the sum of all queues' next offsets, `count` the number of queues that
    have any; the durable mark stores both, and a boot compares them (store.md 8.6, "units").
    """

    def __init__(
        self,
        world: World,
        pool: FilePool,
        config: StoreConfig,
        staging: str,
        *,
        is_batch: Callable[[str], bool],
        exists: Callable[[str], bool | None],
    ) -> None:
        """`is_batch`: True if a topic's attribute `queue.type` is BatchCQ; `exists`: True if there
        is such a topic, None if unknown."""
        self._is_batch = is_batch
        self._exists = exists
        self._world = world
        self._pool = pool
        self._config = config
        self._staging = staging
        self.ordinary: dict[Key, ConsumeQueue] = {}
        self.batch: dict[Key, BatchConsumeQueue] = {}
        self._touched: dict[AnyQueue, int] = {}
        """Queues with units that are in no file yet, those that wait longest first; with the number
        of these units, or of their records."""
        self._waiting = 0
        """Sum of these."""
        self._dirty: dict[AnyQueue, None] = {}
        self.odd = 0
        """Records so far whose queue offset was not the next one of their queue."""
        self.first_odd = ""
        """Description of the first of them."""
        self.remaking: set[str] = set()
        """Topics whose queues are being rebuilt: only `put_again` puts their units."""

    def load(self, *, tolerant: bool) -> None:
        """Load the queues on disk. Raises `BadStoreDirectory`, `tolerant` or not."""
        for kind in (QUEUE_DIR, BATCH_DIR):
            directory = f"{self._config.root}/{kind}"
            for topic in self._directories(directory):
                for name in self._directories(f"{directory}/{topic}"):
                    if not (name.isascii() and name.isdigit() and name == str(int(name))):
                        self._stray(f"{directory}/{topic}/{name}")
                        continue
                    queue = self._make(kind, topic, int(name))
                    for stray in queue.load(tolerant=tolerant):
                        self._stray(f"{directory}/{topic}/{name}/{stray}")

    def _directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory; anything else is reported and left
        alone, until a queue needs its place (aside.py)."""
        names = []
        try:
            entries = self._world.disk.listdir(path)
        except NotADirectoryError:
            self._stray(path)
            return []
        for name in entries:
            if self._world.disk.is_dir(f"{path}/{name}"):
                names.append(name)
            else:
                self._stray(f"{path}/{name}")
        return names

    def _stray(self, path: str) -> None:
        self._world.log.warning("store.stray", path=path)

    def _make(self, kind: str, topic: str, queue_id: int) -> AnyQueue:
        config = self._config
        directory = f"{config.root}/{kind}/{topic}/{queue_id}"
        size = config.queue_segment_size
        if kind == BATCH_DIR:
            size = config.batch_queue_segment_size
        row = SegmentRow(
            self._world,
            self._pool,
            directory,
            size,
            staging=self._staging,
            clear_the_way=partial(clear_the_way, self._world, self._pool, config.root),
        )
        if kind == BATCH_DIR:
            batch = self.batch[topic, queue_id] = BatchConsumeQueue(topic, queue_id, row)
            return batch
        ordinary = self.ordinary[topic, queue_id] = ConsumeQueue(topic, queue_id, row)
        return ordinary

    def _make_ordinary(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._make(QUEUE_DIR, topic, queue_id)
        self._world.mark("store.queue_made")
        return self.ordinary[topic, queue_id]

    def all(self) -> Iterator[AnyQueue]:
        """Every queue, ordinary ones first."""
        yield from self.ordinary.values()
        yield from self.batch.values()

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """Return the next offset of each queue, by topic and queue id."""
        return {(queue.topic, queue.queue_id): queue.max_offset for queue in self.all()}

    def of_wrong_type(self) -> set[str]:
        """Return topics of BatchCQ that have ordinary queues."""
        return {topic for topic, _ in self.ordinary if self._is_batch(topic)}

    def unexpected_batch(self) -> set[str]:
        """Return further topics that have batch queues: correct if some of their records hold
        several messages."""
        names = {topic for topic, _ in self.batch}
        return {name for name in names if self._exists(name) and not self._is_batch(name)}

    def find(self, topic: str, queue_id: int) -> AnyQueue | None:
        """Return the queue, or None; a look-up creates none (T14)."""
        return self.ordinary.get((topic, queue_id)) or self.batch.get((topic, queue_id))

    @property
    def total(self) -> int:
        """Sum of the next offsets of all queues."""
        return sum(queue.max_offset for queue in self.all())

    def sums(self, without: Set[str]) -> tuple[int, int, int]:
        """Return the number of queues that have or had a message, `total`, and the sum of the first
        units of queues that have any, without the queues of some topics. In one pass: a mark counts
        thousands of queues each second."""
        count = total = first = 0
        for queue in self.all():
            if without and queue.topic in without:
                continue
            if end := queue.max_offset:
                count += 1
                total += end
            begin = queue.first_unit
            if queue.end_unit > begin:
                first += begin
        return count, total, first

    def topics_before(self, deleted: dict[str, int]) -> set[str]:
        """Return topics that have queues which begin before the topic's deletion."""
        if not deleted:
            return set()
        return {queue.topic for queue in self.all() if queue.begins_before(deleted)}

    def put_all(self, entries: list[Entry]) -> None:
        """Put the units of records; those that enter no queue are skipped.

        Units are in memory until `write_pending`, and are read from there. Odd ones are reported,
        never dropped silently.
        """
        if self.remaking:
            entries = [entry for entry in entries if entry.topic not in self.remaking]
        self.put_again(entries)

    def put_again(self, entries: list[Entry]) -> None:
        """Do the same for records of topics that are `remaking`."""
        ordinary, touched = self.ordinary, self._touched
        for entry in entries:
            topic, queue_id, queue_offset, physical, size, tag_code, _, _, units = entry
            if units == ONE_UNIT:
                queue = ordinary.get((topic, queue_id))
                if queue is not None:
                    touched[queue] = touched.get(queue, 0) + 1
                    self._waiting += 1
                    problem = queue.put(queue_offset, physical, size, tag_code)
                elif (topic, queue_id) in self.batch or self._is_batch(topic):
                    problem = self._put_batch(entry)
                else:
                    queue = self._make_ordinary(topic, queue_id)
                    problem = queue.put(queue_offset, physical, size, tag_code)
                    self._touch(queue)
            elif units < 0:
                problem = self._put_batch(entry)
            else:
                continue
            if problem:
                self._report(entry.topic, entry.queue_id, entry.physical_offset, problem)
                if (odd_queue := self.find(topic, queue_id)) is not None:
                    self._touch(odd_queue)

    def adopt(self) -> None:
        """Adopt refused records at the end of a log that only this node appends to: see
        `ConsumeQueue.adopt`."""
        for queue in self.ordinary.values():
            problem = queue.adopt()
            if problem:
                self._touch(queue)
                self._report(queue.topic, queue.queue_id, -1, problem)
        self.write_pending()

    def _put_batch(self, entry: Entry) -> str:
        queue = self.batch.get((entry.topic, entry.queue_id))
        if queue is None:
            self._make(BATCH_DIR, entry.topic, entry.queue_id)
            queue = self.batch[entry.topic, entry.queue_id]
        problem = queue.put_batch(entry)
        self._touch(queue)
        return problem

    def _touch(self, queue: AnyQueue) -> None:
        """Count a queue's waiting units; a gap before a record may be thousands."""
        count = max(queue.end_unit - queue.stored_units, 1)
        self._waiting += count - self._touched.get(queue, 0)
        self._touched[queue] = count

    def _report(self, topic: str, queue_id: int, offset: int, problem: str) -> None:
        self.odd += 1
        self.first_odd = self.first_odd or f"{topic}/{queue_id}: {problem}"
        self._world.log.warning(
            "store.odd_queue_offset",
            topic=topic,
            queue=queue_id,
            physical_offset=offset,
            problem=problem,
        )

    @property
    def waiting(self) -> int:
        """Number of queues that have units in no file yet."""
        return len(self._touched)

    def write_pending(
        self, *, most: int = NO_LIMIT, keep: int = NO_LIMIT, makes: int = NO_LIMIT
    ) -> None:
        """Write the units of `most` queues, those that wait longest first, fewer if `makes` of them
        needed a new file, and of more while more than `keep` units wait. Raises `OSError`; units
        that could not be written stay in memory."""
        touched = self._touched
        while touched and ((most > 0 and makes > 0) or self._waiting > keep):
            queue = next(iter(touched))
            self._dirty[queue] = None
            end = queue.row.end
            queue.write_pending()
            self._waiting -= touched.pop(queue)
            most -= 1
            makes -= queue.row.end != end

    def heal(self, queue: AnyQueue, number: int, unit: tuple[int, ...], log_min: int) -> None:
        """Write a stored unit again. Raises `OSError`."""
        queue.write_pending()
        queue.row.write(number * queue.unit.size, queue.unit.pack(*unit))
        queue.find_min_again(log_min)
        self._dirty[queue] = None

    async def sync(self) -> None:
        """fsync every queue segment that was written since its last sync."""
        dirty, self._dirty = self._dirty, {}
        try:
            await sync_rows(self._pool, [queue.row for queue in dirty])
        except BaseException:
            self._dirty.update(dirty)
            raise

    def find_ends(
        self, offset: int, *, thorough: bool, deleted: dict[str, int]
    ) -> dict[AnyQueue, int]:
        """Return for each queue the number of units to keep if the log ended at `offset`.

        Queues of a topic in `deleted` that still begin before its deletion keep nothing.
        """
        ends = {}
        for queue in self.all():
            if queue.begins_before(deleted):
                ends[queue] = 0
            else:
                ends[queue] = queue.find_end(offset, thorough=thorough)
        return ends

    def totals(self, ends: dict[AnyQueue, int]) -> tuple[int, int]:
        """Return `count` and `total` as they would be with these ends."""
        nexts = [queue.offset_after(end) for queue, end in ends.items()]
        return sum(1 for value in nexts if value), sum(nexts)

    def claims(self, ends: dict[AnyQueue, int]) -> dict[str, int]:
        """Return next offsets by `topic/queue`, as they would be with these ends, for
        `Mark.claimed`."""
        return {f"{q.topic}/{q.queue_id}": q.offset_after(end) for q, end in ends.items()}

    def keys(self, ends: dict[AnyQueue, int]) -> list[tuple[str, int, bool]]:
        """Return topic and id of each queue that has or had a message, with these ends; True for a
        batch queue."""
        return [
            (queue.topic, queue.queue_id, isinstance(queue, BatchConsumeQueue))
            for queue, end in ends.items()
            if queue.offset_after(end)
        ]

    def set_ends(self, ends: dict[AnyQueue, int]) -> None:
        """Set the queues to these ends, without touching their files."""
        for queue, end in ends.items():
            queue.set_end(end)

    def cut_units(
        self, ends: dict[AnyQueue, int], *, keeps_first: bool = False, deleted: Collection[str] = ()
    ) -> None:
        """Keep this many units of each; `keeps_first`, if they match the log: see
        `UnitQueue.cut_units`. A power cut may have restored the directories of a deleted topic:
        those without a unit are removed."""
        self._touched.clear()
        self._waiting = 0
        for queue, end in ends.items():
            queue.row.remove_suspects()
            if end == 0:
                queue.destroy()
            else:
                queue.cut_units(end, keeps_first=keeps_first)
            self._dirty[queue] = None
        wrong = self.of_wrong_type() | self.unexpected_batch()
        wrong.update(deleted)
        self._remove(
            [queue for queue in ends if not ends[queue] and queue.topic in wrong], sorted(wrong)
        )

    def mark_all_dirty(self) -> None:
        """Treat every segment as never fsynced (a foreign directory)."""
        for queue in self.all():
            queue.row.dirty.update(dict.fromkeys(queue.row.starts))
            self._dirty[queue] = None

    def correct_min(self, log_min: int) -> None:
        """Set every queue's minimum to its first record that still exists."""
        for queue in self.all():
            queue.correct_min(log_min)

    def delete_before(self, log_min: int) -> int:
        """Unlink queue segments of records below `log_min`; return their number."""
        removed = 0
        for queue in self.all():
            removed += queue.delete_before(log_min)
            queue.correct_min(log_min)
        return removed

    def delete_topic(self, topic: str) -> int:
        """Destroy the queues of a topic; return their number."""
        keys = [key for key in self.ordinary if key[0] == topic]
        batch_keys = [key for key in self.batch if key[0] == topic]
        doomed: list[AnyQueue] = [self.ordinary[key] for key in keys]
        doomed += [self.batch[key] for key in batch_keys]
        self._remove(doomed, [topic])
        return len(doomed)

    def _remove(self, doomed: list[AnyQueue], topics: Iterable[str]) -> None:
        """Destroy queues of these topics, with their directories."""
        for queue in doomed:
            same = self.batch if isinstance(queue, BatchConsumeQueue) else self.ordinary
            del same[queue.topic, queue.queue_id]
            queue.destroy()
            self._waiting -= self._touched.pop(queue, 0)
            self._dirty.pop(queue, None)
            if self._world.disk.exists(queue.row.directory):
                self._world.disk.rmdir(queue.row.directory)
                self._pool.named(queue.row.directory)
        kinds = (f"{self._config.root}/{kind}" for kind in (QUEUE_DIR, BATCH_DIR))
        for directory in [f"{kind}/{topic}" for kind in kinds for topic in topics]:
            if self._world.disk.exists(directory) and not self._world.disk.listdir(directory):
                self._world.disk.rmdir(directory)
                self._pool.named(directory)
