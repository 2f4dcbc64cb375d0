"""A cluster of real processes on loopback: nameserver, master, slaves, or several groups of them.

    async with LocalCluster.create(directory, slaves=2) as cluster:
        await cluster.start()
        cluster.kill("master")
        await cluster.wait_ended("master")
        await cluster.start("master")

Processes are started detached and recorded in pid files, so a cluster outlives the program that
started it and can be loaded again with `lifecycle.load`.
"""

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import trio

from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError
from rocketbed.client.group_status import GroupStatus
from rocketbed.cluster.plan import (
    BROKER_NAME,
    CONFIG,
    FILE,
    NAMESERVER,
    ClusterError,
    ClusterMember,
    ClusterPlan,
    change_settings,
    make_plan,
    write_settings,
)
from rocketbed.cluster.promotion import Promotion
from rocketbed.cluster.status import MemberStatus
from rocketbed.host.member import LOG, ManagedProcess, rocketbed_command
from rocketbed.host.parent_death import tied_command
from rocketbed.remoting.errors import RemotingError
from rocketbed.world.real import real_world

SERVING_S: Final = 30.0
"""A member that is not serving after this time, seconds, counts as hanging."""
STOP_S: Final = 10.0
"""Time for a member to stop after SIGTERM, seconds; then it is killed."""
LOOK_S: Final = 0.01
"""Pause between checks if a member serves, seconds; a process cannot report it."""
ASK_S: Final = 1.0


class LocalCluster:
    """The processes of one directory. As a context manager it stops them at the end."""

    def __init__(self, directory: Path, plan: ClusterPlan, *, tied: bool = False) -> None:
        self.directory = directory
        self.plan = plan
        self._command_line = tied_command if tied else rocketbed_command
        self.world = real_world("cluster")
        self._processes = {member.name: self._make_process(member) for member in plan.members}

    def _make_process(self, member: ClusterMember) -> ManagedProcess:
        own = self.member_directory(member.name)
        return ManagedProcess(member.name, self._command(member), own)

    @classmethod
    def create(cls, directory: Path, *, tied: bool = False, **options: Any) -> "LocalCluster":
        """Create a cluster in a directory that has none; nothing is started. Raises `ClusterError`.

        The options are `make_plan`'s. The processes of a `tied` cluster die with the thread that
        started them.
        """
        directory = directory.absolute()
        if (directory / FILE).exists():
            raise ClusterError(f"{directory} already holds a cluster")
        cluster = cls(directory, make_plan(**options), tied=tied)
        cluster._write()
        return cluster

    # --- names and places

    @property
    def nameserver_address(self) -> str:
        """Address of the nameserver for clients, `host:port`."""
        return self.plan.member(NAMESERVER).address

    @property
    def names(self) -> list[str]:
        """Names of all members: the nameserver first, then master and slaves of each group."""
        return [member.name for member in self.plan.members]

    @property
    def nodes(self) -> list[str]:
        return [member.name for member in self.plan.members if member.is_node]

    def address(self, name: str) -> str:
        """Return the address at which a member listens. Raises `ClusterError`."""
        return self.plan.member(name).address

    def member_directory(self, name: str) -> Path:
        """Return a member's own directory: pid, log, `broker.conf`, store."""
        return self.directory / name

    def pid(self, name: str) -> int | None:
        return self._process(name).pid()

    # --- starting and ending

    def prepare(self) -> None:
        """Prepare what members need to start; processes need nothing. May take a while."""

    async def give_up(self, names: Sequence[str]) -> None:
        """Give up members that failed to start; processes are left for inspection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        with trio.CancelScope(shield=True):
            await self.close()

    async def start(self, *names: str, timeout_s: float = SERVING_S) -> None:
        """Start members (all if none is named) and wait until they serve.

        The nameserver goes first, the nodes together. Raises `ClusterError`, `ProcessError`.
        """
        started = names or tuple(self.names)
        if NAMESERVER in started:
            self.launch(NAMESERVER)
            await self.wait_serving(NAMESERVER, timeout_s=timeout_s)
        nodes = [name for name in started if name != NAMESERVER]
        for name in nodes:
            self.launch(name)
        for name in nodes:
            await self.wait_serving(name, timeout_s=timeout_s)

    def launch(self, name: str) -> int:
        """Start one member without waiting; return its pid. Raises `ProcessError` if it runs.

        The role in its `broker.conf` is set to the plan's, also after an interrupted promotion.
        """
        if self.plan.member(name).is_node and self.pid(name) is None:
            role_settings = self.plan.role_settings(self.plan.member(name))
            change_settings(self.member_directory(name), role_settings)
        return self._process(name).start()

    def kill(self, name: str) -> None:
        """Send SIGKILL. The process may take a moment to end: see `wait_ended`."""
        self.signal(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        self.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.signal(name, signal.SIGCONT)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal. Raises `ClusterError` when the member does not run."""
        if not self._process(name).signal(number):
            raise ClusterError(f"{name} is not running")

    async def wait_ended(self, name: str) -> int | None:
        """Wait for a member's end; return its exit code if this program started it."""
        return await self._process(name).wait_ended()

    async def stop(self, name: str, *, timeout_s: float = STOP_S) -> bool:
        """Send SIGTERM and wait; kill the member after `timeout_s` seconds. False if it had to be
        killed."""
        process = self._process(name)
        process.signal(signal.SIGTERM)
        with trio.move_on_after(timeout_s):
            await process.wait_ended()
            return True
        process.signal(signal.SIGKILL)
        await process.wait_ended()
        return False

    async def promote(self, name: str, *, force: bool = False) -> list[str]:
        """Make a slave the master; the former master becomes its slave at its next start.

        See `Promotion.run`.
        """
        return await Promotion(self, name).run(force=force)

    async def close(self) -> list[str]:
        """Stop every member, nodes first; return the names of those that had to be killed."""
        names = list(reversed(self.names))
        return [name for name in names if not await self.stop(name)]

    # --- looking

    async def wait_serving(self, name: str, *, timeout_s: float = SERVING_S) -> None:
        """Wait until the nameserver routes to a node and the node answers.

        Raises `ClusterError` with the end of its log if it ended or takes too long.
        """
        member, process = self.plan.member(name), self._process(name)
        problem = f"is not serving after {timeout_s:g} s"
        with trio.move_on_after(timeout_s):
            async with self.admin() as admin:
                while process.pid() is not None:
                    if (await self.look(member, admin)).is_serving:
                        return
                    await trio.sleep(LOOK_S)
            problem = f"ended with code {await process.wait_ended()}"
        raise ClusterError(f"{name} {problem}; {process.log_path} ends with:\n{process.log_tail()}")

    async def status(self) -> list[MemberStatus]:
        statuses: dict[str, MemberStatus] = {}

        async def find(member: ClusterMember) -> None:
            statuses[member.name] = await self.look(member, admin)

        async with self.admin() as admin, trio.open_nursery() as nursery:
            for member in self.plan.members:  # at once: each may be silent for seconds
                nursery.start_soon(find, member)
        return [statuses[name] for name in self.names]

    async def group(self, broker: str = BROKER_NAME) -> GroupStatus | None:
        """Return the controller's record of a group; None for a cluster without failover.

        Raises `ClusterError`, `ClientError` or `RemotingError` if the record cannot be read.
        """
        if not self.plan.failover:
            return None
        async with self.admin() as admin:
            record = (await admin.failover_groups()).get(broker)
        if record is None:
            log = self.member_directory(NAMESERVER) / LOG
            raise ClusterError(f"its controller knows of no group {broker}: see {log}")
        if "damaged" in record:
            raise ClusterError(record["damaged"])
        return self._group_status(broker, record)

    async def hand_over(self, name: str | None = None) -> GroupStatus:
        """Have another node lead that holds all messages: this one, or the first such node.

        In a cluster of several groups, name a node or a broker. Raises `ClusterError`,
        `ClientError`, `RemotingError`.
        """
        if not self.plan.failover:
            raise ClusterError("it has no failover: use `cluster promote`")
        broker, to = self._led_by(name)
        group = await self.group(broker)
        if group is None or group.leader is None:
            raise ClusterError("its controller names no leader: see `cluster status`")
        leader = next(node for node in self.plan.nodes(broker) if node.broker_id == group.leader)
        if to == group.leader:
            raise ClusterError(f"{name} leads already")
        async with self.admin() as admin:
            entry = await admin.hand_over(leader.address, broker, to=to, epoch=group.epoch)
        return self._group_status(broker, {"entry": entry})

    async def force_leader(self, name: str) -> GroupStatus:
        """Make this node the leader, whatever it lacks. Raises as `hand_over`."""
        if not self.plan.failover:
            raise ClusterError("it has no failover: use `cluster promote --force`")
        self._check_node(name)
        member = self.plan.member(name)
        async with self.admin() as admin:
            entry = await admin.force_leader(member.broker, member.broker_id)
        return self._group_status(member.broker, {"entry": entry})

    def _led_by(self, name: str | None) -> tuple[str, int]:
        """Return the group of a name, and the replica that is to lead it; -1: any."""
        brokers = self.plan.brokers
        if name in brokers or (name is None and len(brokers) == 1):
            return name or brokers[0], -1
        if name is None:
            raise ClusterError(f"name a node, or one of its groups: {', '.join(brokers)}")
        self._check_node(name)
        return self.plan.member(name).broker, self.plan.member(name).broker_id

    def _group_status(self, broker: str, record: Mapping[str, Any]) -> GroupStatus:
        names = {member.broker_id: member.name for member in self.plan.nodes(broker)}
        return GroupStatus.read(record, names)

    def _check_node(self, name: str) -> None:
        if name not in self.nodes:
            raise ClusterError(f"{name!r} is no node of it: {', '.join(self.nodes)} are")

    def admin(self) -> Admin:
        """Return an administration client, to be entered."""
        return Admin(self.world, nameservers=self.nameserver_address, timeout_s=ASK_S)

    async def look(self, member: ClusterMember, admin: Admin) -> MemberStatus:
        """Return the current status of one member."""
        pid = self._process(member.name).pid()
        is_routed = False
        info, broker_id = None, member.broker_id
        if pid is not None:
            with suppress(ClientError, RemotingError):
                table = (await admin.cluster()).broker_addr_table
                broker = table.get(member.broker)
                addresses = broker.broker_addrs if broker else {}
                if self.plan.failover:
                    ids = [number for number, at in addresses.items() if at == member.address]
                    broker_id = ids[0] if ids else member.broker_id
                is_routed = not member.is_node or addresses.get(broker_id) == member.address
            with suppress(ClientError, RemotingError):
                if member.is_node:
                    info = await admin.runtime_info(member.address)
        return MemberStatus(
            member=member, pid=pid, info=info, is_routed=is_routed, broker_id=broker_id
        )

    # --- inside

    def _process(self, name: str) -> ManagedProcess:
        self.plan.member(name)
        return self._processes[name]

    def _command(self, member: ClusterMember) -> list[str]:
        """Return a member's command. The process itself opens the log to which its output goes, so
        that it can rotate it."""
        options = ["node", "-c", CONFIG]
        if not member.is_node:
            options = ["nameserver"]
            for key, value in self.plan.nameserver_settings().items():
                options += ["--set", f"{key}={value}"]
        return self._command_line(*options, "--log", LOG)

    def _write(self) -> None:
        try:
            for member in self.plan.members:
                own = self.member_directory(member.name)
                own.mkdir(parents=True, exist_ok=True)
                if member.is_node:
                    write_settings(own, self.plan.node_settings(member, own))
            self.plan.save(self.directory)
        except OSError as exc:
            raise ClusterError(
                f"{self.directory} cannot be written: {exc.strerror or exc}"
            ) from exc
