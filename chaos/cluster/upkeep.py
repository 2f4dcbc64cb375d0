"""A directory's cluster as a whole: made or found, started, and removed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from rocketbed.chaos.cluster.cluster import LocalCluster
from rocketbed.chaos.cluster.plan import FILE, ClusterError
from rocketbed.chaos.cluster.status import MemberStatus


def known(directory: Path, *, docker: bool, say: Callable[[str], None]) -> LocalCluster | None:
    """The cluster that a directory has. Raises `ClusterError` for one that is no containers'."""
    if not (directory / FILE).exists():
        return None
    say(f"{directory} already holds a cluster, which keeps its own options")
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
        from rocketbed.chaos.cluster.docker.cluster import DockerCluster

        return DockerCluster.create_in_docker(directory, **options)
    return LocalCluster.create(directory, **options)


def missing(cluster: LocalCluster) -> list[str]:
    """Members that do not run."""
    return [name for name in cluster.names if cluster.pid(name) is None]


async def start_missing(cluster: LocalCluster) -> list[MemberStatus]:
    """Start what does not run and wait until it serves; what did not come up is ended again."""
    names = missing(cluster)
    if names:
        try:
            await cluster.start(*names)
        except BaseException:
            with trio.CancelScope(shield=True):
                await cluster.give_up(names)
            raise
    return await cluster.status()


def remove_files(cluster: LocalCluster) -> None:
    """Delete the members' directories, and the cluster's own when nothing else is in it."""
    for name in cluster.names:
        shutil.rmtree(cluster.member_directory(name), ignore_errors=True)
    (cluster.directory / FILE).unlink(missing_ok=True)
    if not any(cluster.directory.iterdir()):
        cluster.directory.rmdir()
