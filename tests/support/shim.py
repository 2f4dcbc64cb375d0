"""Counters of the preloaded library, beside its trace of syncs (`shim.c` of the process backend).

The table is mapped by the process, so what it says survives SIGKILL.
"""

import os
import struct
from dataclasses import dataclass

from rocketbed.chaos.backends.process.disk.faults import DiskFaults
from rocketbed.chaos.backends.process.disk.format import HEADER, MAGIC, SLOT, TABLE_SIZE, trace_rows

EVENTS_AT = 16
GONE = (1 << 64) - 1
"""Device of a slot whose file has no name any more."""


@dataclass(frozen=True)
class Fired:
    time_ns: int
    pid: int
    rule: int
    """Its number: the position in all the rules ever set, from 1."""
    operation: str
    path: str


@dataclass(frozen=True)
class WrittenEnd:
    """Bytes of a file that have been written and synced."""

    written: int
    synced: int
    synced_ns: int
    """When that sync returned, CLOCK_MONOTONIC; 0: none yet."""


def fired(faults: DiskFaults) -> list[Fired]:
    """Each time a rule was met."""
    return [
        Fired(int(time), int(pid), int(rule), operation, name)
        for kind, time, pid, rule, operation, name in trace_rows(faults.trace_path)
        if kind == "X"
    ]


def events(faults: DiskFaults) -> int:
    """Calls of the latest start that rules could have met: crash points up to now."""
    return int(struct.unpack_from("=Q", _table(faults), EVENTS_AT)[0])


def written_ends(faults: DiskFaults) -> dict[str, WrittenEnd]:
    """Ends of the files that the latest start has written, by path, even after its SIGKILL."""
    rows = SLOT.iter_unpack(_table(faults)[HEADER.size :])
    return {
        os.fsdecode(name.rstrip(b"\0")): WrittenEnd(written, synced, time_ns)
        for device, inode, written, synced, time_ns, _, name in rows
        if inode and device != GONE
    }


def _table(faults: DiskFaults) -> bytes:
    data = faults.table_path.read_bytes()
    assert len(data) == TABLE_SIZE
    assert HEADER.unpack_from(data)[0] == MAGIC
    return data
