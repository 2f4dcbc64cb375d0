"""Rules for the deletions of a retention time: pure functions of a log's segments.

They are the node's rules (store.md 9, T16): a segment is deleted when the first record of the next
segment, which is at least as young as its own last record, is older than the retention time.
Deletion begins with the oldest segment and ends at the first one that has to stay; the newest
segment always stays. RocketMQ itself uses the file's modification time, the time of its last write,
with the same result unless files were copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUse:
    """Usage of a file of a broker's log. Times in milliseconds; None for a file without records."""

    broker: str
    segment: int
    """First offset of the file."""
    messages: int
    bytes: int
    """Total size of its records."""
    file_bytes: int
    """Bytes that its deletion frees."""
    first_ms: int | None
    """Store time of its first record."""
    oldest_ms: int | None
    youngest_ms: int | None


def expired(segments: Sequence[SegmentUse], *, hours: float, now_ms: int) -> int:
    """Return the number of a broker's segments, oldest first, that would be deleted now."""
    count = 0
    for after in segments[1:]:
        if after.first_ms is None or after.first_ms + hours * HOUR_MS > now_ms:
            break
        count += 1
    return count


def retention_row(segments: Sequence[SegmentUse], *, hours: float, now_ms: int) -> dict[str, Any]:
    """Return the totals that a retention time would delete and keep, over all brokers."""
    deleted: list[SegmentUse] = []
    remaining: list[SegmentUse] = []
    for broker in sorted({segment.broker for segment in segments}):
        row = sorted(
            (segment for segment in segments if segment.broker == broker),
            key=lambda segment: segment.segment,
        )
        count = expired(row, hours=hours, now_ms=now_ms)
        deleted += row[:count]
        remaining += row[count:]
    oldest = [segment.oldest_ms for segment in remaining if segment.oldest_ms is not None]
    return {
        "hours": hours,
        "deleted_segments": len(deleted),
        "deleted_messages": sum(segment.messages for segment in deleted),
        "deleted_bytes": sum(segment.bytes for segment in deleted),
        "freed_file_bytes": sum(segment.file_bytes for segment in deleted),
        "kept_segments": len(remaining),
        "kept_messages": sum(segment.messages for segment in remaining),
        "kept_bytes": sum(segment.bytes for segment in remaining),
        "oldest_kept_ms": min(oldest, default=None),
    }


def key_row(
    topic: str, *, messages: int, total: int, keyed: int, keyed_bytes: int, keys: int, last: int
) -> dict[str, Any]:
    """Return the effect of compaction on a topic.

    Compaction keeps the last message of each key, and messages without a key. `total`,
    `keyed_bytes` and `last` are the bytes of all messages, of those with a key, and of the last
    message of each key.
    """
    saved = keyed_bytes - last
    return {
        "topic": topic,
        "messages": messages,
        "bytes": total,
        "keyed_messages": keyed,
        "keys": keys,
        "compactable_messages": keyed - keys,
        "compactable_bytes": saved,
        "compactable_share": round(saved / total, 4) if total else 0.0,
    }
