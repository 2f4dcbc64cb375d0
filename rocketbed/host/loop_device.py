"""System calls for loop devices and mounts, without a helper program: a cut takes milliseconds.

A device is set to clear itself with its last user. While a harness keeps it open it outlives its
mount, as a power cut needs; when the harness dies, removing the mount frees it. Standard library
only: the reaper uses this too.
"""

import ctypes
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

LOOP_CTL_GET_FREE: Final = 0x4C82
LOOP_CONFIGURE: Final = 0x4C0A
LOOP_CLR_FD: Final = 0x4C01
LO_FLAGS_AUTOCLEAR: Final = 4
LOOP_MAJOR: Final = 7
"""From linux/loop.h and linux/major.h."""

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
SHUTDOWN_NO_LOG_FLUSH: Final = 2
"""From fs/ext4/ext4.h."""

MS_NOATIME: Final = 1024
MNT_DETACH: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)


def attach(image: Path) -> tuple[str, int]:
    """Make a file a block device; return its path and a descriptor that keeps it. Raises
    `OSError`."""
    with (
        image.open("r+b", buffering=0) as backing,
        open("/dev/loop-control", "r+b", buffering=0) as control,
    ):
        while True:
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            descriptor = _configure(number, backing.fileno(), image)
            if descriptor is not None:
                return f"/dev/loop{number}", descriptor


def _configure(number: int, backing: int, image: Path) -> int | None:
    """Open loop device `number` over a file; None when another program took it meanwhile."""
    path = f"/dev/loop{number}"
    if not os.path.exists(path):
        os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(LOOP_MAJOR, number))
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    name = os.fsencode(image)[-63:].ljust(64, b"\0")
    settings = struct.pack("=5Q4I", 0, 0, 0, 0, 0, 0, 0, 0, LO_FLAGS_AUTOCLEAR)
    request = struct.pack("=II", backing, 0) + settings + name + bytes(64 + 32 + 16 + 64)
    try:
        fcntl.ioctl(descriptor, LOOP_CONFIGURE, request)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EBUSY:
            return None
        raise
    return descriptor


def devices_of(image: Path) -> list[str]:
    """Return the loop devices of this file."""
    devices = []
    for entry in Path("/sys/block").glob("loop*"):
        with suppress(OSError):
            if (entry / "loop" / "backing_file").read_text().strip() == str(image):
                devices.append(f"/dev/{entry.name}")
    return devices


def detach(device: str) -> None:
    """Release a device's file, now or with its last user. Raises `OSError`."""
    with open(device, "r+b", buffering=0) as file:
        try:
            fcntl.ioctl(file, LOOP_CLR_FD)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise


def mount(source: str, target: Path, flags: int, options: str = "") -> None:
    """Call mount(2) with ext4. Raises `OSError`."""
    if _libc.mount(source.encode(), os.fsencode(target), b"ext4", flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source}: {os.strerror(number)}", str(target))


def unmount(target: Path, *, seconds: float = 0.0, lazily: bool = False) -> None:
    """Call umount(2); while it is busy, retry for this many seconds. Raises `OSError`."""
    until = time.monotonic() + seconds
    while _libc.umount2(os.fsencode(target), MNT_DETACH if lazily else 0):
        number = ctypes.get_errno()
        if number != errno.EBUSY or time.monotonic() >= until:
            raise OSError(number, f"umount: {os.strerror(number)}", str(target))
        time.sleep(0.001)


def wait_free(device: str, *, seconds: float) -> None:
    """Wait until no file system uses a device. Raises `OSError` (EBUSY) after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        try:
            os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= until:
                raise
            time.sleep(0.002)
        else:
            return


def mounts_at_or_below(path: Path) -> Iterator[Path]:
    """Yield the mount points at a path or below it, the innermost first."""
    own = str(path)
    points = [point for point in _mount_points() if point == own or point.startswith(own + "/")]
    return map(Path, reversed(points))


def _mount_points() -> Iterator[str]:
    """Yield the fifth field of proc(5) mountinfo; blanks and the like are octal there."""
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        yield os.fsdecode(line.split(b" ")[4].decode("unicode_escape").encode("latin-1"))


def shut_down(path: Path) -> None:
    """Stop a mounted file system at once, with its journal unwritten. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", SHUTDOWN_NO_LOG_FLUSH))
    finally:
        os.close(descriptor)
