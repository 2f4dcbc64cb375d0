"""Removal of each kind of resource that outlives a process. Standard library only.

Every function may be called for a resource that was never created, or is already removed: its
record is written before it is created, and a sweep may itself be killed halfway.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rocketbed.host import loop_device as volume_loop
from rocketbed.host.janitor.processes import began

ROOT_THROTTLES: Final = Path("/sys/fs/cgroup/blkio")
NETWORK_NAMESPACES: Final = Path("/run/netns")
INTERFACES: Final = Path("/sys/class/net")
SHARED_MEMORY: Final = Path("/dev/shm")
LEAVE_S: Final = 1.0
"""Time for a killed process to leave a mount or a control group, seconds."""


def victims(kind: str, value: str) -> list[tuple[int, int]]:
    """Return the processes of a record, as (pid, start time)."""
    if kind == "process":
        pid, _, ticks = value.partition(" ")
        return [(int(pid), int(ticks))]
    if kind == "cgroup":
        return [(pid, began(pid)) for pid in members(Path(value))]
    return []


def members(group: Path) -> list[int]:
    """Return the processes in a control group; empty when there is no such group."""
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def remove_mount(value: str) -> bool:
    """Remove mounts at or below a path; detach those that are busy."""
    removed = False
    for point in volume_loop.mounts_at_or_below(Path(value)):
        removed = True
        try:
            volume_loop.unmount(point, seconds=LEAVE_S)
        except OSError:
            volume_loop.unmount(point, lazily=True)
    return removed


def remove_loop(value: str) -> bool:
    devices = volume_loop.devices_of(Path(value))
    for device in devices:
        volume_loop.detach(device)
    return bool(devices)


def remove_throttle(value: str) -> bool:
    """Remove a device's limits from the root control group: they outlive loop devices."""
    removed = False
    for rule in ROOT_THROTTLES.glob("blkio.throttle.*_device"):
        if any(line.startswith(value + " ") for line in rule.read_text().splitlines()):
            rule.write_text(f"{value} 0")
            removed = True
    return removed


def remove_cgroup(value: str) -> bool:
    """Remove a control group; a process that is still in it moves to the parent."""
    group = Path(value)
    until = time.monotonic() + LEAVE_S
    while group.is_dir():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.005)
        else:
            return True
    return False


def remove_network_namespace(value: str) -> bool:
    """Remove a named network namespace; it ends with its last socket and process."""
    path = NETWORK_NAMESPACES / value
    if not path.exists():
        return False
    remove_mount(str(path))
    path.unlink(missing_ok=True)
    return True


def remove_directory(value: str) -> bool:
    """Remove a directory tree, but not through a mount that still exists.

    Another reaper process may be removing it too, and a process that was killed may still write.
    """
    path = Path(value)
    if not path.is_dir() or path.is_symlink():
        return False
    until = time.monotonic() + LEAVE_S
    while path.exists():
        try:
            if any(volume_loop.mounts_at_or_below(path)):
                raise OSError(f"{path} still has something mounted in it")
            shutil.rmtree(path)
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)
    return True


def remove_file(value: str) -> bool:
    try:
        os.unlink(value)
    except FileNotFoundError:
        return False
    return True


def faketime_files(pid: int) -> list[Path]:
    """Return the files that libfaketime creates for each process, and leaves when that is
    killed."""
    return [SHARED_MEMORY / f"faketime_shm_{pid}", SHARED_MEMORY / f"sem.faketime_sem_{pid}"]


def remove_of_docker(value: str, *, path: str) -> bool:
    """Have Docker delete the object at `path`; the daemon may be gone, and the object with it."""
    from rocketbed.host.janitor.docker import delete

    return delete(value, path)


def remove_bridge(value: str) -> bool:
    if not (INTERFACES / value).exists():
        return False
    subprocess.run(["ip", "link", "del", value], capture_output=True, check=True)
    return True


REMOVERS: Final[dict[str, Callable[[str], bool]]] = {
    "process": lambda _value: False,  # it was killed before
    "mount": remove_mount,
    "loop": remove_loop,
    "throttle": remove_throttle,
    "cgroup": remove_cgroup,
    "netns": remove_network_namespace,
    "directory": remove_directory,
    "file": remove_file,
    "container": partial(remove_of_docker, path="/containers/{}?force=true&v=true"),
    "docker-network": partial(remove_of_docker, path="/networks/{}"),
    "bridge": remove_bridge,
}
"""Kind of record -> function that removes the resource; True if there was one."""
