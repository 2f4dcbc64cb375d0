from array import array
from collections.abc import Callable

from rocketbed.node.store.entry import Entry

SOURCE: str

def scan(
    buffer: bytes,
    position: int,
    base: int,
    segment_end: int,
    check_crc: bool,
    topics: dict[bytes, str],
    shapes: dict[bytes, tuple[int, tuple[str, ...]]],
    tag_and_keys: Callable[[bytes], tuple[int, tuple[str, ...]]],
    entries: list[Entry],
    /,
) -> int:
    """Append the entries of plain records of `buffer` from `position` on; return their end."""

def put_keys(
    waiting: list[Entry],
    first: int,
    done: int,
    pages: dict[int, array[int]],
    dirty: dict[int, None],
    buffer: bytearray,
    slots: int,
    room: int,
    number: int,
    begin_ms: int,
    end_offset: int,
    end_ms: int,
    /,
) -> tuple[int, int, int, int, int, int, int]:
    """Put keys until the file is full or a page is missing. Return `first`, `done` and `number` of
    that moment, slots newly used, offset and time of the last record, and the page or -1."""
