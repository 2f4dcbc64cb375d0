"""Damage of a store at rest: kinds, files and fields. Source: chaos.md 3.2."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketbed.node.store.marks import CKPT_NAME

FIELDS: Final = {
    "size": (0, 4),
    "magic": (4, 4),
    "crc": (8, 4),
    "queue-id": (12, 4),
    "queue-offset": (20, 8),
    "offset": (28, 8),
    "time": (56, 8),
    "body-length": (84, 4),
    "body": (88, 1),
}
"""(position, length) in bytes of the fields of a record. The topic follows the body."""
APPEND_CRC: Final = "enabledAppendPropCRC"
FILES: Final = {
    "log": "commitlog/*",
    "queue": "*consumequeue/*",
    "index": "index/*",
    "mark": CKPT_NAME,
    "flushed": "rocketbed.flushed",
    "checkpoint": "checkpoint",
}
"""Patterns of the paths of each kind of file; `batchconsumequeue` is a queue's too."""
DERIVED: Final = ("queue", "index", "checkpoint")
"""Files that a node can rebuild from its log."""
KINDS: Final = ("flip", "zero", "truncate", "delete", "old", "misdirect", "stray")
STRAYS: Final = (
    "commitlog/5",
    "commitlog/.DS_Store",
    "consumequeue/.DS_Store",
    "index/20251120",
    "notes.txt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    kind: str
    """One of `KINDS`."""
    where: str = ""
    """A key of `FILES`, for `flip` a key of `FIELDS` or `topic`."""
    last: bool = False
    """True for the last record or file; else any."""


class Hit(NamedTuple):
    place: str = ""
    """A file and the place in it; empty if there was nothing to hit."""
    is_unseen: bool = False
    """True if neither a checksum nor a derived file can reveal it."""
