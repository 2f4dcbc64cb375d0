"""Whether the durable mark of a directory can be trusted (store.md 8.6, Boot).

Pure reading: nothing is changed here. Another broker, a restore from a backup or an operator may
have changed the directory since we wrote the mark; any trace of that invalidates the mark.
"""

from dataclasses import dataclass

from rocketbed.node.store.checkpoint import AbortFile, Checkpoint
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.indexfile import Header
from rocketbed.node.store.marks import Mark
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.queues import AnyQueue
from rocketbed.node.store.scan import RecordScanner, Scanned, Stop, parse_delay_levels

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a boot finds, and what it concludes."""

    mark: Mark | None
    """The stored mark, trusted or not."""
    trusted: bool
    reason: str
    """Why the mark is not trusted."""
    was_clean: bool
    """No abort file: the last stop was clean, or another broker's was."""
    same_boot: bool
    """Our abort file from this boot of the kernel: the page cache is still what it was."""
    flushed: int
    """F: the log is known to be on disk up to here; `UNKNOWN` if nothing is known."""
    ends: dict[AnyQueue, int]
    """Units to keep of each queue, when trusted."""
    deleted: dict[str, int]
    """The mark's deleted topics, where the log below it is the one it was written for."""


def gather(parts: StoreParts) -> Evidence:
    """Read the witnesses and weigh them."""
    mark = parts.marks.load()
    abort = parts.witnesses.load_abort()
    flushed = parts.marks.load_flushed()
    ends: dict[AnyQueue, int] = {}
    reason = _doubt(parts, mark, abort)
    if mark is not None and not reason:
        reason, ends = _doubt_units(parts, mark)
    trusted = mark is not None and not reason
    same_boot = (
        trusted
        and abort is not None
        and abort.boot_id == parts.world.process.boot_id
        and parts.config.trust_page_cache
    )
    if mark is None or not trusted or flushed is None:
        known = mark.offset if mark is not None and trusted else UNKNOWN
    else:
        # F is overwritten without fsync, so an old value may be found; W is a lower bound too.
        known = max(flushed, mark.offset)
    return Evidence(
        mark=mark,
        trusted=trusted,
        reason=reason,
        was_clean=abort is None,
        same_boot=same_boot,
        flushed=known,
        ends=ends,
        deleted=mark.deleted if mark is not None and not _doubt_record(parts, mark) else {},
    )


def _doubt(parts: StoreParts, mark: Mark | None, abort: AbortFile | None) -> str:
    """Why the mark cannot be trusted; empty if it can."""
    if mark is None:
        return "there is no durable mark of rocketbed here"
    if abort is not None:
        if abort.store_id != mark.store_id:
            return "the abort file is another broker's"
    elif mark.clean is None or mark.clean != parts.witnesses.checkpoint_bytes().hex():
        return "there is no abort file, and no clean stop of rocketbed either"
    if not parts.index.has_marked(mark.index):
        return "an index file was removed"
    return _doubt_record(parts, mark)


def _doubt_record(parts: StoreParts, mark: Mark) -> str:
    """The last record below W must be there, good, and end at W (or at a blank one before it)."""
    log = parts.log
    if mark.record_start < log.min_offset:
        at_beginning = not log.segments.starts or mark.offset <= log.min_offset
        return "" if at_beginning else "the log begins above the durable mark's record"
    if not log.segments.has(mark.record_start):
        return f"the log does not reach the durable mark at {mark.offset}"
    scanned = _scan_at(parts, mark.record_start)
    segment_end = log.segments.start_of(mark.record_start) + log.segment_size
    if not scanned.entries:
        return f"the record before the durable mark at {mark.offset} is not good: {scanned.reason}"
    end = scanned.entries[0].physical_offset + scanned.entries[0].size
    rolled = mark.offset == segment_end and len(scanned.entries) == 1 and scanned.stop is Stop.BLANK
    if end != mark.offset and not rolled:
        return f"the record before the durable mark ends at {end}, not at {mark.offset}"
    return ""


def _doubt_units(parts: StoreParts, mark: Mark) -> tuple[str, dict[AnyQueue, int]]:
    """Number of queues and sum of their offsets at W must be what the mark says."""
    expected = (mark.queue_count, mark.queue_total)
    for thorough in (False, True):
        ends = parts.queues.find_ends(mark.offset, thorough=thorough, deleted=mark.deleted)
        if parts.queues.totals(ends) == expected:
            return "", ends
    found = parts.queues.totals(ends)
    return f"queues: {found[0]} with {found[1]} messages, the mark says {expected}", {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedByRocketMQ:
    """A directory that RocketMQ 5.3 stopped cleanly: queues and index are complete."""

    end: int
    record_start: int
    index: tuple[str, Header] | None
    filled_ms: int


def closed_by_rocketmq(parts: StoreParts, checkpoint: Checkpoint) -> ClosedByRocketMQ | None:
    """Whether the directory may be taken as it is, without a rebuild (store.md 8.6).

    Physic and logics time must be the last record's, the largest queue end the log's end, and
    each queue's last unit a record of that queue with that queue offset.
    """
    if checkpoint.physic_ms == 0 or checkpoint.physic_ms != checkpoint.logics_ms:
        return None
    largest: tuple[int, int] | None = None
    for queue in parts.queues.all():
        queue.end_unit = queue.find_end(1 << 62, thorough=True)
        last = queue.last_unit()
        queue_offset = queue.offset_after(queue.end_unit)
        if last is None:
            continue
        entry = _record(parts, last[0], last[1])
        if entry is None or entry.size != last[1]:
            return None
        after = entry.queue_offset + (entry.units if entry.units > 0 else -entry.units)
        if (entry.topic, entry.queue_id, after) != (queue.topic, queue.queue_id, queue_offset):
            return None
        largest = max(largest or (-1, 0), (last[0], last[1]))
    if largest is None:
        return None
    record_start, end = largest[0], largest[0] + largest[1]
    entry = _record(parts, record_start, largest[1])
    if entry is None or entry.store_ms != checkpoint.physic_ms or _record(parts, end) is not None:
        return None
    return ClosedByRocketMQ(
        end=end,
        record_start=record_start,
        index=parts.index.mark(),
        filled_ms=checkpoint.index_ms,
    )


def _record(parts: StoreParts, offset: int, size: int = 0) -> Entry | None:
    """The good record that begins at `offset`, if there is one."""
    if not parts.log.segments.has(offset):
        return None
    scanned = _scan_at(parts, offset, size)
    return scanned.entries[0] if scanned.entries else None


def _scan_at(parts: StoreParts, offset: int, size: int = 0) -> Scanned:
    """Scan from `offset`: `size` bytes, or as many as the longest record and a blank one take."""
    scanner = RecordScanner(check_crc=True, delays_ms=parse_delay_levels(parts.config.delay_levels))
    segment_end = parts.log.segments.start_of(offset) + parts.log.segment_size
    data = parts.log.segments.read(offset, size or parts.log.record_max + 8)
    return scanner.scan(data, offset, segment_end=segment_end)
