"""Trustworthiness of a directory at boot (store.md 8.6, Boot).

Only reads: nothing is changed here. Another broker, a restore from a backup, an operator or a
failing disk may have changed the directory since we wrote the mark. Each part is judged by itself:
whether another program was here since, whether queues and index match the mark, and whether the log
does.
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
"""Index entries that are searched for a tag: the newest, and some of each file; 50 us each."""


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A log that is bad, or ends, below the durable mark."""

    offset: int
    """Physical offset of the first byte that has changed."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Findings and conclusions of a boot: three verdicts that are independent of each other."""

    mark: Mark | None
    """The stored mark, whatever the verdicts are."""
    hand: str
    """Reason to suspect that another program changed the directory; empty if there is none."""
    derived: str
    """Reason not to trust queues or index; empty if there is none. They are rebuilt then."""
    bad_end: BadEnd | None
    """End of the good part if the log does not match the mark: damage, whatever wrote since."""
    was_clean: bool
    """True without an abort file: the last stop was clean, or another broker's was."""
    same_boot: bool
    """True if our abort file is from this boot of the kernel: the page cache is unchanged."""
    boot_id: str
    """Boot id of the kernel of the last process that recovered here; empty if not known."""
    flushed: int
    """F: this node knew the log to be on disk up to here; `UNKNOWN` if nothing is known."""
    flushed_lost: bool
    """True if the file with F is missing or damaged, though there is a mark: F may have been
    higher."""
    ends: dict[AnyQueue, int]
    """Units to keep of each queue, if they can be trusted."""
    deleted: dict[str, int]
    """Deleted topics of the mark, if the log below it is the one it was written for, and those that
    the operator names."""

    @property
    def trusted(self) -> bool:
        """True if the start may continue at the mark."""
        return not (self.hand or self.derived or self.bad_end)

    @property
    def reason(self) -> str:
        """Reason why it may not."""
        return self.hand or (self.bad_end.reason if self.bad_end else "") or self.derived

    @property
    def may_be_torn(self) -> bool:
        """True if the end may be what a power loss under this node left."""
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
        flushed = max(UNKNOWN if flushed is None else flushed, mark.offset, mark.resend_to)
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
    """Return why another program may have been here since the mark was written; empty if none
    was."""
    untouched = mark.clean is not None and mark.clean == (parts.witnesses.checkpoint_bytes().hex())
    if abort is not None and abort.is_empty and untouched:
        return ""  # a start after a clean stop only created the name, on a full disk
    if abort is not None:
        return "" if abort.store_id == mark.store_id else "the abort file is another broker's"
    if not untouched:
        return "there is no abort file, and no clean stop of rocketbed either"
    return ""


def _doubt_clean(parts: StoreParts, mark: Mark, ends: dict[AnyQueue, int]) -> str:
    """Check that nothing follows the mark of a clean stop: otherwise the mark is an older copy.

    `ends`: of queues that can be trusted.
    """
    cursor = _cursor(parts)
    step = cursor.record_at(mark.offset)
    if step.verdict is Verdict.BLANK:
        step = cursor.record_at(step.end)
    finding = "a record" if step.verdict is Verdict.GOOD else ""
    if not finding:
        ends = ends or parts.queues.find_ends(mark.offset, thorough=False, deleted=mark.deleted)
        for queue, end in ends.items():
            if not queue.begins_before(mark.deleted) and queue.goes_on(end):
                finding = f"a unit of {queue.topic}/{queue.queue_id}"
                break
    return (
        f"{finding} stands behind the durable mark of a clean stop at {mark.offset}: one of them"
        " is an old copy"
        if finding
        else ""
    )


def _doubt_end(parts: StoreParts, mark: Mark) -> BadEnd | None:
    """Check that the last record below W exists, is good, and ends at W (or at a blank record
    before it)."""
    log = parts.log
    if mark.record_start < 0 or mark.offset <= log.min_offset:
        # Everything below W has expired. Other checks notice segments that are missing.
        return None
    if not log.segments.has(mark.record_start):
        return BadEnd(
            min(log.segments.end, mark.offset),
            f"the log does not reach the durable mark at {mark.offset}",
        )
    cursor = _cursor(parts)
    step = cursor.record_at(mark.record_start)
    if step.verdict is not Verdict.GOOD:
        return BadEnd(
            mark.record_start,
            f"the record before the durable mark at {mark.offset} is not good: {step.reason}",
        )
    if step.end == mark.offset or cursor.record_at(step.end).end == mark.offset:
        return None
    return BadEnd(
        mark.record_start,
        f"the record before the durable mark ends at {step.end}, not at {mark.offset}",
    )


def _doubt_derived(parts: StoreParts, mark: Mark) -> tuple[str, dict[AnyQueue, int]]:
    """Compare the number of queues and the sum of their offsets at W with the mark, and check that
    the index file that it names exists."""
    if remade := sorted({*mark.remaking, *parts.queues.of_wrong_type()}):
        return f"queues of {', '.join(remade)} were being made again, or have to be", {}
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
    totals = parts.queues.totals(ends)
    return f"queues: {totals[0]} with {totals[1]} messages, the mark says {expected}", {}


def indexes_tags(parts: StoreParts, mark: Mark | None, hand: str) -> bool:
    """True if tags are indexed too: by our mark, else as RocketMQ 5.5.0 does and 5.3 does not.

    The newest tagged record decides, among the searched index entries: the newest of all, and some
    of each file. An index without any may have millions.
    """
    if mark is not None and not hand:
        return mark.index_tags
    if not parts.index.fits():
        return False  # in files of another length the position of an entry is not known
    scanner = crc_scanner(parts.config)
    scanner.index_tags = True
    cursor = LogCursor(parts.log.segments, scanner)
    budget = TAGS_NEWEST
    for file in reversed(parts.index.files):
        last, budget = file.next_entry - 1, max(budget, TAGS_EACH)
        newest = range(last, max(last - budget, 0), -1)
        older = range(last - budget, 0, -max(last // TAGS_EACH, 1))
        budget, before = 0, -1
        for number in (*newest, *older):
            if (offset := file.entry(number)[1]) == before:
                continue
            before = offset
            record = next(iter(cursor.record_at(offset).entries), None)
            if record is not None and record.keys and record.keys[-1].startswith(tag_key("")):
                tag_hash = index_hash(key_state(record.topic, record.keys[-1]))
                return tag_hash in _hashes(file, number)
    return False


def _hashes(file: IndexFile, number: int) -> list[int]:
    """Return the key hashes of all entries of the record that an entry belongs to."""
    offset, first = file.entry(number)[1], number
    while first > 1 and file.entry(first - 1)[1] == offset:
        first -= 1
    hashes = []
    while first < file.next_entry and file.entry(first)[1] == offset:
        hashes.append(file.entry(first)[0])
        first += 1
    return hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedByRocketMQ:
    """A directory that RocketMQ 5.3 stopped cleanly: queues and index are complete."""

    end: int
    record_start: int
    index: tuple[str, Header] | None
    filled_ms: int


def closed_by_rocketmq(parts: StoreParts, checkpoint: Checkpoint) -> ClosedByRocketMQ | None:
    """Return the state of a directory that may be used without a rebuild, else None (store.md 8.6).

    Physic and logics time must be the last record's, the largest queue end the log's end, each
    queue's last unit a record of that queue with that queue offset, and index files as long as our
    maxHashSlotNum and maxIndexNum require.
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
    """Return the good record that begins at `offset`, if there is one."""
    step = _cursor(parts).record_at(offset)
    return step.entries[0] if step.entries else None


def _cursor(parts: StoreParts) -> LogCursor:
    return LogCursor(parts.log.segments, crc_scanner(parts.config))
