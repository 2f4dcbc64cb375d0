"""A cluster in containers that outlives the program that started it: `cluster up --docker`.

It is a local cluster whose members are containers. Its directory has the same plan, settings, logs
and stores, bound into each container at the same path, so tools that read a cluster's directory can
read this one too. Containers and network are named after the directory, and removed when the
cluster is down.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.docker.member import ContainerMember
from rocketbed.cluster.plan import (
    CONFIG,
    FILE,
    NAMESERVER,
    ClusterError,
    ClusterMember,
    ClusterPlan,
    change_settings,
    make_plan,
    node_names,
)
from rocketbed.host.docker.client import Daemon, DockerError, asking
from rocketbed.host.docker.container import remove
from rocketbed.host.docker.image import ready_image
from rocketbed.host.docker.network import (
    has_network,
    hosts,
    is_overlap,
    make_network,
    take_network,
)
from rocketbed.host.docker.owner import PYTHON
from rocketbed.host.ports import HOST, NAMESERVER_PORT, NODE_PORT, is_free


class DockerCluster(LocalCluster):
    """The containers of one directory."""

    def __init__(self, directory: Path, plan: ClusterPlan) -> None:
        """Use `create_in_docker` or `lifecycle.load`. Raises `DockerError`."""
        directory = directory.resolve()  # the path in the containers and their names
        try:
            self._daemon = Daemon.connect(plan.daemon or None)
        except DockerError as error:
            raise DockerError(
                f"the cluster of {directory} is in containers, and its daemon cannot be asked: "
                f"{error}. If that daemon is gone for good, so are they: delete the directory"
            ) from error
        self._name = name_of(directory)
        super().__init__(directory, plan)

    @classmethod
    def create_in_docker(
        cls,
        directory: Path,
        *,
        slaves: int = 2,
        port: int = 0,
        failover: bool = False,
        groups: int = 1,
        **options: Any,
    ) -> "DockerCluster":
        """Create a cluster in a directory that has none; nothing is started. Builds the image
        first.

        `port` of this system is published for the nameserver (0: none); the options are
        `make_plan`'s. Raises `ClusterError`, `DockerError`; on an error or an interrupt everything
        it created is removed.
        """
        directory = directory.resolve()
        if (directory / FILE).exists():
            raise ClusterError(f"{directory} already holds a cluster")
        if port and not is_free(port):
            raise ClusterError(f"port {port} is in use: choose another --port, or 0 for none")
        names = node_names(slaves, failover=failover, groups=groups)
        name = name_of(directory)
        with Daemon.connect() as daemon:
            ready_image(daemon)
            try:
                subnet = make_network(daemon, name, name)
                ports = [NAMESERVER_PORT, *(NODE_PORT for _ in names)]
                places = list(zip(hosts(subnet), ports, strict=False))
                plan = make_plan(
                    slaves=slaves, places=places, failover=failover, groups=groups, **options
                )
                plan = replace(plan, subnet=subnet, daemon=daemon.address, published=port)
                cluster = cls(directory, plan)
                cluster._write()
            except BaseException:
                with suppress(Exception):  # the first error counts
                    remove_objects(daemon, name)
                _unwrite(directory, names)
                raise
        return cluster

    def prepare(self) -> None:
        """Create the image and the network if missing. Blocks. Raises `DockerError`.

        If another network now uses its addresses, the cluster gets new ones.
        """
        ready_image(self._daemon)
        try:
            take_network(self._daemon, self._name, self._name, self.plan.subnet)
        except DockerError as error:
            if not is_overlap(error):
                raise
            self._move(make_network(self._daemon, self._name, self._name))

    def _move(self, subnet: str) -> None:
        """Give the members addresses of another network. Raises `ClusterError`."""
        members = tuple(
            replace(member, host=host)
            for member, host in zip(self.plan.members, hosts(subnet), strict=False)
        )
        self.plan = replace(self.plan, members=members, subnet=subnet)
        self._processes = {member.name: self._make_process(member) for member in members}
        addresses = ("brokerIP1", "bindAddress", "namesrvAddr")
        for member in members[1:]:
            own = self.member_directory(member.name)
            settings = self.plan.node_settings(member, own)
            change_settings(own, {key: settings[key] for key in addresses})
        self.plan.save(self.directory)

    async def give_up(self, names: Sequence[str]) -> None:
        """Stop members that failed to start; with the last of them containers and network are
        removed."""
        if set(names) == set(self.names):
            await self.close()
        else:
            for name in names:
                await self.stop(name)

    async def close(self) -> list[str]:
        """Stop every member, and remove containers and network; data is kept."""
        killed = await super().close()
        remove_objects(self._daemon, self._name)
        return killed

    def _make_process(self, member: ClusterMember) -> ContainerMember:
        ports = {}
        if not member.is_node and self.plan.published:
            ports = {member.port: (HOST, self.plan.published)}
        return ContainerMember(
            self._daemon,
            self._name,
            member,
            self._command(member),
            self.member_directory(member.name),
            ports,
        )

    def _command(self, member: ClusterMember) -> list[str]:
        return [PYTHON, *super()._command(member)[1:]]


def name_of(directory: Path) -> str:
    """Return the name of a directory's network, which is also the prefix of its containers'
    names."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return f"rocketbed-cluster-{digest[:12]}"


def remove_objects(daemon: Daemon, name: str) -> None:
    """Remove a cluster's containers and network, if they exist. Blocks.

    Raises `DockerError`.
    """
    with asking(f"the network {name} stays"):
        for row in daemon.containers(name):
            remove(daemon, row["Id"])
        if has_network(daemon, name):
            daemon.api.remove_network(name)


def _unwrite(directory: Path, names: Sequence[str]) -> None:
    """Remove what a new cluster wrote, and nothing else."""
    for name in names:
        (directory / name / CONFIG).unlink(missing_ok=True)
    (directory / FILE).unlink(missing_ok=True)
    for created in [*(directory / name for name in (*names, NAMESERVER)), directory]:
        with suppress(OSError):
            created.rmdir()
