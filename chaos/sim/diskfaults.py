"""Faults of a plan, put onto a simulated disk."""

import errno
from collections.abc import Sequence
from random import Random

from rocketbed.chaos.sim.disk import SimDisk
from rocketbed.chaos.sim.disk_image import DiskImage
from rocketbed.chaos.sim.faults import SimFault
from rocketbed.chaos.sim.process import SimHost
from rocketbed.chaos.trial.api import CrashPoint, DiskFault


def put_faults(disk: SimDisk, faults: Sequence[DiskFault]) -> None:
    """Let a disk do these things wrong from now on, and no others."""
    disk.faults.clear()
    disk.release()
    disk.read_only = False
    disk.quota = None
    for fault in faults:
        if fault.kind == "full":
            disk.quota = disk.allocated() + fault.after
        elif fault.kind == "read-only":
            disk.read_only = True
        else:
            disk.inject(_rule(fault))


def _rule(fault: DiskFault) -> SimFault:
    times = 1 if fault.once else None
    if fault.kind in ("slow-fsync", "hang"):
        return SimFault(operation="sync", effect="delay", seconds=fault.seconds, times=times)
    if fault.kind == "eio-fsync":
        return SimFault(operation="sync", effect="error_clean", error=errno.EIO, times=times)
    if fault.kind == "eio-write":
        return SimFault(operation="write", error=errno.EIO, times=times)
    return SimFault(operation="sync", effect="lose", times=times)


def arm(disk: SimDisk, point: CrashPoint) -> None:
    """Let a process die at this event of its disk; at none if the point names none."""
    disk.crash_kind = "power" if point.power else "kill"
    disk.crash_at = None if point.event is None else disk.events + point.event


def flip_bit(host: SimHost, random: Random, directory: str, end: int, segment_size: int) -> str:
    """Flip one bit of a log below `end`, on a host where nothing runs; what was hit."""
    paths = [path for path in host.image.paths() if path.startswith(f"{directory}/")]
    if not paths or end == 0:
        return "no change: the log is empty"
    offset = random.randrange(int(paths[0].rpartition("/")[2]), end)
    path = f"{directory}/{offset - offset % segment_size:020d}"
    namespace = host.image.namespace()
    namespace.visible.files[path].flip(offset % segment_size * 8 + random.randrange(8))
    host.image = DiskImage(namespace)
    return f"log offset {offset}"
