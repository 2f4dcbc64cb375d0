"""Life cycle of a directory's cluster: locked, created or loaded, started, and removed.

Only one command works at a time, since two that start, stop or promote at once would each do half
of it. The lock is on the directory itself (flock), so there is no lock file, and the lock of a
killed command ends with it.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio

from rocketbed.cluster.cluster import LOOK_S, LocalCluster
from rocketbed.cluster.plan import FILE, ClusterError, read_plan
from rocketbed.cluster.status import MemberStatus

READY_S: Final = 2.0
"""Time for nodes that serve to find each other, seconds; one that does not gives its reason."""


def load_existing(
    directory: Path, *, docker: bool, say: Callable[[str], None]
) -> LocalCluster | None:
    """Return the cluster of a directory, or None. Raises `ClusterError` for a cluster of processes
    if `docker`."""
    if not (directory / FILE).exists():
        return None
    say(
        f"{directory} already holds a cluster, which keeps its own options: `rocketbed cluster"
        f" down --remove --dir {directory}` deletes it, with its data"
    )
    cluster = load(directory)
    if docker and not cluster.plan.subnet:
        raise ClusterError(
            f"the cluster of {directory} runs as processes: choose another --dir for one in "
            "containers, or delete it (cluster down --remove)"
        )
    return cluster


def load(directory: Path) -> LocalCluster:
    """Return the cluster of a directory, running or not. Raises `ClusterError`."""
    directory = directory.absolute()
    plan = read_plan(directory)
    if plan.subnet:
        from rocketbed.cluster.docker.cluster import DockerCluster

        return DockerCluster(directory, plan)
    return LocalCluster(directory, plan)


def create(directory: Path, *, docker: bool, **options: Any) -> LocalCluster:
    """Create a cluster, of processes or in containers; the options are `LocalCluster.create`'s."""
    if docker:
        from rocketbed.cluster.docker.cluster import DockerCluster

        return DockerCluster.create_in_docker(directory, **options)
    return LocalCluster.create(directory, **options)


def missing(cluster: LocalCluster) -> list[str]:
    """Return the members that do not run."""
    return [name for name in cluster.names if cluster.pid(name) is None]


async def start_missing(cluster: LocalCluster) -> list[MemberStatus]:
    """Start the members that do not run and wait until they serve; those that fail are stopped
    again.

    Then wait a moment for nodes that still look for each other.
    """
    names = missing(cluster)
    if names:
        try:
            await cluster.start(*names)
        except BaseException:
            with trio.CancelScope(shield=True):
                await cluster.give_up(names)
            raise
    rows = await cluster.status()
    with trio.move_on_after(READY_S if names else 0.0):
        while any(row.not_ready for row in rows):
            await trio.sleep(LOOK_S)
            rows = await cluster.status()
    return rows


def remove_files(cluster: LocalCluster) -> None:
    """Delete the members' directories, and the cluster's own when nothing else is in it."""
    for name in cluster.names:
        shutil.rmtree(cluster.member_directory(name), ignore_errors=True)
    (cluster.directory / FILE).unlink(missing_ok=True)
    if not any(cluster.directory.iterdir()):
        cluster.directory.rmdir()


@contextmanager
def claimed(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Lock a cluster's directory against other commands. Does not wait.

    With `make` the directory is created, and removed again if it stays empty. Without it a missing
    directory is not locked. Raises `ClusterError` when another command holds the lock, or the
    directory cannot be used.
    """
    directory = directory.absolute()
    created: list[Path] = []
    try:
        descriptor = _locked(directory, make, created)
    except BlockingIOError:
        raise ClusterError(
            f"another command is using the cluster in {directory}: wait for it to finish, or"
            " interrupt it"
        ) from None
    except OSError as error:
        raise ClusterError(
            f"{directory} cannot be {'written' if make else 'read'}: {error.strerror or error}:"
            " choose another --dir"
        ) from error
    try:
        yield
    finally:
        for path in created:
            with suppress(OSError):  # not empty, or already removed
                path.rmdir()
        if descriptor is not None:
            os.close(descriptor)


def _locked(directory: Path, make: bool, created: list[Path]) -> int | None:
    """Return a descriptor that holds the lock; None if the directory is missing. Raises
    `OSError`."""
    while True:
        if make:
            missing = [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            created[:] = missing
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if make:
                continue
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), directory.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed just now
