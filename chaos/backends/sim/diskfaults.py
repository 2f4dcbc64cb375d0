"""Faults of a plan, put onto a simulated disk."""

import errno
from collections.abc import Sequence
from typing import Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.run.api import CrashPoint, DiskFault

DESCRIPTORS_MIN: Final = 16
"""Files that a process may have open in any case, or it could not even start."""


def put_faults(disk: SimDisk, faults: Sequence[DiskFault]) -> None:
    """Set the faults of a disk, in place of those before."""
    disk.faults.clear()
    disk.read_only = False
    disk.quota = disk.descriptors = None
    for fault in faults:
        if fault.kind == "full":
            disk.quota = disk.allocated() + fault.after
        elif fault.kind == "read-only":
            disk.read_only = True
        elif fault.kind == "no-descriptors":
            disk.descriptors = max(disk.open_files, DESCRIPTORS_MIN)
        else:
            disk.faults.append(_rule(fault))


def _rule(fault: DiskFault) -> SimFault:
    times = 1 if fault.once else None
    if fault.kind in ("slow-fsync", "hang"):
        return SimFault(operation="sync", effect="delay", seconds=fault.seconds, times=times)
    if fault.kind == "eio-fsync":
        return SimFault(operation="sync", effect="error_clean", error=errno.EIO, times=times)
    if fault.kind in ("eio-write", "eio-read"):
        return SimFault(operation=fault.kind[4:], error=errno.EIO, times=times)
    return SimFault(operation="sync", effect="lose", times=times)


def arm(disk: SimDisk, point: CrashPoint) -> None:
    """Let a process die at this event of its disk; at none if the point names none."""
    disk.crash_kind = "power" if point.power else "kill"
    disk.crash_at = None if point.event is None else disk.events + point.event


class SimulatedFiles:
    """The files of a directory on a disk image (`StoreFiles`)."""

    def __init__(self, image: DiskImage, root: str) -> None:
        self._disk = SimDisk(image)
        self._root = f"{root}/"

    def image(self) -> DiskImage:
        return self._disk.image()

    def paths(self) -> list[str]:
        return [
            path.removeprefix(self._root)
            for path in self._disk.paths()
            if path.startswith(self._root)
        ]

    def read(self, path: str) -> bytes:
        return self._disk.contents(self._root + path)

    def write(self, path: str, data: bytes) -> None:
        self._disk.replace_contents(self._root + path, data)

    def remove(self, path: str) -> None:
        self._disk.remove_name(self._root + path)
