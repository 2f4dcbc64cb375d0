"""A cluster in containers that outlives the program that started it: `cluster up --docker`.

It is a local cluster whose members are containers: the same directory with its plan, settings, logs
and stores, bound into each container at the same path, so what reads a cluster's directory reads
this one too. Containers and network are named after the directory, and gone when it is down.
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
        """Use `create_in_docker` or `LocalCluster.load`. Raises `DockerError`."""
        directory = directory.resolve()  # the path that containers and names have
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
        """A new cluster in a directory that has none; nothing runs yet. Builds the image first.

        `port` of this system will lead to the nameserver (0: none); the options are `make_plan`'s.
        Raises `ClusterError`, `DockerError`; then, and when it is interrupted, nothing of it is
        there.
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
                    take_away(daemon, name)
                _unwrite(directory, names)
                raise
        return cluster

    def prepare(self) -> None:
        """Let there be the image and the network. Blocks. Raises `DockerError`.

        Where somebody else has its addresses by now, it gets new ones.
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
            wanted = self.plan.node_settings(member, own)
            change_settings(own, {key: wanted[key] for key in addresses})
        self.plan.save(self.directory)

    async def give_up(self, names: Sequence[str]) -> None:
        """End members that were to start; with the last of them containers and network go."""
        if set(names) == set(self.names):
            await self.close()
        else:
            for name in names:
                await self.stop(name)

    async def close(self) -> list[str]:
        """Stop every member, and take containers and network away; data stays."""
        killed = await super().close()
        take_away(self._daemon, self._name)
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
    """What a directory's network is called, and what its containers' names begin with."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return f"rocketbed-cluster-{digest[:12]}"


def take_away(daemon: Daemon, name: str) -> None:
    """Remove a cluster's containers and network, as far as they are there. Blocks.

    Raises `DockerError`.
    """
    with asking(f"the network {name} stays"):
        for row in daemon.containers(name):
            remove(daemon, row["Id"])
        if has_network(daemon, name):
            daemon.api.remove_network(name)


def _unwrite(directory: Path, names: Sequence[str]) -> None:
    """Take back what a new cluster wrote; what else is there stays."""
    for name in names:
        (directory / name / CONFIG).unlink(missing_ok=True)
    (directory / FILE).unlink(missing_ok=True)
    for made in [*(directory / name for name in (*names, NAMESERVER)), directory]:
        with suppress(OSError):
            made.rmdir()
