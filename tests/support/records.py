"""Heads of records of a log, by the format alone."""

from rocketbed.wire.message import HEAD

SIZE = 96


def record_head(start: int, stored_ms: int) -> bytes:
    """Return the beginning of a record at this offset with hosts of IPv4."""
    head = bytearray(HEAD.size + SIZE)
    head[0:8] = SIZE.to_bytes(4, "big") + b"\xda\xa3\x20\xa7"
    head[28:36], head[56:64] = start.to_bytes(8, "big"), stored_ms.to_bytes(8, "big")
    return bytes(head)
