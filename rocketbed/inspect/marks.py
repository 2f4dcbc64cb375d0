"""Rocketbed's marks beside RocketMQ's files, and the test whether they can be trusted.

`rocketbed.ckpt` records the file sizes of the directory and the deleted topics, among others;
`rocketbed.flushed` records up to which offset the log was on disk (F). They are valid only while no
other program has written to the directory: `abort` must carry the same id, or the last stop must
have been rocketbed's and clean (store.md 8.6).
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import crcmod.predefined

CKPT_NAME = "rocketbed.ckpt"
FLUSHED_NAME = "rocketbed.flushed"
_FIRST_LINE = b"rocketbed-ckpt 1"
_FLUSHED = struct.Struct(">qQ")
_INDEX_OFF = "it was switched off (messageIndexEnable=false) meanwhile"
"""Reason in the mark for an index that lacks entries, because nodes ran with it switched off."""
_COMPARED = 40
"""Bytes of `checkpoint` that a clean stop records."""
crc32c: Callable[[bytes], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
SIZE_NAMES = (
    "segment_size",
    "queue_segment_size",
    "batch_queue_segment_size",
    "index_slots",
    "index_entries",
)
"""Names, as in `Settings`, of the numbers in the mark's `sizes`, in order."""


@dataclass(frozen=True, slots=True)
class Marks:
    store_id: str
    durable_offset: int
    """W: log, queues and index are on disk up to this offset."""
    flushed_offset: int | None
    """F: the log is on disk up to this offset; None when unknown."""
    cut_to: int | None
    """Target of a truncation that was not finished."""
    trusted: bool
    """True if no other program has written to the directory since."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the directory's files, by the names of `Settings`."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Topics that were deleted, each with the end of the log at that moment."""
    first: int = -1
    """Start of the log after the last retention; -1 in marks that do not record it."""
    index_tags: bool = False
    """True if the index holds tags too."""
    index: str = ""
    """Name of the newest index file at W; empty if there was none."""
    index_off: bool = False
    """True if a node has since written without an index; the next start with one rebuilds it."""
    remaking: tuple[str, ...] = ()
    """Topics whose queues are being rebuilt from the log."""
    is_replica: bool = False
    """True if the node followed a master, whose table it copies."""


def read_marks(
    ckpt: bytes, flushed: bytes, *, abort_lines: list[str] | None, checkpoint: bytes
) -> Marks | None:
    """Parse the marks from the contents of their files; None when there is no complete, valid mark.

    `abort_lines` are the lines of `abort`, None without the file.
    """
    lines = ckpt.split(b"\n")
    if len(lines) != 4 or lines[0] != _FIRST_LINE or lines[2] != b"%08x" % crc32c(lines[1]):
        return None
    try:
        document: dict[str, Any] = json.loads(lines[1])
        store_id, clean = str(document["id"]), document["clean"]
        if abort_lines is None:
            remembered = checkpoint[:_COMPARED].ljust(_COMPARED, b"\0")
            trusted = clean is not None and clean == remembered.hex()
        else:
            trusted = f"uuid={store_id}" in abort_lines
        return Marks(
            store_id=store_id,
            durable_offset=int(document["w"]),
            flushed_offset=_flushed(flushed),
            cut_to=document["cut"],
            trusted=trusted,
            sizes=dict(zip(SIZE_NAMES, map(int, document["sizes"]), strict=False)),
            deleted={str(topic): int(at) for topic, at in document["deleted"].items()},
            first=int(document.get("first", -1)),
            index_tags=bool(document.get("index_tags")),
            index=str((document.get("index") or [""])[0]),
            index_off=document.get("index_damage") == _INDEX_OFF,
            remaking=tuple(map(str, document.get("remaking", ()))),
            is_replica=document.get("followed", "") != "",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _flushed(data: bytes) -> int | None:
    if len(data) != _FLUSHED.size:
        return None
    offset, crc = _FLUSHED.unpack(data)
    return int(offset) if offset >= 0 and crc == crc32c(data[:8]) else None
