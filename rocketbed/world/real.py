"""The operating system as a World: files through descriptors, trio's sockets, the process itself.

Data is written with `pwrite` and read with `preadv(RWF_NOWAIT)` inside the loop, since both cost
less than a thread switch while they hit the page cache. Calls that wait for the device, fdatasync
and cold reads, go to threads: one for syncs, so that at most one is in flight, and a few for the
rest. Nothing is memory-mapped, because a mapped read of a truncated file or a bad sector is a
SIGBUS.

This module and `rocketbed.world.sockets` are the only ones of a node that use the system.
"""

import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import stat
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import NoReturn, TypeVar

import trio

from rocketbed.world.api import DiskUsage, File, Lock, NotAFile, World
from rocketbed.world.logs import StandardLog
from rocketbed.world.sockets import RealNetwork, new_socket
from rocketbed.world.sync_threads import SyncThreads

T = TypeVar("T")

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
OFFLOAD_THREADS = 8
"""Cold reads and the like that run at the same time: enough to keep a disk queue filled."""
SYNC_THREADS = 2
"""Threads for syncs: producers do not wait for queues and index, which may be on a slower disk than
the log."""
GC_THRESHOLD = 20_000
"""Allocations between runs of the cyclic collector. A node's objects are freed by reference
counting; with the default of 700 each run of messages was scanned several times in vain."""
SWITCH_INTERVAL = 0.0005
"""Thread switch interval, seconds. With a busy loop an fdatasync in a thread takes 5.3 ms at
Python's default of 5 ms, 0.65 ms with this."""
ZERO_BLOCK = bytes(1 << 20)
NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of `flock` on systems that cannot lock directories: NFS needs a writable descriptor."""
NO_FILE = "Not a regular file, but a pipe, a socket or a device"
FALLOCATE_ZERO_RANGE = 0x10
FALLOCATE_PUNCH_HOLE = 0x02 | 0x01
"""Punch a hole, keep the size: Linux allows the first only with the second."""


def real_world(
    name: str, source: str = "", new_socket: Callable[[int], socket.socket] = new_socket
) -> World:
    """Return the world of a node in a process of its own. `name` is the node's, for its logs.

    Connections go out from the address `source`, if that is set; `new_socket` makes sockets.
    """
    offloader, clock = ThreadOffloader(OFFLOAD_THREADS), RealClock()
    return World(
        name=name,
        clock=clock,
        disk=RealDisk(),
        network=RealNetwork(offloader, source=source, new_socket=new_socket),
        random=Random(),
        log=StandardLog(name, clock.monotonic),
        process=RealProcess(),
        mark=_ignore_mark,
        offloader=offloader,
    )


def _raise_file_limit() -> None:
    """Allow as many open files as the system permits: connections need descriptors besides the
    store's."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_real(main: Callable[[World], Awaitable[T]], name: str, source: str = "") -> T:
    """Run `main` with a real world until it returns; its errors are raised unchanged.

    Connections go out from the address `source`, if that is set. SIGTERM and SIGINT set
    `world.process.stop_requested` and do nothing else.
    """
    _raise_file_limit()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)
    sys.setswitchinterval(SWITCH_INTERVAL)

    async def with_signals() -> T:
        world = real_world(name, source)
        token = trio.lowlevel.current_trio_token()

        # A Python signal handler runs between any two instructions, so it may not touch trio's
        # objects; the token passes the call to the loop.
        def request_stop(_number: int, _frame: object) -> None:
            token.run_sync_soon(world.process.stop_requested.set, idempotent=True)

        stopping = (signal.SIGTERM, signal.SIGINT)
        previous = [(number, signal.signal(number, request_stop)) for number in stopping]
        try:
            return await main(world)
        finally:
            for number, handler in previous:
                signal.signal(number, handler)

    return trio.run(with_signals)


def _ignore_mark(_name: str) -> None:
    return None


class RealClock:
    """Wall time, and boot time for leases, which continues while the machine sleeps."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def utc_offset_ms(self) -> int:
        """Return the milliseconds that local time is ahead of UTC now."""
        return time.localtime().tm_gmtoff * 1000

    def monotonic(self) -> float:
        """Seconds since the machine booted (`CLOCK_BOOTTIME`)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class ThreadOffloader:
    """Runs blocking functions in at most `threads` threads; more wait in order."""

    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Return the result of `function(*arguments)`. Once begun it is not cancelled."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._limiter)


class RealProcess:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.boot_id = _boot_id()
        self.descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.stop_requested = trio.Event()

    def exit(self, code: int) -> NoReturn:
        """End at once: no `finally`, no atexit, files as they are."""
        os._exit(code)


def _boot_id() -> str:
    try:
        with open(BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _read_cached(descriptor: int, buffer: bytearray | memoryview, offset: int) -> int | None:
    """Return the number of bytes of the buffer that the page cache had; None without the first."""
    try:
        return os.preadv(descriptor, (buffer,), offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return None
        raise


class RealFile:
    """An open descriptor. Closing waits in the background for a sync that is in flight."""

    def __init__(self, path: str, descriptor: int, syncer: SyncThreads) -> None:
        self.path = path
        self._descriptor = descriptor
        self._syncer = syncer
        self.syncing = 0
        """Number of syncs under way that use the descriptor."""
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor. Raises `ValueError` when closed."""
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def size(self) -> int:
        """Length of the file, bytes."""
        return os.fstat(self.fileno()).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`; may wait for the device."""
        descriptor = self.fileno()
        data = os.pread(descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        filled = len(data)
        while filled < size and (data := os.pread(descriptor, size - filled, offset + filled)):
            parts.append(data)
            filled += len(data)
        return b"".join(parts)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Read from the page cache, or return None.

        File systems that cannot tell what is cached (EOPNOTSUPP) always give None.
        """
        descriptor = self.fileno()
        buffer = bytearray(size)
        count = _read_cached(descriptor, buffer, offset)
        if count == size:
            return bytes(buffer)
        # A short read at the end of the file is complete; before it, a page is not cached.
        if count is not None and offset + count >= os.fstat(descriptor).st_size:
            return bytes(memoryview(buffer)[:count])
        return None

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        """Fill all of `buffer`, or return False (see `read_cached`)."""
        return _read_cached(self.fileno(), buffer, offset) == len(buffer)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`, in as many `pwrite` calls as needed."""
        descriptor = self.fileno()
        count = os.pwrite(descriptor, data, offset)
        if count == len(data):
            return
        remaining = memoryview(data).cast("B")[count:]
        while remaining:
            offset += count
            count = os.pwrite(descriptor, remaining, offset)
            remaining = remaining[count:]

    def allocate(self, size: int) -> None:
        """Reserve blocks up to `size` and extend to it (`posix_fallocate`)."""
        if size > 0:
            os.posix_fallocate(self.fileno(), 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fileno(), size)

    def zero(self, offset: int, size: int) -> None:
        """Zero a range within the file; blocks stay reserved.

        Long ranges use the file system's zero-range if it has one, others are written.
        """
        if size > len(ZERO_BLOCK) and _fallocate(self, FALLOCATE_ZERO_RANGE, offset, size):
            return
        self._write_zeros(offset, size)

    def punch(self, offset: int, size: int) -> None:
        """Zero a range within the file and free its blocks, if the file system can."""
        if not size or not _fallocate(self, FALLOCATE_PUNCH_HOLE, offset, size):
            self._write_zeros(offset, size)

    def _write_zeros(self, offset: int, size: int) -> None:
        end = offset + size
        while offset < end:
            step = min(len(ZERO_BLOCK), end - offset)
            self.write_at(offset, memoryview(ZERO_BLOCK)[:step])
            offset += step

    async def sync(self) -> None:
        """Call fdatasync in a sync thread."""
        await sync_files(self._syncer, [self])

    def has_name(self) -> bool:
        """True if a directory entry still refers to this file."""
        return os.fstat(self.fileno()).st_nlink > 0

    def modified_ms(self) -> int:
        """Modification time, milliseconds since the epoch."""
        return os.fstat(self.fileno()).st_mtime_ns // 1_000_000

    def set_modified_ms(self, wall_ms: int) -> None:
        """Set modification and access time."""
        os.utime(self.fileno(), ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))

    def read_ahead(self, offset: int, size: int) -> None:
        os.posix_fadvise(self.fileno(), offset, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close; unsynced data stays in the page cache."""
        self._closed = True
        self.close_when_idle()

    def close_when_idle(self) -> None:
        """Close if that was requested and no sync is under way."""
        # Not while a thread syncs it: the number could then be another file's.
        if self._closed and not self.syncing and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


async def sync_files(syncer: SyncThreads, files: Sequence[RealFile]) -> None:
    """Call fdatasync on files in one sync thread. Raises `OSError` with the name of the first that
    fails."""
    descriptors = array(
        "i", [file.fileno() for file in files]
    ).tobytes()  # raises before any file is marked as syncing
    for file in files:
        file.syncing += 1
    try:
        await syncer.run(_sync_each, descriptors, [file.path for file in files])
    finally:
        for file in files:
            file.syncing -= 1
            file.close_when_idle()


def _sync_each(descriptors: bytes, paths: list[str]) -> None:
    synced, failed = _sync_in_order(descriptors)
    if failed:
        raise OSError(failed, os.strerror(failed), paths[synced])


def sync_each_slowly(descriptors: bytes) -> tuple[int, int]:
    """Do as `sync_native.sync_each` where that was not built."""
    for synced, descriptor in enumerate(array("i", descriptors)):
        try:
            os.fdatasync(descriptor)
        except OSError as exc:
            return synced, exc.errno or errno.EIO
    return len(descriptors) // array("i").itemsize, 0


_sync_in_order: Callable[[bytes], tuple[int, int]]
try:
    from rocketbed.world import sync_native
except ImportError:
    _sync_in_order = sync_each_slowly
else:
    _sync_in_order = sync_native.sync_each


def _fallocate(file: RealFile, mode: int, offset: int, size: int) -> bool:
    """Zero a range by extents. False if the file system or the C library cannot."""
    import ctypes  # imported here, since it slows the start and is needed rarely

    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
    except AttributeError:
        return False
    long = ctypes.c_int64
    return not fallocate(file.fileno(), mode, long(offset), long(size))


def _open_file(path: str, flags: int) -> int:
    """Open a regular file. Raises `NotAFile` for a pipe, socket or device, and other `OSError`.

    Without O_NONBLOCK, opening a pipe would wait for a writer, and a thread that waits so handles
    no signals. For regular files the flag has no effect.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise NotAFile(errno.ENXIO, NO_FILE, path) from exc
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotAFile(errno.ENXIO, NO_FILE, path)


class RealDisk:
    """The file systems of this machine."""

    def __init__(self) -> None:
        self._syncer = SyncThreads(SYNC_THREADS)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        """Open a file. Raises `FileNotFoundError`, `PermissionError`, other `OSError`."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        return RealFile(path, _open_file(path, flags), self._syncer)

    def exists(self, path: str) -> bool:
        """True if a file or directory has this name."""
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty when it does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents."""
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    async def sync_files(self, files: Sequence[File]) -> None:
        """Call fdatasync on files in one sync thread, while the loop runs on."""
        real = [file for file in files if isinstance(file, RealFile)]
        assert len(real) == len(files), "a file of another disk"
        await sync_files(self._syncer, real)

    async def sync_dir(self, path: str) -> None:
        """Call fsync on a directory, in the sync thread."""
        await self._syncer.run(_sync_directory, path)

    def lock(self, path: str) -> Lock | None:
        """Take the record lock of a Java broker, and write `lock` into the file (store.md 1.4).

        Record locks belong to the process and are lost when any descriptor of the file is closed,
        so a second attempt by this process is refused before the file is opened again.
        """
        if _file_identity(path) in _held_locks:
            return None
        descriptor = _open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(descriptor, b"lock", 0)
            os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        return RealLock(descriptor)

    def lock_dir(self, path: str) -> Lock | None:
        """Lock a directory by `flock`, which needs no file in it."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
        return RealLock(descriptor)

    def usage(self, path: str) -> DiskUsage:
        """Return the space as `df` counts it: what root reserves is neither used nor free."""
        while not os.path.exists(path):
            path = os.path.dirname(os.path.abspath(path))
        status = os.statvfs(path)
        used = status.f_blocks - status.f_bfree
        return DiskUsage(
            total=(used + status.f_bavail) * status.f_frsize,
            free=status.f_bavail * status.f_frsize,
            read_only=bool(status.f_flag & os.ST_RDONLY),
        )


_held_locks: set[tuple[int, int]] = set()
"""Device and inode of every file on which this process holds a `RealLock`."""


def _file_identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class RealLock:
    """A lock held by this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        _held_locks.add(self._identity)

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._descriptor >= 0:
            _held_locks.discard(self._identity)
            os.close(self._descriptor)
            self._descriptor = -1


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):
            os.close(descriptor)
