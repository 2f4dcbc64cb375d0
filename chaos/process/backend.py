"""A cluster of real processes, behind the seam that every backend has (`chaos.trial.api`).

Nodes and nameservers are programs of their own; clients run in this process, on the network of
their own machine (`chaos.process.fabric`). Disks are plain directories, or a volume for each node
whose power can be cut (`chaos.process.machine`). Everything that outlives a process is on record of
the janitor's run.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import trio

from chaos.history import Function, HistoryWriter
from chaos.process.asking import Asker
from chaos.process.fabric import Fabric
from chaos.process.machine import Machine
from chaos.process.member import Launched, ManagedProcess
from chaos.process.software import OwnSoftware, Software
from chaos.record import IMAGES, STORES, Image
from chaos.trace import Trace
from chaos.trial.api import (
    BackendError,
    Collected,
    CrashPoint,
    DiskFault,
    Elected,
    LinkState,
    Program,
    Sample,
    State,
)
from rocketbed.world.api import Address, World

LOOK_S: Final = 0.005
END_S: Final = 20.0
MISSING: Final = {
    "client.pause": "clients share the harness's process: they cannot be stopped one by one",
    "nameserver.stale": "a nameserver process cannot be given the table of an earlier one",
    "proc.twin": "a second process on a store is tried in simulation only",
    "clock.drift": "a real clock can be moved, but not made to drift",
}
"""What no cluster of processes can do, and why."""


class ProcessBackend:
    """One run's cluster. An async context manager: leaving it ends what still runs."""

    name = "process"

    def __init__(
        self,
        fabric: Fabric,
        machines: Mapping[str, Machine],
        nameservers: Sequence[str],
        history: HistoryWriter,
        directory: Path,
        began_ns: int,
        software: Software | None = None,
    ) -> None:
        """`machines` are the nodes' by name; `directory` is for logs and configurations."""
        self.fabric = fabric
        self._software = OwnSoftware() if software is None else software
        self.history = history
        self.images: list[Image] = []
        self._machines = machines
        self._nameservers = list(nameservers)
        self._directory = directory
        self._began_ns = began_ns
        self._processes: dict[str, Launched] = {}
        self._paused: set[str] = set()
        self._causes: dict[Launched, str] = {}
        """Why a process is going to end."""
        self._reasons: dict[str, str] = {}
        self._end_counts: dict[str, int] = {}
        self._armed: dict[str, bool] = {}
        """Nodes that have a crash point; whether the power goes with it."""
        self._noted: dict[Launched, trio.Event] = {}
        """Of each process from its start until its end stands in the history; set then."""
        self._launched: dict[str, trio.Event] = {}
        """Set once the latest start of a program is over: only then can it be signalled."""
        self._power = {name: trio.Lock() for name in machines}
        """Held while a node's power is cut and comes back: the disk is away meanwhile."""
        self._clients: dict[str, trio.CancelScope] = {}

    async def __aenter__(self) -> Self:
        await self.fabric.__aenter__()
        self.world: World = self.fabric.world("harness")
        self._asker = Asker(self.world)
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self._nursery.start_soon(self._asker.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True):
            for process in self._processes.values():
                self._causes.setdefault(process, "kill")
                if await process.send(signal.SIGKILL):
                    await process.wait_ended()  # its watcher may be cancelled already
        self._nursery.cancel_scope.cancel()
        try:
            await self._nursery_manager.__aexit__(kind, error, traceback)
        finally:
            await self.fabric.__aexit__(kind, error, traceback)  # may hold a nursery: no shield

    # --- looking

    def now_ns(self) -> int:
        """Nanoseconds since the run began, on the kernel's monotonic clock."""
        return time.monotonic_ns() - self._began_ns

    def lacks(self, capability: str) -> str | None:
        """Why a capability is missing on this machine or in this set-up."""
        if capability.startswith("net."):
            return self.fabric.lacks(capability)
        if capability in MISSING:
            return MISSING[capability]
        if (reason := self._software.lacks(capability)) is not None:
            return reason
        for machine in self._machines.values():
            return machine.lacks(capability)
        return None

    def nameservers(self) -> str:
        """Of all nameservers."""
        addresses = map(self.fabric.address, self._nameservers)
        return ";".join(f"{host}:{port}" for host, port in addresses)

    def address(self, node: str) -> Address:
        """Where clients find it."""
        return self.fabric.address(node)

    def state(self, name: str) -> State:
        """Of a node or nameserver."""
        if self._processes.get(name) not in self._noted:
            return "down"
        return "paused" if name in self._paused else "running"

    async def settled(self, name: str) -> None:
        """Wait for the watcher of its last process."""
        earlier = self._processes.get(name)
        if earlier is not None and (noted := self._noted.get(earlier)) is not None:
            await noted.wait()

    def ends(self, name: str) -> int:
        """How often it has ended."""
        return self._end_counts.get(name, 0)

    def end_reason(self, name: str) -> str:
        """The last line of its log, if it ended by itself."""
        return self._reasons.get(name, "")

    async def observe(self, name: str) -> Sample | None:
        """Ask the node."""
        if self.state(name) != "running":
            return None
        return await self._software.observe(self._asker, self.fabric.address(name))

    @property
    def elects(self) -> bool:
        """Whether the software has a controller."""
        return self._software.elects

    async def elected(self, group: str) -> Elected | None:
        """Ask the controller, and the master for its begin."""
        found = await self._software.elected(self._asker, group)
        if found is None:
            return None
        address, epoch, start = found
        for name in self._machines:
            if self.fabric.address(name) == address:
                return Elected(node=name, epoch=epoch, start=start)
        return None

    # --- processes

    async def start(self, name: str, settings: Mapping[str, str], *, stale: bool = False) -> None:
        """Start a node or nameserver; waits until an earlier process of it is off the books."""
        if stale:
            raise BackendError(MISSING["nameserver.stale"])
        earlier = self._processes.get(name)
        if earlier is not None and (noted := self._noted.get(earlier)) is not None:
            await noted.wait()
        if name in self._power:
            async with self._power[name]:
                pass  # a cut that is under way ends first
        own = self._directory / name
        own.mkdir(parents=True, exist_ok=True)
        lines = dict(self.fabric.settings(name))
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
            await self.fabric.restore(name)
        process = self._process(name, command, environment, own)
        self._processes[name] = process
        self._reasons.pop(name, None)
        log_end = process.log_path.stat().st_size if process.log_path.exists() else 0
        self._noted[process] = trio.Event()
        launched = self._launched[name] = trio.Event()
        try:
            pid = await process.launch()
        except BaseException:
            self._noted.pop(process).set()
            raise
        finally:
            launched.set()
        if name in self._machines:
            self._machines[name].started(pid)
        self._nursery.start_soon(self._watch, name, process, log_end)

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], own: Path
    ) -> Launched:
        """What will run a command on a machine; not started yet."""
        if environment:
            command = ["env", *(f"{key}={value}" for key, value in environment.items()), *command]
        return ManagedProcess(name, self.fabric.command(name, command), own)

    async def kill(self, name: str) -> None:
        """SIGKILL, and wait."""
        await self._end(name, "kill")

    async def stop(self, name: str, timeout_s: float = END_S) -> bool:
        """SIGTERM, and wait; longer where the software is known to take longer."""
        process = self._processes.get(name)
        if process is None or process.pid() is None:
            return False
        noted = self._noted[process]
        self._causes[process] = "stop"
        await process.send(signal.SIGTERM)
        with trio.move_on_after(max(timeout_s, self._software.stop_s)):
            code = await process.wait_ended()
            await noted.wait()
            return self._software.is_clean(code)
        await self.kill(name)
        return False

    async def pause(self, name: str) -> None:
        """SIGSTOP."""
        process = await self._running(name)
        if process is not None and await process.send(signal.SIGSTOP):
            self._paused.add(name)

    async def resume(self, name: str) -> None:
        """SIGCONT."""
        self._paused.discard(name)
        await self._processes[name].send(signal.SIGCONT)

    async def power_cut(self, name: str, mode: str) -> None:
        """Silence the network, freeze the disk, kill, mount again (chaos.md 3.3)."""
        machine = self._machines[name]
        async with self._power[name]:
            await self.fabric.silence(name)
            machine.power_cut()
            await self._end(name, "powercut")
            await machine.remount()
            self._keep_image(name, "powercut")

    async def _lose_unflushed(self, name: str) -> None:
        machine = self._machines[name]
        async with self._power[name]:
            machine.power_cut()
            await machine.remount()
            self._keep_image(name, "powercut")

    async def crash(self, name: str, point: CrashPoint) -> None:
        """Arm a crash point: of the disk layer, or a mark of the node.

        With `power` the volume loses what it did not have when the process died; unlike at a power
        cut, peers hear of that death.
        """
        if point == CrashPoint():
            self._armed.pop(name, None)
        else:
            self._armed[name] = point.power
        self._machines[name].crash_at(point.event, point.mark)

    async def twin(self, name: str) -> bool:
        """Never called: the capability is missing."""
        raise BackendError(f"{name}: {MISSING['proc.twin']}")

    async def wipe(self, name: str) -> None:
        """Kill it and empty its disk."""
        await self._end(name, "kill")
        await self._machines[name].wipe()

    async def bit_flip(self, name: str) -> str:
        """Flip one bit of the commit log."""
        return self._machines[name].bit_flip()

    async def _running(self, name: str) -> Launched | None:
        """The process of a program that runs; one that is just being started is waited for."""
        if name in self._launched:
            await self._launched[name].wait()
        process = self._processes.get(name)
        return None if process is None or process.pid() is None else process

    async def _end(self, name: str, cause: str) -> None:
        process = await self._running(name)
        if process is None:
            await self.settled(name)
            return
        self._causes[process] = cause
        self._paused.discard(name)
        noted = self._noted[process]
        await process.send(signal.SIGKILL)
        with trio.fail_after(END_S):
            await noted.wait()

    async def _watch(self, name: str, process: Launched, log_end: int) -> None:
        """Read a process's log until it has recovered, and note its end."""
        if name not in self._nameservers:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log, name, process, log_end)
                await process.wait_ended()
                nursery.cancel_scope.cancel()
            self._read_rest(name, process, log_end)
        else:
            await process.wait_ended()
        code = process.exit_code()
        cause = self._causes.pop(process, "crash")
        has_power_gone = False
        if cause == "crash" and name in self._armed and code == -signal.SIGKILL:
            has_power_gone = self._armed[name]
            cause = "powercut" if has_power_gone else "kill"
            await self.crash(name, CrashPoint())
        elif cause == "crash" and self._processes[name] is process:
            log = process.log_path.read_bytes()[log_end:].decode("utf-8", "replace")
            self._reasons[name] = self._software.reason(log.strip(), code)
        if name not in self._nameservers:
            fields = {"cause": cause, "code": code, "reason": self._reasons.get(name, "")}
            self.history.event(Function.NODE, name, "exit", fields)
        if has_power_gone:
            await self._lose_unflushed(name)
        self._end_counts[name] = self._end_counts.get(name, 0) + 1
        self._noted.pop(process).set()

    async def _read_log(self, name: str, process: Launched, log_end: int) -> None:
        while not self._note_recovery(name, process, log_end):
            await trio.sleep(LOOK_S)

    def _read_rest(self, name: str, process: Launched, log_end: int) -> None:
        for fields in self._software.cuts(process.log_path.read_bytes()[log_end:]):
            self.history.event(Function.NODE, name, "cut", dict(fields))

    def _note_recovery(self, name: str, process: Launched, log_end: int) -> bool:
        fields = self._software.recovered(process.log_path.read_bytes()[log_end:])
        if fields is not None:
            self.history.event(Function.NODE, name, "recovered", dict(fields))
        return fields is not None

    def _keep_image(self, name: str, cause: str) -> None:
        number = 1 + sum(image.node == name for image in self.images)
        where = f"{IMAGES}/{name}-{number}"
        self._machines[name].copy_store(self._directory.parent / where)
        self.images.append(
            Image(
                node=name,
                number=number,
                time_ns=self.now_ns(),
                cause=cause,
                directory=where,
            )
        )

    # --- surroundings

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """One direction of a link."""
        await self.fabric.set_link(source, target, state)

    async def reset(self, one: str, other: str) -> None:
        """Reset all connections between two machines."""
        await self.fabric.reset(one, other)

    async def set_disk(self, name: str, faults: Sequence[DiskFault]) -> None:
        """What the node's disk does wrong."""
        self._machines[name].set_faults(faults)

    async def set_clock(self, name: str, *, jump_s: float = 0.0, drift: float = 0.0) -> None:
        """Move the node's wall clock."""
        if drift:
            raise BackendError(MISSING["clock.drift"])
        if jump_s:
            self._machines[name].jump_clock(jump_s)

    async def set_cpu(self, name: str, slowness: float) -> None:
        """Give the node a share of a processor."""
        process = self._processes.get(name)
        pid = None if process is None else process.pid()
        if pid is not None:
            self._machines[name].limit_cpu(pid, slowness)

    # --- clients

    def start_client(self, name: str, program: Program) -> None:
        """Run a program in this process, on the network of its machine."""
        scope = self._clients[name] = trio.CancelScope()
        self._nursery.start_soon(self._run_client, name, program, scope)

    async def _run_client(self, name: str, program: Program, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await program(self.fabric.world(name))
        finally:
            if self._clients.get(name) is scope:
                del self._clients[name]

    async def kill_client(self, name: str) -> None:
        """End the program; its connections close."""
        scope = self._clients.get(name)
        if scope is not None:
            scope.cancel()
        while self._clients.get(name) is scope and scope is not None:
            await trio.sleep(LOOK_S)

    async def pause_client(self, name: str, *, resume: bool = False) -> None:
        """Not possible here (`client.pause`)."""
        raise BackendError(str(self.lacks("client.pause")))

    def client_state(self, name: str) -> State:
        """Whether the program runs."""
        return "running" if name in self._clients else "down"

    # --- the end

    def _facts(self) -> dict[str, Any]:
        return {
            "net": self.fabric.name,
            "software": self._software.name,
            "elects": self._software.elects,
        }

    async def collect(self, directory: Path) -> Collected:
        """Copy stores off their machines."""
        stores: dict[str, str] = {}
        trace = Trace()
        for name, machine in self._machines.items():
            where = f"{STORES}/{name}"
            with suppress(FileNotFoundError):
                machine.copy_store(directory / where)
                stores[name] = where
            machine.read_trace(trace.node(name), self._began_ns)
        trace.nodes = {name: node for name, node in trace.nodes.items() if node.times}
        return Collected(stores, self.images, trace, facts=self._facts())
