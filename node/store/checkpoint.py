"""RocketMQ's own two witnesses of a crash: `checkpoint` and `abort` (store.md 1.3, 1.5).

rocketbed relies on its marks; it maintains both files so that a RocketMQ that gets the directory
dispatches enough again, and so that an interim use by RocketMQ is noticed.
"""

import struct
from dataclasses import dataclass

from rocketbed.node.store.files import read_whole
from rocketbed.world.api import World

CHECKPOINT_SIZE = 4096
_FIELDS = struct.Struct(">6q")
COMPARED = 40
"""Bytes that RocketMQ 5.3 rewrites; the clean mark holds a copy of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The first six fields of the checkpoint file. Times in ms, offsets in bytes."""

    physic_ms: int = 0
    """Store time of a record known to be flushed."""
    logics_ms: int = 0
    """Store time of the last record whose queue unit is durable (here; not upstream, T1)."""
    index_ms: int = 0
    """End time of the last index file that is full and durable."""
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    """Start of the last record below the mark."""
    logics_offset: int = 0
    """5.5.0 only; we leave it 0, so that 5.5.0 uses the times."""

    def encode(self) -> bytes:
        fields = _FIELDS.pack(
            self.physic_ms,
            self.logics_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.logics_offset,
        )
        return fields.ljust(CHECKPOINT_SIZE, b"\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortFile:
    """Contents of `abort`, about the process that left it."""

    pid: str
    """First line, as RocketMQ writes it."""
    store_id: str
    boot_id: str
    """Boot id of the kernel whose page cache the store was in, or that of an earlier process whose
    crash it had not recovered from yet."""

    @property
    def is_empty(self) -> bool:
        """True if it has no contents."""
        return not (self.pid or self.store_id)


class Witnesses:
    """Reads and writes `checkpoint` and `abort` of one root."""

    def __init__(self, world: World, root: str, staging: str) -> None:
        self._world = world
        self._root = root
        self._staging = staging
        self._checkpoint = f"{root}/checkpoint"
        self._abort = f"{root}/abort"

    def checkpoint_bytes(self) -> bytes:
        """Return the first 40 bytes of the checkpoint; zeros if there is none."""
        return (read_whole(self._world, self._checkpoint) or b"")[:COMPARED].ljust(COMPARED, b"\0")

    def load_checkpoint(self) -> Checkpoint:
        """Return the checkpoint; a missing one reads as zeros."""
        data = (read_whole(self._world, self._checkpoint) or b"")[: _FIELDS.size].ljust(
            _FIELDS.size, b"\0"
        )
        values = _FIELDS.unpack(data)
        return Checkpoint(
            physic_ms=values[0],
            logics_ms=values[1],
            index_ms=values[2],
            master_flushed_offset=values[3],
            confirm_offset=values[4],
            logics_offset=values[5],
        )

    async def store_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Overwrite the checkpoint, durably. It is one page, and never ahead of the truth."""
        fresh = not self._world.disk.exists(self._checkpoint)
        file = self._world.disk.open(self._checkpoint, create=True)
        try:
            file.write_at(0, checkpoint.encode())
            self._world.mark("store.checkpoint_written")
            await file.sync()
        finally:
            file.close()
        if fresh:
            await self._world.disk.sync_dir(self._root)

    def load_abort(self) -> AbortFile | None:
        """Return the abort file; None if the last stop was clean. Any text will do (store.md
        1.3)."""
        data = read_whole(self._world, self._abort)
        if data is None:
            return None
        lines = data.decode(errors="replace").splitlines()
        fields = dict(line.partition("=")[::2] for line in lines[1:])
        return AbortFile(
            pid=lines[0] if lines else "",
            store_id=fields.get("uuid", ""),
            boot_id=fields.get("boot_id", ""),
        )

    async def store_abort(self, store_id: str, boot_id: str | None = None) -> None:
        """Write the abort file, durably, before anything else changes. Raises `OSError`.

        `boot_id`: another kernel's than ours. It gets its name once it is whole: an empty one would
        count as another broker's.
        """
        process, disk = self._world.process, self._world.disk
        boot = process.boot_id if boot_id is None else boot_id
        text = f"{process.pid}\nuuid={store_id}\nboot_id={boot}\n".encode()
        disk.makedirs(self._staging)
        temporary = f"{self._staging}/abort.new"
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = disk.open(temporary, create=True)
        try:
            file.write_at(0, text)
            await file.sync()
        finally:
            file.close()
        disk.rename(temporary, self._abort)
        await disk.sync_dir(self._root)
        self._world.mark("store.abort_created")

    async def remove_abort(self) -> None:
        """Remove the abort file: the very last act of a clean stop."""
        self._world.disk.unlink(self._abort)
        self._world.mark("store.abort_removed")
        await self._world.disk.sync_dir(self._root)
