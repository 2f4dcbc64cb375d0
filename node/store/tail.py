"""What stands behind the last good record: nothing, a torn tail, or good records (damage).

RocketMQ takes the first bad record for the end of the log and everything behind it is gone (T7).
Here every byte position behind it is searched for records that say they are where they are.
"""

from dataclasses import dataclass

from rocketbed.node.store.cut import is_zero
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import RecordScanner, parse_delay_levels
from rocketbed.wire.message import HEAD

_CHUNK = 4 << 20
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


@dataclass(frozen=True, slots=True)
class Tail:
    """Good records behind a bad one."""

    good_records: int
    first_good: int
    """Physical offset of the first of them, -1 without any."""
    last_store_ms: int


def look_behind(parts: StoreParts, offset: int, *, first_only: bool = False) -> Tail:
    """Search everything behind `offset`, this segment and later ones, for good records.

    `first_only` stops at the first one.
    """
    segments = parts.log.segments
    scanner = RecordScanner(check_crc=True, delays_ms=parse_delay_levels(parts.config.delay_levels))
    good, first, last_ms = 0, -1, 0
    position = offset + 1
    while segments.has(position):
        segment_end = segments.start_of(position) + segments.size
        data = segments.read(position, _CHUNK)
        for at in () if is_zero(data) else _candidates(data):
            start = position + at - 4
            if start <= offset or not segments.has(start):
                continue
            record = segments.read(start, parts.log.record_max)
            if HEAD.size > len(record) or HEAD.unpack_from(record)[6] != start:
                continue
            size = HEAD.unpack_from(record)[0]
            scanned = scanner.scan(record[: max(size, 0)], start, segment_end=segment_end)
            if scanned.entries:
                good += 1
                first = start if first < 0 else first
                last_ms = max(last_ms, scanned.entries[0].store_ms)
                if first_only:
                    return Tail(good, first, last_ms)
        step = len(data) if position + len(data) >= segment_end else len(data) - 3
        position += max(step, 1)
    return Tail(good, first, last_ms)


def _candidates(data: bytes) -> list[int]:
    """Places of a record's magic in `data`."""
    found = []
    for magic in _MAGICS:
        at = data.find(magic)
        while at >= 0:
            found.append(at)
            at = data.find(magic, at + 1)
    return sorted(found)
