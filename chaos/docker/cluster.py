"""A cluster in containers that outlives the program that started it: `cluster up --docker`.

It is a local cluster whose members are containers: the same directory with its plan, settings, logs
and stores, bound into each container at the same path, so what reads a cluster's directory reads
this one too. Containers and network are named after the directory, and gone when it is down.
"""

import hashlib
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import trio

from chaos.docker.backend import MEMORY, PYTHON, USER, give
from chaos.docker.client import Daemon, asking, call
from chaos.docker.container import SHELL, SIGNALLED, Spec, create, remove
from chaos.docker.image import ready_image
from chaos.docker.network import make_network, take_network
from chaos.process.cluster import LocalCluster
from chaos.process.fabric import NAMESERVER_PORT, NODE_PORT
from chaos.process.member import ProcessError, tail_of
from chaos.process.plan import FILE, NAMESERVER, ClusterError, ClusterPlan, Member, node_names
from chaos.process.ports import HOST, is_free


class DockerCluster(LocalCluster):
    """The containers of one directory."""

    def __init__(self, directory: Path, plan: ClusterPlan) -> None:
        """Use `create_in_docker` or `LocalCluster.load`. Raises `DockerError`."""
        self._daemon = Daemon.connect()
        self._name = name_of(directory)
        super().__init__(directory, plan)

    @classmethod
    def create_in_docker(
        cls,
        directory: Path,
        *,
        slaves: int = 2,
        sync: bool = True,
        flush: Literal["sync", "async"] = "async",
        port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> "DockerCluster":
        """A new cluster in a directory that has none; nothing runs yet.

        `port` of this system will lead to the nameserver (0: none). Raises `ClusterError`,
        `DockerError`.
        """
        directory = directory.absolute()
        if (directory / FILE).exists():
            raise ClusterError(f"{directory} has a cluster already")
        if port and not is_free(port):
            raise ClusterError(f"port {port} is in use: choose another --port, or 0 for none")
        names = node_names(slaves)
        with Daemon.connect() as daemon:
            network = make_network(daemon, name_of(directory), name_of(directory))
        hosts = network.hosts
        members = [Member(name=NAMESERVER, port=NAMESERVER_PORT, host=hosts[0])]
        members += [
            Member(name=name, port=NODE_PORT, broker_id=number, host=hosts[1 + number])
            for number, name in enumerate(names)
        ]
        plan = ClusterPlan(
            members=tuple(members),
            sync=sync and slaves > 0,
            in_sync_replicas=min(2, slaves + 1),
            flush=flush,
            settings=dict(settings or {}),
            subnet=network.subnet,
            published=port,
        )
        cluster = cls(directory, plan)
        cluster._write()
        return cluster

    def prepare(self) -> None:
        """Let there be the image and the network. Blocks. Raises `DockerError`."""
        ready_image(self._daemon)
        take_network(self._daemon, self._name, self._name, self.plan.subnet)

    async def close(self) -> list[str]:
        """Stop every member, and take containers and network away; data stays."""
        killed = await super().close()
        with asking(f"the network {self._name} stays"):
            for row in self._daemon.containers(self._name):
                remove(self._daemon, row["Id"])
            if self._daemon.api.networks(names=[self._name]):
                self._daemon.api.remove_network(self._name)
        return killed

    def _make_process(self, member: Member) -> "ContainerMember":
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

    def _command(self, member: Member) -> list[str]:
        return [PYTHON, *super()._command(member)[1:]]


class ContainerMember:
    """A member's container, made anew at each start; `chaos.process.member.MemberProcess`."""

    def __init__(
        self,
        daemon: Daemon,
        cluster: str,
        member: Member,
        command: list[str],
        directory: Path,
        ports: Mapping[int, tuple[str, int]],
    ) -> None:
        self.directory = directory
        self._daemon = daemon
        self._cluster = cluster
        self._member = member
        self._command = command
        self._ports = ports
        self._full = f"{cluster}-{member.name}"

    @property
    def log_path(self) -> Path:
        """In the member's directory."""
        return self.directory / "log"

    def start(self) -> int:
        """Make and start the container; the pid of its init. Raises `ProcessError`."""
        import docker.errors

        name = self._member.name
        state = self._state()
        if state is not None and state["Running"]:
            raise ProcessError(f"{name} is already running as process {state['Pid']}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_path.touch()
        user = f"{os.geteuid()}:{os.getegid()}"
        if os.geteuid() == 0:
            give(self.directory)
            user = f"{USER}:{USER}"
        spec = Spec(
            image=ready_image(self._daemon),
            command=self._command,
            network=self._cluster,
            directory=self.directory,
            user=user,
            memory=MEMORY,
            address=self._member.host,
            ports=self._ports,
        )
        with asking(f"{name} does not start"):
            if state is not None:
                remove(self._daemon, self._full)
            create(self._daemon, self._cluster, self._full, spec, [*SHELL, *self._command])
            try:
                self._daemon.api.start(self._full)
            except docker.errors.APIError:
                remove(self._daemon, self._full)
                raise
        return self.pid() or 0

    def pid(self) -> int | None:
        """Of the container's init, on this system."""
        state = self._state()
        return int(state["Pid"]) if state is not None and state["Running"] else None

    def signal(self, number: signal.Signals) -> bool:
        """SIGSTOP and SIGCONT freeze and thaw the container, others go to the program."""
        state = self._state()
        if state is None or not state["Running"]:
            return False
        with asking(f"{self._member.name}: {number.name}"):
            if number == signal.SIGSTOP:
                self._daemon.api.pause(self._full)
            elif state["Paused"] and number in (signal.SIGCONT, signal.SIGTERM):
                self._daemon.api.unpause(self._full)
            if number not in (signal.SIGSTOP, signal.SIGCONT):
                self._daemon.api.kill(self._full, number.name)
        return True

    async def wait_ended(self) -> int | None:
        """Wait for the container's end; the program's exit code, None when it never ran."""
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                try:
                    await trio.lowlevel.wait_readable(descriptor)
                finally:
                    os.close(descriptor)
        if self._state() is None:
            return None
        api, full = self._daemon.api, self._full
        answer = await call(lambda: api.wait(full), f"the end of {self._member.name}")
        status = int(answer["StatusCode"])
        return SIGNALLED - status if status > SIGNALLED else status

    def log_tail(self) -> str:
        """The end of what it printed."""
        return tail_of(self.log_path)

    def _state(self) -> dict[str, Any] | None:
        import docker.errors

        with asking(f"{self._member.name} cannot be looked at"):
            try:
                state: dict[str, Any] = self._daemon.api.inspect_container(self._full)["State"]
            except docker.errors.NotFound:
                return None
        return state


def name_of(directory: Path) -> str:
    """What a directory's network is called, and what its containers' names begin with."""
    digest = hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()
    return f"rocketbed-cluster-{digest[:12]}"
