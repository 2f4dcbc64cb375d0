"""Files of the preloaded shim: rules, trace of syncs, table of written ends.

The other half of this format is `shim.c`. A rule is one line:

    id=3 sync error errno=5 skip=0 times=1 path=*commitlog*

The trace has one line an event, times in nanoseconds of CLOCK_MONOTONIC:

    B time pid                       a process began
    F time pid began end path        a sync of a file succeeded; `end`: written when it began
    D time pid began 0 path          a sync of a directory succeeded
    L, E time pid began end path     a sync that lied, a sync that failed
    X time pid rule operation path   a rule was met

The table is mapped by the process, so what it says survives SIGKILL.
"""

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

MAGIC: Final = 0x31544252
SLOTS: Final = 4096
HEADER: Final = struct.Struct("=IIQQ488x")
"""Magic, slots, number of the rules, events so far."""
SLOT: Final = struct.Struct("=QQQQQQ464s")
"""Device, inode, written end, synced end, time of that sync, reserved, path."""
TABLE_SIZE: Final = HEADER.size + SLOTS * SLOT.size
RULES_NUMBER_AT: Final = 8

RULES_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRule:
    """Fault: which operation, on which file, when, and what happens.

    `error` fails with `error`; `lose` returns success and does nothing (a sync); `delay` waits
    `delay_ms` first; `crash` dies before the operation happens.
    """

    operation: Literal["*", "sync", "write", "allocate", "read"] = "*"
    """`*` is any change of a file or of names, and every sync, but not a read, which must be named
    and can only fail."""
    effect: Literal["error", "lose", "delay", "crash"] = "error"
    error: int = errno.EIO
    path: str = "*"
    """Pattern of absolute paths, as a shell writes it; `*` matches slashes too."""
    skip: int = 0
    """Matching calls to let pass first: `crash` with skip N-1 dies at the N-th."""
    times: int | None = None
    """Number of times that it applies; None for no limit."""
    delay_ms: int = 0
    after_bytes: int = 0
    """Bytes of writes to let pass first, the last one cut short (for a disk that fills)."""

    def line(self, number: int) -> str:
        words = [
            f"id={number}",
            "any" if self.operation == "*" else self.operation,
            self.effect,
            f"errno={self.error}",
            f"skip={self.skip}",
            f"delay_ms={self.delay_ms}",
            f"after_bytes={self.after_bytes}",
        ]
        if self.times is not None:
            words.append(f"times={self.times}")
        return f"{' '.join(words)} path={self.path}\n"


@dataclass(frozen=True, slots=True)
class FlushRecord:
    kind: str
    """`file` or `directory`; `lost` (reported done, not done) or `failed`."""
    time_ns: int
    """Time of its return, CLOCK_MONOTONIC."""
    began_ns: int
    """Time of its call."""
    pid: int
    end: int
    """End of the data written to the file when it began, bytes; up to here it is durable now."""
    path: str


FLUSH_KINDS: Final = {"F": "file", "D": "directory", "L": "lost", "E": "failed"}


def read_flush_trace(path: Path) -> list[FlushRecord]:
    """Return every sync in a trace, in the order they returned; empty if there is no trace yet."""
    return [
        FlushRecord(FLUSH_KINDS[kind], int(time), int(began), int(pid), int(end), name)
        for kind, time, pid, began, end, name in trace_rows(path)
        if kind in FLUSH_KINDS
    ]


def trace_rows(path: Path) -> Iterator[list[str]]:
    """Yield lines of six fields; an incomplete last line is left out."""
    try:
        text = os.fsdecode(path.read_bytes())
    except FileNotFoundError:
        return
    for line in text.split("\n")[:-1]:
        row = line.split(" ", 5)
        if len(row) == 6:
            yield row


def new_table(path: Path) -> None:
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, SLOTS, 1, 0))
        file.truncate(TABLE_SIZE)
