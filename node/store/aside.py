"""Moving aside files and folders that obstruct a queue.

Units are derived, the log is the truth: a stray file or folder on a queue's path must not stop the
dispatch of every topic. It must not be deleted either, so it is moved to `rocketbed.cut`, under the
path that it had.
"""

import errno
from contextlib import suppress
from itertools import count

from rocketbed.node.store.files import FilePool
from rocketbed.world.api import World

CUT_DIR = "rocketbed.cut"
"""Directory of bytes that recovery cut off, and of files that were moved aside."""
IN_THE_WAY = (IsADirectoryError, NotADirectoryError, FileExistsError)
"""Errors when a file is created and a name on its path is taken."""


def clear_the_way(world: World, pool: FilePool, root: str, path: str) -> bool:
    """Move away what is in the place of a file, or of a folder on its way from `root`; True if
    anything was moved.

    A dangling link counts; in the file's own place only a folder does, as a rename replaces
    anything else. Raises `FileExistsError` with the path of what cannot be moved.
    """
    directory = root
    for name in path.removeprefix(f"{root}/").split("/"):
        obstacle = f"{directory}/{name}"
        if name not in world.disk.listdir(directory):
            return False
        if world.disk.is_dir(obstacle) == (obstacle == path):
            _keep(world, pool, root, obstacle)
            return True
        directory = obstacle
    return False


def kept_bytes(world: World, root: str) -> int:
    """Return the length of all files directly in `rocketbed.cut`: pieces of the log, bytes."""
    directory = f"{root}/{CUT_DIR}"
    total = 0
    for name in world.disk.listdir(directory) if world.disk.is_dir(directory) else ():
        with suppress(OSError):  # a folder, or removed meanwhile
            file = world.disk.open(f"{directory}/{name}", writable=False)
            total += file.size()
            file.close()
    return total


def _keep(world: World, pool: FilePool, root: str, path: str) -> None:
    """Move it to `rocketbed.cut`, durable with the next sync of names."""
    kind, _, below = path.removeprefix(f"{root}/").partition("/")
    existing = world.disk.listdir(f"{root}/{CUT_DIR}")
    number = next(number for number in count(1) if f"{kind}.{number}" not in existing)
    target = f"{root}/{CUT_DIR}/{kind}.{number}/{below}".rstrip("/")
    try:
        _move(world, pool, path, target)
    except OSError as exc:
        raise FileExistsError(
            errno.EEXIST, f"in the way of a queue, and cannot be moved: {exc.strerror}", path
        ) from exc
    world.log.warning("store.moved_aside", path=path, to=target, reason="in the way of a queue")


def _move(world: World, pool: FilePool, path: str, target: str) -> None:
    pool.make_dir(target.rpartition("/")[0])
    world.disk.rename(path, target)
    pool.named(path)
    pool.named(target)
