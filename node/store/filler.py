"""Closing a hole in the log with one record that enters neither queue nor index (store.md 8.6).

Only on the operator's order. The damaged bytes become the body of a rolled-back record, so that
they are preserved, and everything after the hole stays in place.
"""

from rocketbed.node.store.errors import DamagedLog
from rocketbed.node.store.parts import StoreParts
from rocketbed.wire.message import (
    MAGIC_V1,
    RECORD_MIN,
    RECORD_V4,
    TRANSACTION_ROLLBACK,
    body_crc,
)

FILLER_TOPIC = b"!"
FILLER_MIN = RECORD_MIN + len(FILLER_TOPIC)
"""Bytes of the smallest filler record."""


async def fill_hole(parts: StoreParts, start: int, end: int) -> None:
    """Replace [start, end), within one segment, by a filler record, durably.

    Raises `DamagedLog` when the hole is too small for one or crosses segments.
    """
    segments = parts.log.segments
    size = end - start
    if size < FILLER_MIN or segments.start_of(start) != segments.start_of(end - 1):
        raise DamagedLog(
            f"the hole from {start} to {end} cannot hold a filler record (at least {FILLER_MIN}"
            " bytes within one segment); restore it from a replica",
            offset=start,
        )
    body = segments.read(start + RECORD_V4.size, size - FILLER_MIN)
    host = parts.log.tail.store_host_bytes[:8]
    store_ms = parts.log.last_store_ms
    head = RECORD_V4.pack(
        size, MAGIC_V1, body_crc(body), 0, 0, 0, start, TRANSACTION_ROLLBACK, store_ms, host,
        store_ms, host, 0, 0, len(body),
    )  # fmt: skip
    record = head + body + bytes((len(FILLER_TOPIC),)) + FILLER_TOPIC + b"\0\0"
    assert len(record) == size
    segments.write(start, record)
    await segments.sync(segments.start_of(start))
