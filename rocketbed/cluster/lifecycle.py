"""A directory's cluster as a whole: claimed, made or found, started, and removed.

One command at a time: two that start, stop or promote at once would each do half of it. What is
locked is the directory itself (flock), so there is no file to be left behind, and the lock of
a killed command dies with it.
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
from rocketbed.cluster.plan import FILE, ClusterError
from rocketbed.cluster.status import MemberStatus

READY_S: Final = 2.0
"""For nodes that serve to find each other; one that cannot says why."""


def known(directory: Path, *, docker: bool, say: Callable[[str], None]) -> LocalCluster | None:
    """The cluster that a directory has. Raises `ClusterError` for one that is no containers'."""
    if not (directory / FILE).exists():
        return None
    say(
        f"{directory} already holds a cluster, which keeps its own options: `rocketbed cluster"
        f" down --remove --dir {directory}` deletes it, with its data"
    )
    found = LocalCluster.load(directory)
    if docker and not found.plan.subnet:
        raise ClusterError(
            f"the cluster of {directory} runs as processes: choose another --dir for one in "
            "containers, or delete it (cluster down --remove)"
        )
    return found


def create(directory: Path, *, docker: bool, **options: Any) -> LocalCluster:
    """A new one, of processes or in containers; the options are `LocalCluster.create`'s."""
    if docker:
        from rocketbed.cluster.docker.cluster import DockerCluster

        return DockerCluster.create_in_docker(directory, **options)
    return LocalCluster.create(directory, **options)


def missing(cluster: LocalCluster) -> list[str]:
    """Members that do not run."""
    return [name for name in cluster.names if cluster.pid(name) is None]


async def start_missing(cluster: LocalCluster) -> list[MemberStatus]:
    """Start what does not run and wait until it serves; what did not come up is ended again.

    Nodes that still look for each other then are given a moment.
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
    """Keep other commands off a cluster's directory meanwhile. Does not wait.

    With `make` the directory is made; one that stays empty is taken away again. Without it nothing
    is done where there is none. Raises `ClusterError` when another command is at work there, or
    the directory cannot be had.
    """
    directory = directory.absolute()
    made: list[Path] = []
    try:
        descriptor = _locked(directory, make, made)
    except BlockingIOError:
        raise ClusterError(
            f"another command is using the cluster in {directory}: wait for it to finish, or"
            " interrupt it"
        ) from None
    except OSError as error:
        raise ClusterError(
            f"{directory} cannot be {'written' if make else 'read'}: {error}"
        ) from error
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):  # not empty, or gone
                path.rmdir()
        if descriptor is not None:
            os.close(descriptor)


def _locked(directory: Path, make: bool, made: list[Path]) -> int | None:
    """A descriptor that holds the lock; None where there is nothing. Raises `OSError`."""
    while True:
        if make:
            missing = [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            made[:] = missing
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
        os.close(descriptor)  # somebody removed it just now
