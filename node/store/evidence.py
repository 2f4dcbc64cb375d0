"""What of a directory can be trusted (store.md 8.6, Boot).

Pure reading: nothing is changed here. Another broker, a restore from a backup, an operator or a
failing disk may have changed the directory since we wrote the mark. Each part is judged for itself:
whose hand was here last, whether queues and index are what the mark says, and whether the log is.
"""

from dataclasses import dataclass

from rocketbed.node.store.checkpoint import AbortFile, Checkpoint
from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.indexfile import Header, IndexFile
from rocketbed.node.store.marks import Mark
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.queues import AnyQueue
from rocketbed.node.store.scan import crc_scanner
from rocketbed.wire.javahash import index_hash, key_state
from rocketbed.wire.properties import tag_key

UNKNOWN = -1
TAGS_NEWEST = 2048
TAGS_EACH = 128
"""Index entries that are looked at for a tag: the newest, and of each file; 50 us each."""


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A log that is bad, or ends, below the durable mark."""

    offset: int
    """Physical offset of the first byte that is not as it was."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a boot finds, and what it concludes: three verdicts that do not touch each other."""

    mark: Mark | None
    """The stored mark, whatever the verdicts are."""
    hand: str
    """Why another program, or nobody of us, may have changed the directory; empty if not."""
    derived: str
    """Why queues or index cannot be believed; empty if they can. They are built again then."""
    bad_end: BadEnd | None
    """The log is not what the mark says it was: damage, whoever wrote since."""
    was_clean: bool
    """No abort file: the last stop was clean, or another broker's was."""
    same_boot: bool
    """Our abort file from this boot of the kernel: the page cache is still what it was."""
    boot_id: str
    """Of the kernel under which the last process that recovered here ran; empty if not known."""
    flushed: int
    """F: this node knew the log to be on disk up to here; `UNKNOWN` if nothing is known."""
    flushed_lost: bool
    """The file that says F is gone or damaged, though there is a mark: F may have been higher."""
    ends: dict[AnyQueue, int]
    """Units to keep of each queue, when they can be believed."""
    deleted: dict[str, int]
    """The mark's deleted topics, where the log below it is the one it was written for, and those
    that the operator names."""

    @property
    def trusted(self) -> bool:
        """Whether the start may go on at the mark."""
        return not (self.hand or self.derived or self.bad_end)

    @property
    def reason(self) -> str:
        """Why it may not."""
        return self.hand or (self.bad_end.reason if self.bad_end else "") or self.derived

    @property
    def may_be_torn(self) -> bool:
        """Whether the end is what a power loss under this node may have left."""
        return not (self.hand or self.was_clean or self.same_boot)


def gather(parts: StoreParts) -> Evidence:
    """Read the witnesses and weigh them."""
    mark = parts.marks.load()
    abort = parts.witnesses.load_abort()
    flushed = parts.marks.load_flushed()
    ordered = {
        topic: at
        for topic, at in parts.config.topics_deleted
        if at > max(parts.log.min_offset, mark.deleted.get(topic, -1) if mark else -1)
    }
    if mark is None:
        hand, derived, bad_end = "there is no durable mark of rocketbed here", "", None
        ends: dict[AnyQueue, int] = {}
    else:
        hand = _doubt_hand(parts, mark, abort)
        bad_end = _doubt_end(parts, mark)
        derived, ends = _doubt_derived(parts, mark)
        if abort is None:
            hand = hand or _doubt_clean(parts, mark, {} if derived else ends)
        if ordered:
            named = ";".join(f"{topic}:{at}" for topic, at in ordered.items())
            derived = derived or f"rbTopicDeleted={named} is not what they were built by"
        # F is overwritten without fsync, so an old value may be found; W is a lower bound too.
        flushed = max(UNKNOWN if flushed is None else flushed, mark.offset, mark.owed)
    same_boot = (
        not hand
        and abort is not None
        and abort.boot_id == parts.world.process.boot_id
        and parts.config.trust_page_cache
    )
    return Evidence(
        mark=mark,
        hand=hand,
        derived=derived,
        bad_end=bad_end,
        was_clean=abort is None,
        same_boot=same_boot,
        boot_id="" if abort is None else abort.boot_id,
        flushed=UNKNOWN if flushed is None else flushed,
        flushed_lost=mark is not None and parts.marks.has_lost_flushed,
        ends=ends,
        deleted=(mark.deleted if mark is not None else {}) | ordered,
    )


def _doubt_hand(parts: StoreParts, mark: Mark, abort: AbortFile | None) -> str:
    """Why somebody else may have been here since the mark was written; empty if nobody was."""
    untouched = mark.clean is not None and mark.clean == (parts.witnesses.checkpoint_bytes().hex())
    if abort is not None and abort.is_empty and untouched:
        return ""  # a start behind a clean stop got no further than the name, on a full disk
    if abort is not None:
        return "" if abort.store_id == mark.store_id else "the abort file is another broker's"
    if not untouched:
        return "there is no abort file, and no clean stop of rocketbed either"
    return ""


def _doubt_clean(parts: StoreParts, mark: Mark, ends: dict[AnyQueue, int]) -> str:
    """Nothing may stand behind the mark of a clean stop: else the mark is an older copy.

    `ends`: of queues that can be believed.
    """
    cursor = _cursor(parts)
    step = cursor.one(mark.offset)
    if step.verdict is Verdict.BLANK:
        step = cursor.one(step.end)
    what = "a record" if step.verdict is Verdict.GOOD else ""
    if not what:
        ends = ends or parts.queues.find_ends(mark.offset, thorough=False, deleted=mark.deleted)
        for queue, end in ends.items():
            if not queue.begins_before(mark.deleted) and queue.goes_on(end):
                what = f"a unit of {queue.topic}/{queue.queue_id}"
                break
    return (
        f"{what} stands behind the durable mark of a clean stop at {mark.offset}: one of them is an"
        " old copy"
        if what
        else ""
    )


def _doubt_end(parts: StoreParts, mark: Mark) -> BadEnd | None:
    """The last record below W must be there, good, and end at W (or at a blank one before it)."""
    log = parts.log
    if mark.record_start < 0 or mark.offset <= log.min_offset:
        # Everything below W has expired. What retention did not delete is missed elsewhere.
        return None
    if not log.segments.has(mark.record_start):
        return BadEnd(
            min(log.segments.end, mark.offset),
            f"the log does not reach the durable mark at {mark.offset}",
        )
    cursor = _cursor(parts)
    step = cursor.one(mark.record_start)
    if step.verdict is not Verdict.GOOD:
        return BadEnd(
            mark.record_start,
            f"the record before the durable mark at {mark.offset} is not good: {step.reason}",
        )
    if step.end == mark.offset or cursor.one(step.end).end == mark.offset:
        return None
    return BadEnd(
        mark.record_start,
        f"the record before the durable mark ends at {step.end}, not at {mark.offset}",
    )


def _doubt_derived(parts: StoreParts, mark: Mark) -> tuple[str, dict[AnyQueue, int]]:
    """Number of queues and sum of their offsets at W must be what the mark says, and the index
    file that it names must be there."""
    if again := sorted({*mark.remaking, *parts.queues.of_wrong_type()}):
        return f"queues of {', '.join(again)} were being made again, or have to be", {}
    if parts.config.index_enabled:
        if not parts.index.has_marked(mark.index):
            return "an index file was removed", {}
        if problem := mark.index_damage or parts.index.damage(mark.index):
            return f"the index is not as it should be: {problem}", {}
    expected = (mark.queue_count, mark.queue_total)
    for thorough in (False, True):
        ends = parts.queues.find_ends(mark.offset, thorough=thorough, deleted=mark.deleted)
        if parts.queues.totals(ends) == expected:
            first = sum(queue.first_unit for queue, end in ends.items() if end > queue.first_unit)
            if mark.queue_first not in (UNKNOWN, first):
                return f"queues begin at {first} in all, the mark says {mark.queue_first}", {}
            return "", ends
    found = parts.queues.totals(ends)
    return f"queues: {found[0]} with {found[1]} messages, the mark says {expected}", {}


def indexes_tags(parts: StoreParts, mark: Mark | None, hand: str) -> bool:
    """Whether tags are indexed too: as our mark says, else as RocketMQ 5.5.0 does and 5.3 does not.

    The newest tagged record in the index tells, of those that are looked at: the newest entries of
    all, and some of each file. An index without any may have millions.
    """
    if mark is not None and not hand:
        return mark.index_tags
    if not parts.index.fits():
        return False  # of files of another length it is not known where an entry stands
    scanner = crc_scanner(parts.config)
    scanner.index_tags = True
    cursor = LogCursor(parts.log.segments, scanner)
    looked_at = TAGS_NEWEST
    for file in reversed(parts.index.files):
        last, looked_at = file.next_entry - 1, max(looked_at, TAGS_EACH)
        newest = range(last, max(last - looked_at, 0), -1)
        older = range(last - looked_at, 0, -max(last // TAGS_EACH, 1))
        looked_at, before = 0, -1
        for number in (*newest, *older):
            if (offset := file.entry(number)[1]) == before:
                continue
            before = offset
            record = next(iter(cursor.one(offset).entries), None)
            if record is not None and record.keys and record.keys[-1].startswith(tag_key("")):
                wanted = index_hash(key_state(record.topic, record.keys[-1]))
                return wanted in _hashes(file, number)
    return False


def _hashes(file: IndexFile, number: int) -> list[int]:
    """Key hashes of all entries of the record that an entry belongs to."""
    offset, first = file.entry(number)[1], number
    while first > 1 and file.entry(first - 1)[1] == offset:
        first -= 1
    found = []
    while first < file.next_entry and file.entry(first)[1] == offset:
        found.append(file.entry(first)[0])
        first += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedByRocketMQ:
    """A directory that RocketMQ 5.3 stopped cleanly: queues and index are complete."""

    end: int
    record_start: int
    index: tuple[str, Header] | None
    filled_ms: int


def closed_by_rocketmq(parts: StoreParts, checkpoint: Checkpoint) -> ClosedByRocketMQ | None:
    """Whether the directory may be taken as it is, without a rebuild (store.md 8.6).

    Physic and logics time must be the last record's, the largest queue end the log's end, each
    queue's last unit a record of that queue with that queue offset, and index files as long as our
    maxHashSlotNum and maxIndexNum have them.
    """
    if checkpoint.physic_ms == 0 or checkpoint.physic_ms != checkpoint.logics_ms:
        return None
    if not parts.index.fits():
        return None
    largest: tuple[int, int] | None = None
    for queue in parts.queues.all():
        queue.end_unit = queue.find_end(1 << 62, thorough=True)
        last = queue.last_unit()
        queue_offset = queue.offset_after(queue.end_unit)
        if last is None:
            continue
        entry = _record(parts, last[0])
        if entry is None or entry.size != last[1]:
            return None
        after = entry.queue_offset + (entry.units if entry.units > 0 else -entry.units)
        if (entry.topic, entry.queue_id, after) != (queue.topic, queue.queue_id, queue_offset):
            return None
        largest = max(largest or (-1, 0), (last[0], last[1]))
    if largest is None:
        return None
    record_start, end = largest[0], largest[0] + largest[1]
    entry = _record(parts, record_start)
    if entry is None or entry.store_ms != checkpoint.physic_ms or _record(parts, end) is not None:
        return None
    return ClosedByRocketMQ(
        end=end,
        record_start=record_start,
        index=parts.index.mark(),
        filled_ms=checkpoint.index_ms,
    )


def _record(parts: StoreParts, offset: int) -> Entry | None:
    """The good record that begins at `offset`, if there is one."""
    step = _cursor(parts).one(offset)
    return step.entries[0] if step.entries else None


def _cursor(parts: StoreParts) -> LogCursor:
    return LogCursor(parts.log.segments, crc_scanner(parts.config))
