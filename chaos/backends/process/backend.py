"""A cluster of real processes, behind the seam that every backend has (`chaos.run.api`).

Nodes and nameservers are programs of their own (`chaos.backends.process.watcher` reads their logs
and records their ends); clients are tasks of this process, on the network of their own machine
(`chaos.backends.process.network.base`). Disks are plain directories, or a volume for each node
whose power can be cut (`chaos.backends.process.machine`). Everything that outlives a process is on
record of the janitor's run.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trio

from rocketbed.chaos.backends.process.machine.machine import Machine
from rocketbed.chaos.backends.process.network.base import Network
from rocketbed.chaos.backends.process.registers import RegisterFile
from rocketbed.chaos.backends.process.samples import Asker
from rocketbed.chaos.backends.process.software import REGISTER, OwnSoftware, Software
from rocketbed.chaos.backends.process.watcher import POWER_CUT, Watcher
from rocketbed.chaos.evidence.history import HistoryWriter
from rocketbed.chaos.evidence.record import IMAGES, STORES, Image
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.chaos.plan.damage import Damage, Hit
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.verbs import RegisterFault
from rocketbed.chaos.run.api import (
    Collected,
    CrashPoint,
    DiskFault,
    Elected,
    Program,
    Sample,
    State,
)
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.host.member import Launched, ManagedProcess
from rocketbed.host.parent_death import tied_command
from rocketbed.world.api import Address, World

END_S: Final = 60.0
ELECTION_LOOK_S: Final = 0.1
"""Period of the questions to a controller about the leader."""
MISSING: Final = {
    "client.pause": "clients share the harness's process: they cannot be stopped one by one",
    "nameserver.stale": "a nameserver process cannot be given the table of an earlier one",
    "proc.twin": "a second process on a store is tried in simulation only",
    "disk.descriptors": "a real process is left without descriptors by `crowd` and its ulimit",
    "clock.drift": "a real clock can be moved, but not made to drift",
}
"""Capability -> why a cluster of processes lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """Parts of a run's cluster."""

    plan: Plan
    network: Network
    machines: Mapping[str, Machine]
    """Machines of the nodes, by name."""
    history: HistoryWriter
    directory: Path
    """For configurations and logs."""
    began_ns: int
    keeper: Ledger


@dataclass(slots=True, eq=False)
class _Client:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class ProcessBackend:
    """Cluster of one run. An async context manager: leaving it ends what still runs."""

    name = "process"

    def __init__(
        self,
        setup: SetUp,
        software: Software | None = None,
        command: Callable[..., list[str]] = tied_command,
    ) -> None:
        """`software` runs on the machines; None is rocketbed, whose programs `command` starts."""
        self.network = setup.network
        self.history = setup.history
        self._nameservers = setup.plan.shape.nameserver_names
        first = self._nameservers[0]
        where = first, partial(self.network.address, first)
        own = OwnSoftware(command, where if setup.plan.shape.failover else None)
        self._software = own if software is None else software
        self._machines = setup.machines
        self._directory = setup.directory
        self._began_ns = setup.began_ns
        self._processes: dict[str, Launched] = {}
        self._paused: set[str] = set()
        self._armed: dict[str, bool] = {}
        """Nodes with a crash point -> whether it cuts the power."""
        self._withdrawn: dict[Launched, bool] = {}
        """Processes whose crash point was withdrawn -> whether it cut the power. One may be dying
        by it at that moment."""
        has_clocks = all(machine.clock is not None for machine in self._machines.values())
        self.wall_rate = setup.plan.background.wall_rate if has_clocks else 1
        self._watcher = Watcher(
            software=self._software,
            history=self.history,
            nodes=self._machines.keys(),
            segment=setup.plan.shape.segment,
            struck=self._struck,
            lose_unflushed=self._lose_unflushed,
        )
        self._launched: dict[str, trio.Event] = {}
        """Set once the latest start of a program is over: only then can it be signalled."""
        self._power = {name: trio.Lock() for name in self._machines}
        """Held while a node's power is cut and returns: its disk is unmounted meanwhile."""
        self._images: list[Image] = []
        """Disks as power cuts left them."""
        self._clients: dict[str, _Client] = {}

    async def __aenter__(self) -> Self:
        await self.network.__aenter__()
        self.world: World = self.network.world("harness")
        self._asker = Asker(self.world)
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        await self._nursery.start(self._asker.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._end_all()
        finally:
            self._nursery.cancel_scope.cancel()
            try:
                await self._nursery_manager.__aexit__(kind, error, traceback)
            finally:
                await self.network.__aexit__(
                    kind, error, traceback
                )  # may hold a nursery: no shield

    async def _end_all(self) -> None:
        """End every program, even if one of them cannot be ended; then raise that one's error."""
        failures: list[HostError] = []

        async def end(process: Launched) -> None:
            try:
                if await process.send(signal.SIGKILL):
                    await process.wait_ended()  # its watcher may be cancelled already
            except HostError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for process in self._processes.values():
                self._watcher.blame(process, "kill", first=True)
                nursery.start_soon(end, process)
        if failures:
            raise failures[0]

    # --- looking

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._began_ns

    def lacks(self, capability: str) -> str | None:
        if capability.startswith("net."):
            return self.network.lacks(capability)
        if capability in MISSING:
            return MISSING[capability]
        if (reason := self._software.lacks(capability)) is not None:
            return reason
        if capability == "failover":  # does not depend on machines
            return None
        for machine in self._machines.values():
            return machine.lacks(capability)
        return None

    def nameservers(self) -> str:
        addresses = map(self.network.address, self._nameservers)
        return ";".join(f"{host}:{port}" for host, port in addresses)

    def address(self, node: str) -> Address:
        return self.network.address(node)

    def state(self, name: str) -> State:
        if not self._watcher.has(self._processes.get(name)):
            return "down"
        return "paused" if name in self._paused else "running"

    async def settled(self, name: str) -> None:
        await self._watcher.off(self._processes.get(name))

    def ends(self, name: str) -> int:
        return self._watcher.ends(name)

    def end_reason(self, name: str) -> str:
        return self._watcher.reason(name)

    async def observe(self, name: str) -> Sample | None:
        if self.state(name) != "running":
            return None
        return await self._software.observe(self._asker, self.network.address(name))

    @property
    def elects(self) -> bool:
        return self._software.elects

    async def elected(self, group: str) -> Elected | None:
        row = await self._software.elected(self._asker, group)
        if row is None:
            return None
        address, epoch, start = row
        names = (name for name in self._machines if self.network.address(name) == address)
        return next((Elected(node=name, epoch=epoch, start=start) for name in names), None)

    async def has_spare(self, node: str) -> bool:
        return True

    async def election(self) -> None:
        await trio.sleep(ELECTION_LOOK_S)

    async def copy_register(self, name: str) -> bool:
        return self._register(name).copy()

    async def lose_register(self, name: str, fault: RegisterFault) -> bool:
        return self._register(name).lose(fault)

    async def return_register(self, name: str) -> None:
        self._register(name).bring_back()

    def _register(self, name: str) -> RegisterFile:
        return RegisterFile(self._directory / name / REGISTER)

    # --- processes

    async def start(self, name: str, settings: Mapping[str, str], *, stale: bool = False) -> None:
        """Start a node or nameserver, after waiting until the end of its former process is
        recorded."""
        if stale:
            raise HostError(MISSING["nameserver.stale"])
        await self.settled(name)
        async with self._power.get(name) or trio.Lock():  # cuts come before it or after it
            await self._start(name, settings)

    async def _start(self, name: str, settings: Mapping[str, str]) -> None:
        own = self._directory / name
        own.mkdir(parents=True, exist_ok=True)
        lines = dict(self.network.settings(name))
        environment: Mapping[str, str] = {}
        if name in self._nameservers:
            command = self._software.nameserver_command(name, own, lines)
        else:
            machine = self._machines[name]
            lines = {
                **settings,
                **lines,
                "storePathRootDir": str(machine.store),
                "namesrvAddr": self.nameservers(),
            }
            command = self._software.node_command(name, own, lines)
            environment = machine.environment()
            await self.network.restore(name)
        process = self._processes[name] = self._process(name, command, environment, own)
        self._paused.discard(name)
        log_begin = self._watcher.begin(name, process)
        launched = self._launched[name] = trio.Event()
        try:
            pid = await process.launch()
        except BaseException:
            self._watcher.give_up(process)
            raise
        finally:
            launched.set()
        if pid and name in self._machines:
            self._machines[name].started(pid)
        self._nursery.start_soon(self._watcher.watch, name, process, log_begin)

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], own: Path
    ) -> Launched:
        """Return the process that will run a command on a machine; not started yet."""
        if environment:
            command = ["env", *(f"{key}={value}" for key, value in environment.items()), *command]
        return ManagedProcess(name, self.network.command(name, command), own)

    async def kill(self, name: str) -> None:
        await self._end(name, "kill")

    async def stop(self, name: str, timeout_s: float = END_S) -> bool:
        """Send SIGTERM and wait, for longer if the software may take longer."""
        process = await self._running(name)
        if process is None:
            return False
        self._watcher.blame(process, "stop")
        await process.send(signal.SIGTERM)
        with trio.move_on_after(max(timeout_s, self._software.stop_s)):
            code = await process.wait_ended()
            await self._watcher.off(process)
            return self._software.is_clean(code)
        await self.kill(name)
        return False

    async def pause(self, name: str) -> None:
        process = await self._running(name)
        if process is not None and await process.send(signal.SIGSTOP):
            self._paused.add(name)

    async def resume(self, name: str) -> None:
        self._paused.discard(name)
        await self._processes[name].send(signal.SIGCONT)

    async def power_cut(self, name: str, mode: str) -> None:
        """Silence the network, freeze the disk, kill, remount (chaos.md 3.3)."""
        async with self._power[name]:
            await self.network.silence(name)
            self._machines[name].power_cut()
            await self._end(name, POWER_CUT)
            await self._power_up(name)

    async def _lose_unflushed(self, name: str) -> None:
        async with self._power[name]:
            self._machines[name].power_cut()
            await self._power_up(name)

    async def _power_up(self, name: str) -> None:
        """Remount a disk, and keep a copy as the cut left it."""
        await self._machines[name].remount()
        time_ns = self.now_ns()
        number = 1 + sum(image.node == name for image in self._images)
        where = f"{IMAGES}/{name}-{number}"
        self._machines[name].copy_store(self._directory.parent / where)
        image = Image(node=name, number=number, time_ns=time_ns, cause=POWER_CUT, directory=where)
        self._images.append(image)

    async def crash(self, name: str, point: CrashPoint) -> None:
        """Arm a crash point: of the disk layer, or a mark of the node.

        With `power` the volume loses what it did not have when the process died; unlike after a
        power cut, peers notice that death.
        """
        if point == CrashPoint():
            with_power = self._armed.pop(name, None)
            if with_power is not None and name in self._processes:
                self._withdrawn[self._processes[name]] = with_power
        else:
            self._armed[name] = point.power
        self._machines[name].crash_at(point.event, point.mark)

    async def twin(self, name: str) -> bool:
        raise HostError(f"{name}: {MISSING['proc.twin']}")

    async def wipe(self, name: str) -> None:
        await self._end(name, "kill")
        await self._machines[name].wipe()

    async def damage(self, name: str, damage: Damage) -> Hit:
        return self._machines[name].damage(damage)

    def reported(self, name: str) -> str:
        return self._watcher.reported(name)

    def refuses(self, name: str) -> str:
        return self._watcher.refuses(name)

    async def _running(self, name: str) -> Launched | None:
        """Return the process of a running program, after waiting for a start under way; None if it
        is down."""
        if name in self._launched:
            await self._launched[name].wait()
        process = self._processes.get(name)
        return None if process is None or process.pid() is None else process

    async def _end(self, name: str, cause: str) -> None:
        process = await self._running(name)
        if process is None:
            await self.settled(name)
            return
        self._watcher.blame(process, cause)
        self._paused.discard(name)
        await process.send(signal.SIGKILL)
        with trio.move_on_after(END_S):
            await self._watcher.off(process)
            return
        raise HostError(f"{name} has not ended {END_S:g} s after SIGKILL")

    def _struck(self, name: str, code: int | None) -> str | None:
        """Return the effect of a node's crash point, and disarm it, if that ended the node; else
        None."""
        withdrawn = self._withdrawn.pop(self._processes[name], None)
        with_power = self._armed.get(name, withdrawn)
        if with_power is None or code != -signal.SIGKILL:
            return None
        self._armed.pop(name, None)
        self._machines[name].crash_at(None, None)
        return POWER_CUT if with_power else "kill"

    # --- surroundings

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        await self.network.set_link(source, target, state)

    async def reset(self, first: str, second: str) -> None:
        await self.network.reset(first, second)

    async def set_disk(self, name: str, faults: Sequence[DiskFault]) -> None:
        self._machines[name].set_faults(faults)

    async def set_clock(self, name: str, *, jump_s: float = 0.0, drift: float = 0.0) -> None:
        if drift:
            raise HostError(MISSING["clock.drift"])
        if jump_s:
            self._machines[name].jump_clock(jump_s)

    async def set_cpu(self, name: str, slowness: float) -> None:
        process = self._processes.get(name)
        pid = None if process is None else process.pid()
        if pid is not None:
            self._machines[name].limit_cpu(pid, slowness)

    # --- clients

    def start_client(self, name: str, program: Program) -> None:
        client = self._clients[name] = _Client()
        self._nursery.start_soon(self._run_client, name, program, client)

    async def _run_client(self, name: str, program: Program, client: _Client) -> None:
        try:
            with client.scope:
                await program(self.network.world(name))
        finally:
            if self._clients.get(name) is client:
                del self._clients[name]
            client.ended.set()

    async def kill_client(self, name: str) -> None:
        """End the program if it runs, and wait; its connections close."""
        client = self._clients.get(name)
        if client is not None:
            client.scope.cancel()
            await client.ended.wait()

    async def pause_client(self, name: str, *, resume: bool = False) -> None:
        raise HostError(str(self.lacks("client.pause")))

    def client_state(self, name: str) -> State:
        return "running" if name in self._clients else "down"

    # --- the end

    async def collect(self, directory: Path) -> Collected:
        stores: dict[str, str] = {}
        trace = Trace()
        for name, machine in self._machines.items():
            with suppress(FileNotFoundError):
                machine.copy_store(directory / STORES / name)
                stores[name] = f"{STORES}/{name}"
            machine.read_trace(trace.node(name), self._began_ns)
        trace.nodes = {name: node for name, node in trace.nodes.items() if node.times}
        software = self._software
        facts = {"net": self.network.name, "software": software.name, "elects": software.elects}
        return Collected(stores, self._images, trace, facts=facts)
