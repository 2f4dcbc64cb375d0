"""The world as a node sees it: one object that is passed in, and nothing besides it.

A node never uses a clock, a file, a socket, a thread or randomness directly. It gets a `World` as
its first argument, so that the same code runs on the operating system (`rocketbed.world.real`) and,
several nodes in one process, in the simulator (`chaos.backends.sim`). Sleeping and deadlines are
trio's own. Synchronous methods normally return at once (a write into the page cache, a cached
read); those that may block for long (`File.sync`, a directory sync, `World.offload`) are async.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NoReturn, Protocol, TypeVar

import trio

T = TypeVar("T")

Address = tuple[str, int]
"""IP address in text form, and port."""


class Clock(Protocol):
    """Times that trio does not have."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump either way."""
        ...

    def utc_offset_ms(self) -> int:
        """Return the milliseconds that local time is ahead of UTC now."""
        ...

    def monotonic(self) -> float:
        """Seconds since the machine booted, for leases only; never goes back."""
        ...


class File(Protocol):
    """An open file. Offsets and sizes are bytes; a closed file raises `ValueError` or `OSError`."""

    path: str

    def size(self) -> int:
        """Length of the file."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`, fewer only at the end of the file. May block."""
        ...

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Read as `read_at`, or return None when the page cache does not hold all of it. Never
        blocks."""
        ...

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        """Fill all of `buffer` from `offset` on; False when the page cache, or the file, does not
        hold all of it. Never blocks."""
        ...

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` into the page cache at `offset`.

        Raises `OSError`; bytes written before the error stay written (a short write).
        """
        ...

    def allocate(self, size: int) -> None:
        """Extend to `size` bytes, zero, with blocks reserved. Raises `OSError` (ENOSPC)."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length."""
        ...

    def zero(self, offset: int, size: int) -> None:
        """Make a range read as zeros, with its blocks still reserved."""
        ...

    def punch(self, offset: int, size: int) -> None:
        """Make a range read as zeros and free its blocks (sparse files)."""
        ...

    async def sync(self) -> None:
        """Call fdatasync. After an `OSError` the content of the disk is unknown: stop the node."""
        ...

    def has_name(self) -> bool:
        """Return False once the last name of the open file was removed by another program
        (`st_nlink` 0)."""
        ...

    def modified_ms(self) -> int:
        """Modification time, milliseconds since the epoch."""
        ...

    def set_modified_ms(self, wall_ms: int) -> None:
        """Set the modification time."""
        ...

    def read_ahead(self, offset: int, size: int) -> None:
        """Ask the kernel to read a range into the page cache; returns at once."""
        ...

    def close(self) -> None:
        """Close; a second call does nothing."""
        ...


class Lock(Protocol):
    """A held lock on a file."""

    def release(self) -> None:
        """Release it; a second call does nothing."""
        ...


class NotAFile(OSError):
    """The name belongs to a pipe, a socket or a device, which has no content and may never
    answer."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space of the file system that holds a path, bytes."""

    total: int
    free: int
    read_only: bool = False
    """True if nothing can be written, as when the system remounted it after errors."""

    @property
    def used_percent(self) -> int:
        """Used share of the file system, rounded up to whole percent (as RocketMQ counts)."""
        return -(-100 * (self.total - self.free) // self.total) if self.total else 0


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process; `/` separates."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file. With `create` create it empty if absent. Never waits for another process.

        Raises `FileNotFoundError`, `IsADirectoryError`, or `NotAFile` for a pipe and the like.
        """
        ...

    def exists(self, path: str) -> bool:
        """True if a file or directory has this name."""
        ...

    def is_dir(self, path: str) -> bool:
        """True if it is a directory."""
        ...

    def is_file(self, path: str) -> bool:
        """True if it is a regular file, or a link to one: the only kind that `open` accepts."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty when it does not exist.

        Raises `NotADirectoryError`.
        """
        ...

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents; existing ones are fine."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing the target atomically; or a directory, to a name that is free.

        Raises `IsADirectoryError` for a file that would replace a directory.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file. Raises `FileNotFoundError`."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    async def sync_files(self, files: Sequence[File]) -> None:
        """Call fdatasync on files of this disk, one after the other.

        After an `OSError`, whose `filename` is that of the failed file, the content of all of them
        on disk is unknown: stop the node.
        """
        ...

    async def sync_dir(self, path: str) -> None:
        """Call fsync on a directory, so that names created or removed in it are durable."""
        ...

    def lock(self, path: str) -> Lock | None:
        """Take an exclusive POSIX record lock on byte 0 of `path` (created if absent); None if held
        elsewhere.

        A Java broker takes the same lock (store.md 1.4).
        """
        ...

    def lock_dir(self, path: str) -> Lock | None:
        """Take an exclusive lock on a directory itself, without a file in it; None if held
        elsewhere.

        On file systems that cannot lock directories, every process gets it.
        """
        ...

    def usage(self, path: str) -> DiskUsage:
        """Return the space of the file system that holds `path`."""
        ...


Stream = trio.abc.HalfCloseableStream


class Listener(Protocol):
    """A listening socket."""

    address: Address

    async def accept(self) -> Stream:
        """Wait for the next connection. Raises `trio.ClosedResourceError` after `aclose`."""
        ...

    async def aclose(self) -> None:
        """Stop listening."""
        ...


class Network(Protocol):
    """Connections between nodes: streams of bytes with TCP's semantics."""

    async def listen(self, host: str, port: int) -> Listener:
        """Listen; port 0 lets the system choose. Raises `OSError` (EADDRINUSE)."""
        ...

    async def connect(self, host: str, port: int) -> Stream:
        """Dial. Raises `OSError`; a silent peer blocks until the caller's deadline."""
        ...

    async def resolve(self, host: str) -> list[str]:
        """Return IP addresses of a host name, in order of preference. Raises `OSError`."""
        ...

    def local_address(self, stream: Stream) -> Address:
        """Return this end's address of a stream of this network."""
        ...

    def peer_address(self, stream: Stream) -> Address:
        """Return the peer's address."""
        ...

    def try_send(self, stream: Stream, parts: list[bytes]) -> int:
        """Send bytes on a stream that has no other sender, without waiting; return how many it
        accepted.

        0 if it accepts none now, or cannot tell; errors show at the next `send_all`.
        """
        ...

    def try_receive(self, stream: Stream, max_bytes: int) -> bytes:
        """Return bytes that have arrived on a stream that has no other receiver, without waiting.

        Empty if there are none, or it cannot tell; the end and errors show at `receive`.
        """
        ...

    async def receive(self, stream: Stream, max_bytes: int) -> bytes:
        """Receive as the stream's `receive_some`, possibly faster."""
        ...

    async def send_file(self, stream: Stream, file: File, offset: int, size: int) -> None:
        """Send a range of a file, without a copy where the system can (`sendfile`)."""
        ...


class Log(Protocol):
    """Events with fields; the event is a name such as `store.recovered`, never a sentence."""

    def debug(self, event: str, **fields: object) -> None:
        """Log an event for someone who follows one message."""
        ...

    def info(self, event: str, **fields: object) -> None:
        """Log an event for someone who follows the node."""
        ...

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should look at."""
        ...

    def error(self, event: str, **fields: object) -> None:
        """Log an event for something that is broken."""
        ...


class Process(Protocol):
    """The process in which the node runs."""

    pid: int
    boot_id: str
    """Changes whenever the page cache may have been lost (the kernel's boot id)."""
    descriptors: int
    """Files and connections that the process may have open at once."""
    stop_requested: trio.Event
    """Set when the node was asked to stop cleanly (SIGTERM, SIGINT)."""

    def exit(self, code: int) -> NoReturn:
        """End the process at once, without any clean-up."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside a node. Frozen; the first argument of every long-lived object."""

    name: str
    """Name of the node, for logs."""
    clock: Clock
    disk: Disk
    network: Network
    random: Random
    """Source of randomness, seeded in simulation."""
    log: Log
    process: Process
    mark: Callable[[str], None]
    """Called at points that tests want to reach or to crash at; does nothing in production."""
    offloader: "Offloader"

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking function without blocking the loop (a thread; in simulation a delay)."""
        return await self.offloader.run(function, *arguments)


class Offloader(Protocol):
    """Runs blocking functions without blocking the loop."""

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Return the result of `function(*arguments)`; its exceptions pass through. Not
        cancellable."""
        ...
