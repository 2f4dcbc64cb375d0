"""A disk in memory that dies exactly at the chosen event.

The fault model. A write is in the page cache when it returns: SIGKILL loses none of it. A power cut
keeps each unsynced 512-byte sector or not, by mode (`chaos.backends.sim.inode`), and each unsynced
change of names or not (`chaos.backends.sim.namespace`); so a file created without a sync of its
directory vanishes, is empty, or is complete. A sync covers what was dirty when it was called, once
it returns. `random` is the harsh model a store must survive; `prefix` is close to ext4 with
data=ordered. tests/support/sim/disk_outcomes.py spells out what may be lost, and real ext4 is held
to it (tests/property/test_disk_against_ext4.py).

Every change of the disk is an event and is counted, in synchronous code too. `crash_at` names the
event before which the process dies: running a workload once to count the events, then once for
each, visits every crash point there is. Under `kill` the event itself does not happen, except that
the first part of a write across pages may; under `power` it has just been handed to the cache.
"""

import errno
from collections.abc import Callable, Sequence
from posixpath import normpath
from random import Random

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.faults import SimFault, disk_error
from rocketbed.chaos.backends.sim.incarnation import Life, SimKilled
from rocketbed.chaos.backends.sim.inode import PAGE, Inode
from rocketbed.chaos.backends.sim.namespace import Change, Namespace, split
from rocketbed.world.api import DiskUsage, File, Lock

DEFAULT_SIZE = 1 << 40
"""Bytes of the file system when no quota is set."""


class SimDisk:
    """Disk of one incarnation. Restart by making the next one from `image()`."""

    def __init__(
        self,
        image: DiskImage | None = None,
        *,
        random: Random | None = None,
        life: Life | None = None,
        wall_ms: Callable[[], int] | None = None,
        sync_seconds: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.life = life or Life()
        self.random = random or Random(0)
        self.sync_seconds = sync_seconds
        """Least and greatest duration of a sync, drawn evenly."""
        self.events = 0
        """Number of events so far."""
        self.crash_at: int | None = None
        """Die before the event of this number (the first is 1)."""
        self.crash_kind = "kill"
        self.crash_mode = "random"
        self.faults: list[SimFault] = []
        """Tried in this order."""
        self.quota: int | None = None
        """Bytes of the file system; beyond it ENOSPC."""
        self.read_only = False
        self.cold_share = 0.0
        """Share of cached reads that miss the cache."""
        self.open_files = 0
        self.descriptors: int | None = None
        """Limit of open files; None for no limit."""
        self.observer: Callable[[str, str, int, int], None] | None = None
        """Called with each event before it happens: kind, path, offset, size."""
        self.burn: Callable[[float], None] = lambda seconds: None
        """Makes a synchronous call take time (seconds), if an engine can do that."""
        self._names = image.namespace() if image is not None else Namespace()
        self.wall_ms = wall_ms or (lambda: 0)
        self._locked: set[str] = set()

    # What a node uses.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> "SimFile":
        """Open a file; creating one is an event."""
        self.life.check()
        path = normpath(path)
        if self.descriptors is not None and self.open_files >= self.descriptors:
            raise disk_error(errno.EMFILE, path)
        inode = self._names.visible.files.get(path)
        if inode is None:
            if path in self._names.visible.children:
                raise disk_error(errno.EISDIR, path)
            if not create or split(path)[0] not in self._names.visible.children:
                raise disk_error(errno.ENOENT, path)
            inode = Inode(modified_ms=self.wall_ms())
            self._change(Change("create", path, inode=inode))
        elif self.read_only and writable:
            raise disk_error(errno.EROFS, path)
        return SimFile(self, path, inode, writable)

    def exists(self, path: str) -> bool:
        self.life.check()
        path = normpath(path)
        return path in self._names.visible.files or path in self._names.visible.children

    def is_dir(self, path: str) -> bool:
        self.life.check()
        return normpath(path) in self._names.visible.children

    def is_file(self, path: str) -> bool:
        self.life.check()
        return normpath(path) in self._names.visible.files

    def listdir(self, path: str) -> list[str]:
        self.life.check()
        path = normpath(path)
        if path in self._names.visible.files:
            raise disk_error(errno.ENOTDIR, path)
        return sorted(self._names.visible.children.get(path, ()))

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents; an event for each that is new."""
        self.life.check()
        path = normpath(path)
        if path in self._names.visible.children:
            return
        if path in self._names.visible.files:
            raise disk_error(errno.EEXIST, path)
        self.makedirs(split(path)[0])
        self._change(Change("mkdir", path))

    def rename(self, old: str, new: str) -> None:
        """Rename a file. A directory moves too, and durably at once: no power cut undoes it, which
        is one of the outcomes that a real disk may have."""
        self.life.check()
        old, new = normpath(old), normpath(new)
        names = self._names.visible
        if split(new)[0] in names.files:
            raise disk_error(errno.ENOTDIR, new)
        if new in names.children:
            raise disk_error(errno.EISDIR, new)
        if old in names.children and new not in names.files:
            self.event("rename", old, reported_as=new)
            self._names.move_directory(old, new)
            return
        if old not in names.files or split(new)[0] not in names.children:
            raise disk_error(errno.ENOENT, old)
        inode = names.files[old]
        replaced = names.files.get(new)
        self._change(Change("rename", old, new, inode))
        if replaced is not None and replaced is not inode:
            replaced.links = 0

    def unlink(self, path: str) -> None:
        self.life.check()
        path = normpath(path)
        inode = self._names.visible.files.get(path)
        if inode is None:
            raise disk_error(errno.ENOENT, path)
        self._change(Change("unlink", path, inode=inode))
        inode.links = 0

    def rmdir(self, path: str) -> None:
        self.life.check()
        path = normpath(path)
        children = self._names.visible.children.get(path)
        if children is None:
            raise disk_error(errno.ENOENT, path)
        if children:
            raise disk_error(errno.ENOTEMPTY, path)
        self._change(Change("rmdir", path))

    async def sync_files(self, files: Sequence[File]) -> None:
        for file in files:
            await file.sync()

    async def sync_dir(self, path: str) -> None:
        self.life.check()
        path = normpath(path)
        if path not in self._names.visible.children:
            raise disk_error(errno.ENOENT, path)
        self.event("sync_dir", path)
        changes = self._names.changes_in(path)
        effect = await self.pass_time("sync_dir", path)
        self.event("sync_dir_end", path)
        if effect != "lose":
            self._names.make_durable(changes)

    def lock(self, path: str) -> Lock | None:
        """Lock a file, created if absent; unlocked when the process dies."""
        file = self.open(path, create=True)
        if file.path in self._locked:
            file.close()
            return None
        file.write_at(0, b"lock")
        self._locked.add(file.path)
        return SimLock(self._locked, file.path, file)

    def lock_dir(self, path: str) -> Lock | None:
        """Lock a directory; unlocked when the process dies."""
        self.life.check()
        path = normpath(path)
        if path in self._locked:
            return None
        self._locked.add(path)
        return SimLock(self._locked, path)

    def usage(self, path: str) -> DiskUsage:
        self.life.check()
        total = DEFAULT_SIZE if self.quota is None else self.quota
        free = max(0, total - self.allocated())
        return DiskUsage(total=total, free=free, read_only=self.read_only)

    # What a harness uses; none of it asks whether the process lives.

    def image(self) -> DiskImage:
        return DiskImage(self._names.clone())

    def power_cut(self, mode: str = "random") -> int:
        """Cut the power. Return the number of sectors and name changes that were lost."""
        self.life.die("power")
        lost = self._names.lose_power(mode, self.random)
        for path in sorted(self._names.visible.files):
            inode = self._names.visible.files[path]
            inode.links = 1
            lost += inode.lose_power(mode, self.random)
        return lost

    def hold_lock(self, path: str) -> None:
        """Let another process hold the lock on a file."""
        self._locked.add(normpath(path))

    def replace_contents(self, path: str, data: bytes) -> None:
        """Replace a file's bytes without the process; durable at once, its name too."""
        path = normpath(path)
        inode = self._names.visible.files.get(path)
        if inode is None:
            inode = Inode(modified_ms=self.wall_ms())
            self._names.change(Change("create", path, inode=inode))
            self._names.make_durable(self._names.changes_in(split(path)[0]))
        inode.truncate(0)
        inode.write(0, data)
        inode.complete_sync(inode.begin_sync())

    def remove_name(self, path: str) -> None:
        """Remove a file without the process, which keeps an open one without a name."""
        path = normpath(path)
        self._inode(path).links = 0
        self._names.change(Change("unlink", path))

    def contents(self, path: str) -> bytes:
        inode = self._inode(path)
        return inode.read(0, inode.length)

    def paths(self) -> list[str]:
        return sorted(self._names.visible.files)

    def allocated(self) -> int:
        return sum(inode.allocated for inode in self._names.visible.files.values())

    # For files of this disk.

    def event(
        self, kind: str, path: str, offset: int = 0, size: int = 0, *, reported_as: str = ""
    ) -> None:
        """Count an event that is about to happen; die or fail here if a crash point or fault says
        so."""
        self.life.check()
        if self.is_crash_point():
            raise self.crash()
        self.events += 1
        if self.observer is not None:
            self.observer(kind, reported_as or path, offset, size)
        if self.read_only and not kind.startswith("sync"):
            raise disk_error(errno.EROFS, path)
        if not kind.startswith("sync"):
            self.meet_faults(kind, path)

    def room(self, inode: Inode, size: int) -> int:
        """Return how far a file may grow towards `size`, bytes; less only under a quota."""
        if self.quota is None or size <= inode.allocated:
            return size
        return min(size, inode.allocated + max(0, self.quota - self.allocated()))

    def is_crash_point(self) -> bool:
        """Return whether the process dies at the next event."""
        return self.crash_at is not None and self.events + 1 >= self.crash_at

    def crash(self) -> SimKilled:
        """Die now, in the chosen way. Return what to raise."""
        self.events += 1
        if self.crash_kind == "power":
            self.power_cut(self.crash_mode)
        else:
            self.life.die("kill")  # the cache survives
        return SimKilled(f"crash point {self.events}")

    def _change(self, change: Change) -> None:
        if self.is_crash_point():
            if self.crash_kind == "power":
                self._names.change(change)
            raise self.crash()
        self.event(change.kind, change.path, reported_as=change.target)
        self._names.change(change)

    def meet_faults(self, operation: str, path: str) -> None:
        """Fail a call, or delay it, if a fault says so."""
        for fault in self.faults:
            if fault.fires(operation, path):
                if fault.effect == "delay":
                    self.burn(fault.seconds)
                else:
                    raise disk_error(fault.error, path)

    async def pass_time(
        self, kind: str, path: str, inode: Inode | None = None, number: int = 0
    ) -> str:
        """Let a sync take its time. Return the effect of the fault that hit it, or nothing."""
        await trio.lowlevel.checkpoint()
        least, most = self.sync_seconds
        seconds = least + (most - least) * self.random.random() if most > 0.0 else 0.0
        fault = next((fault for fault in self.faults if fault.fires(kind, path)), None)
        with trio.CancelScope(shield=True):
            if fault is not None:
                seconds += fault.seconds
            if seconds > 0.0:
                await trio.sleep(seconds)
        self.life.check()
        if fault is None:
            return ""
        if fault.effect == "error_clean" and inode is not None:
            inode.forsake(number)
            if self.observer is not None:
                self.observer("sync_failed", path, 0, 0)
        if fault.effect in ("error", "error_clean"):
            raise disk_error(fault.error, path)
        return fault.effect

    def _inode(self, path: str) -> Inode:
        inode = self._names.visible.files.get(normpath(path))
        if inode is None:
            raise disk_error(errno.ENOENT, path)
        return inode


class SimFile:
    def __init__(self, disk: SimDisk, path: str, inode: Inode, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._closed = False
        disk.open_files += 1

    def size(self) -> int:
        self._check()
        return self._inode.length

    def read_at(self, offset: int, size: int) -> bytes:
        self._check()
        self._disk.meet_faults("read", self.path)
        return self._inode.read(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Read, or return None now and then (`SimDisk.cold_share`)."""
        self._check()
        cold_share = self._disk.cold_share
        if cold_share > 0.0 and self._disk.random.random() < cold_share:
            return None
        return self.read_at(offset, size)

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        data = self.read_cached(offset, len(buffer))
        if data is None or len(data) < len(buffer):
            return False
        buffer[:] = data
        return True

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write into the cache; short with ENOSPC under a quota."""
        self._check_writable()
        disk, inode = self._disk, self._inode
        size = len(data)
        if disk.crash_at is not None and disk.is_crash_point():
            view = memoryview(data)
            if disk.crash_kind == "kill":  # it dies within the write, between two pages
                ends = range(PAGE - offset % PAGE, size, PAGE)
                view = view[: disk.random.choice((0, *ends))]
            inode.write(offset, view)
            raise disk.crash()
        disk.event("write", self.path, offset, size)
        if disk.quota is not None and disk.room(inode, offset + size) < offset + size:
            whole_pages = disk.room(inode, offset + size) // PAGE * PAGE
            inode.write(offset, memoryview(data)[: max(0, whole_pages - offset)])
            raise disk_error(errno.ENOSPC, self.path)
        inode.write(offset, data)
        inode.modified_ms = disk.wall_ms()

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
        inode.modified_ms = disk.wall_ms()

    def truncate(self, size: int) -> None:
        self._check_writable()
        if size != self._inode.length:
            self._disk.event("truncate", self.path, 0, size)
            self._inode.truncate(size)
            self._inode.modified_ms = self._disk.wall_ms()

    def zero(self, offset: int, size: int) -> None:
        self._check_writable()
        self._disk.event("zero", self.path, offset, size)
        self._inode.zero(offset, size)
        self._inode.modified_ms = self._disk.wall_ms()

    def punch(self, offset: int, size: int) -> None:
        """Zero the range: the model does not count blocks inside a file."""
        self.zero(offset, size)

    async def sync(self) -> None:
        self._check()
        disk, inode = self._disk, self._inode
        disk.event("sync", self.path)
        number = inode.begin_sync()
        effect = await disk.pass_time("sync", self.path, inode, number)
        disk.event("sync_lost" if effect == "lose" else "sync_end", self.path)
        if effect != "lose":
            inode.complete_sync(number)

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
        """Do nothing: everything is in memory."""
        self._check()

    def close(self) -> None:
        self._disk.open_files -= not self._closed
        self._closed = True

    def _check(self) -> None:
        self._disk.life.check()
        if self._closed:
            raise ValueError(f"{self.path} is closed")

    def _check_writable(self) -> None:
        self._check()
        if not self._writable:
            raise disk_error(errno.EBADF, self.path)


class SimLock:
    def __init__(self, locked: set[str], path: str, file: SimFile | None = None) -> None:
        self._locked = locked
        self._path = path
        self._file = file

    def release(self) -> None:
        self._locked.discard(self._path)
        if self._file is not None:
            self._file.close()
