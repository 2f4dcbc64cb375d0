"""Open files and locks of a simulated disk."""

import errno
from typing import TYPE_CHECKING

from rocketbed.chaos.sim.faults import disk_error
from rocketbed.chaos.sim.inode import PAGE, Inode

if TYPE_CHECKING:
    from rocketbed.chaos.sim.disk import SimDisk


class SimFile:
    def __init__(self, disk: "SimDisk", path: str, inode: Inode, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._closed = False

    def size(self) -> int:
        self._check()
        return self._inode.length

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`."""
        self._check()
        if self._disk.faults:
            self._disk.reads(self.path)
        return self._inode.read(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """The same, or None now and then (`SimDisk.cold_share`)."""
        self._check()
        if self._disk.is_cold():
            return None
        return self.read_at(offset, size)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write into the cache; short with ENOSPC under a quota."""
        self._check_writable()
        disk, inode = self._disk, self._inode
        size = len(data)
        if disk.crash_at is not None and disk.is_crash_point():
            self._write_partly(offset, data)
            raise disk.crash()
        disk.event("write", self.path, offset, size)
        if disk.quota is not None and disk.room(inode, offset + size) < offset + size:
            whole_pages = disk.room(inode, offset + size) // PAGE * PAGE
            inode.write(offset, memoryview(data)[: max(0, whole_pages - offset)])
            raise disk_error(errno.ENOSPC, self.path)
        inode.write(offset, data)
        disk.stamp(inode)

    def allocate(self, size: int) -> None:
        self._check_writable()
        disk, inode = self._disk, self._inode
        if size <= inode.length:
            inode.allocate(size)
            return
        disk.event("allocate", self.path, 0, size)
        if disk.room(inode, size) < size:
            raise disk_error(errno.ENOSPC, self.path)
        inode.allocate(size)
        disk.stamp(inode)

    def truncate(self, size: int) -> None:
        self._check_writable()
        if size != self._inode.length:
            self._disk.event("truncate", self.path, 0, size)
            self._inode.truncate(size)
            self._disk.stamp(self._inode)

    def zero(self, offset: int, size: int) -> None:
        """Make a range within the file read as zeros."""
        self._check_writable()
        self._disk.event("zero", self.path, offset, size)
        self._inode.zero(offset, size)
        self._disk.stamp(self._inode)

    def punch(self, offset: int, size: int) -> None:
        """The same; the model does not count blocks inside a file."""
        self.zero(offset, size)

    async def sync(self) -> None:
        """Make durable what is dirty now."""
        self._check()
        await self._disk.sync_inode(self.path, self._inode)

    def has_name(self) -> bool:
        self._check()
        return self._inode.links > 0

    def modified_ms(self) -> int:
        self._check()
        return self._inode.modified_ms

    def set_modified_ms(self, wall_ms: int) -> None:
        self._check()
        self._inode.modified_ms = wall_ms

    def read_ahead(self, offset: int, size: int) -> None:
        """Nothing to do: all is in memory."""
        self._check()

    def close(self) -> None:
        """Close; what is not synced stays in the cache."""
        self._closed = True

    def _check(self) -> None:
        self._disk.fate.check()
        if self._closed:
            raise ValueError(f"{self.path} is closed")

    def _check_writable(self) -> None:
        self._check()
        if not self._writable:
            raise disk_error(errno.EBADF, self.path)

    def _write_partly(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """The write that the process dies in."""
        view = memoryview(data)
        if self._disk.crash_kind == "kill":
            first = PAGE - offset % PAGE
            ends = range(first, len(view), PAGE)
            view = view[: self._disk.random.choice((0, *ends))]
        self._inode.write(offset, view)


class SimLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)
