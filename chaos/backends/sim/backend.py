"""A cluster in simulation, behind the seam that every backend has (`chaos.run.api`).

The conductor is a process of the simulation itself, on a host called `harness`, so that its waits
are virtual too. Its effects on others happen between the steps of all loops: an action is put on
the timeline and waited for.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from rocketbed.chaos.backends.at_rest import inflict
from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.diskfaults import SimulatedFiles, arm, put_faults
from rocketbed.chaos.backends.sim.logwatch import STORE
from rocketbed.chaos.backends.sim.memory_cas import MemoryCas, Shelf
from rocketbed.chaos.backends.sim.process import SimProcess
from rocketbed.chaos.backends.sim.recorder import Recorder
from rocketbed.chaos.backends.sim.simulation import LogLine, Simulation
from rocketbed.chaos.evidence.history import Function, HistoryWriter
from rocketbed.chaos.plan.check import MESSAGE_MAX
from rocketbed.chaos.plan.damage import Damage, Hit
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
from rocketbed.chaos.run.operator import NO_FAILOVER
from rocketbed.host.errors import HostError
from rocketbed.node.config.node_config import NodeConfig, Setting, make_config
from rocketbed.node.node import Node, run_node
from rocketbed.replication.controller import Controller
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.register.cas import CasBroken, Versioned
from rocketbed.replication.register.form import loaded
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.wire.command import ResponseCode
from rocketbed.world.api import Address, World

T = TypeVar("T")

PORT: Final = 10911
NAMESERVER_PORT: Final = 9876
HARNESS: Final = "harness"
ELECTION_LOOK_S: Final = 0.1
TWIN_S: Final = 30.0
"""Longest time for a second process on a store to report that the directory is taken."""
NEVER_NS: Final = 1 << 62
"""Wait for an answer that our nodes never give."""
SETTINGS: Final = {
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "1000",
    "maxMessageSize": str(MESSAGE_MAX),
    "diskSpaceWarningLevelRatio": "95",
    "rbMetadataSync": "1000",
    "slaveTimeout": "1000",
}
"""Small files, so that there are several of each kind within a minute."""


class SimBackend:
    """Cluster of one simulation. Made by `chaos.backends.sim.run`."""

    name = "sim"
    wall_rate = 1

    def __init__(
        self,
        simulation: Simulation,
        world: World,
        history: HistoryWriter,
        nameservers: list[str],
        *,
        elects: bool = False,
    ) -> None:
        """`elects`: controllers beside the nameservers elect the leaders."""
        self.world = world
        self.elects = elects
        self._register = Shelf(lambda: simulation.timeline.now / SECOND)
        self._copied: dict[str, list[Versioned]] = {}
        """A copy of the register."""
        self._newest: dict[str, list[Versioned]] = {}
        """Its values when it was lost."""
        self.history = history
        self.simulation = simulation
        self.nodes: dict[str, Node] = {}
        """Latest incarnations of the nodes, from the time they serve."""
        self._nameservers = nameservers
        self._tables: dict[str, Nameserver] = {}
        self._faults: dict[str, Sequence[DiskFault]] = {}
        """Faults of each disk, in this incarnation and in later ones."""
        self._ended: dict[str, trio.Event] = {}
        self._configs: dict[str, NodeConfig] = {}
        self._armed: dict[str, CrashPoint] = {}
        """Crash points of nodes that are down, for their next start."""
        self._usual_link = simulation.network.usual_link
        self._led = trio.Event()
        """Set when a node reports that it leads."""
        simulation.on_end.append(self._process_ended)
        simulation.on_log.append(self._logged)
        self._recorder = Recorder(simulation, history)
        simulation.tolerate_crashes = True

    # --- looking

    def now_ns(self) -> int:
        return self.simulation.timeline.now

    def lacks(self, capability: str) -> str | None:
        return NO_FAILOVER if capability == "failover" and not self.elects else None

    def nameservers(self) -> str:
        return ";".join(f"{name}:{NAMESERVER_PORT}" for name in self._nameservers)

    def address(self, node: str) -> Address:
        port = NAMESERVER_PORT if node in self._nameservers else PORT
        return self.simulation.host(node).address, port

    def state(self, name: str) -> State:
        process = self.simulation.host(name).process
        if process is None or process.done:
            return "down"
        return "paused" if process.state == "paused" else "running"

    client_state = state

    async def observe(self, name: str) -> Sample | None:
        """Read a sample off the node itself, without a message that could disturb it."""
        node = self.nodes.get(name)
        if node is None or self.state(name) != "running":
            return None
        log = node.store.log
        in_sync = 1 + node.replication.runtime_info().in_sync_slave_nums
        confirmed = log.written.value if node.confirmed is None else node.confirmed.value
        return Sample(
            written=log.written.value,
            flushed=log.flushed.value,
            confirmed=confirmed,
            dispatched=node.store.dispatched.value,
            in_sync=0 if node.config.is_slave else in_sync,
            is_master=not node.config.is_slave,
            is_following=node.replication.is_following,
            refused=node.broker.sender.failed,
            unmade=", ".join(sorted(node.store.removal.topics_to_rebuild())),
        )

    async def settled(self, name: str) -> None:
        """Return at once: an end is in the history at its moment."""

    def ends(self, name: str) -> int:
        return self._recorder.ends(name)

    def end_reason(self, name: str) -> str:
        return self._recorder.end_reason(name)

    # --- processes

    async def start(self, name: str, settings: Mapping[str, str], *, stale: bool = False) -> None:
        if name in self._nameservers:
            await self._act(partial(self.simulation.start, name, self._run_nameserver, name, stale))
            return
        lines = {
            **SETTINGS,
            **settings,
            "storePathRootDir": STORE,
            "listenPort": str(PORT),
            "brokerIP1": self.simulation.host(name).address,
            "namesrvAddr": self.nameservers(),
        }
        config, _ = make_config([Setting(key, value, name) for key, value in lines.items()])
        self._configs[name] = config
        self._recorder.starts(name, config)
        self.nodes.pop(name, None)

        async def main(world: World) -> None:
            async with trio.open_nursery() as nursery:
                self.nodes[name] = await nursery.start(partial(run_node, world, config))

        await self._act(partial(self._launch, name, main))

    def _launch(self, name: str, main: Program) -> None:
        process = self.simulation.start(name, main)
        put_faults(process.disk, self._faults.get(name, ()))
        arm(process.disk, self._armed.pop(name, CrashPoint()))

    async def _run_nameserver(self, world: World, name: str, stale: bool) -> None:
        if self._register.is_damaged:
            raise CasBroken("the register is damaged")
        store = MemoryCas(world, self._register)
        controller = Controller(world, store) if self.elects else None
        nameserver = Nameserver(world, NameserverConfig(), controller)
        before = self._tables.get(name)
        if stale and before is not None:
            nameserver.table = before.table
        self._tables[name] = nameserver
        await nameserver.run()

    async def kill(self, name: str) -> None:
        if self.state(name) != "down":
            await self._act(partial(self.simulation.kill, name))

    async def stop(self, name: str, timeout_s: float = 60.0) -> bool:
        if self.state(name) == "down":
            return False
        ended = self._ended.setdefault(name, trio.Event())
        await self._act(partial(self.simulation.stop, name))
        with trio.move_on_after(timeout_s):
            await ended.wait()
            process = self.simulation.process(name)
            return process.life.cause == "end" and not process.crashed
        await self.kill(name)
        return False

    async def pause(self, name: str) -> None:
        await self._act(partial(self.simulation.pause, name))

    async def resume(self, name: str) -> None:
        await self._act(partial(self.simulation.resume, name))

    async def power_cut(self, name: str, mode: str) -> None:
        running = self.state(name) != "down"
        await self._act(partial(self.simulation.power_cut, name, mode))
        if not running:
            self._recorder.lost_power(name)

    async def crash(self, name: str, point: CrashPoint) -> None:
        kind = "power" if point.power else "kill"
        self.simulation.crash_at_pattern(name, point.mark, kind=kind)
        if self.state(name) == "down":
            self._armed[name] = point
        else:
            arm(self.simulation.process(name).disk, point)

    async def twin(self, name: str) -> bool:
        if name not in self.nodes or self.state(name) != "running":
            return False
        twin = f"{name}-twin"
        process = await self._act(partial(self._start_twin, name, twin, self._configs[name]))
        await self._ended.setdefault(twin, trio.Event()).wait()
        outcome = {"changes": process.disk.events, "reason": process.end_reason}
        self.history.event(Function.NODE, name, "twin", outcome)
        return True

    def _start_twin(self, name: str, twin: str, config: NodeConfig) -> SimProcess:
        """Start a second process on a running node's store, an operator's error (T13, S18).

        Two processes on one directory are not modelled. But the second one has to give up before it
        changes anything, so it is enough to give it a copy of the directory, with the lock held
        by another: any change in its own copy would have been one under the first process.
        """
        simulation = self.simulation
        if simulation.host(twin).running:
            simulation.kill(twin)
        simulation.host(twin).image = simulation.process(name).disk.image()

        async def main(world: World) -> None:
            with trio.move_on_after(TWIN_S):
                await run_node(world, config)

        process = simulation.start(twin, main)
        process.disk.hold_lock(f"{STORE}/lock")
        return process

    async def wipe(self, name: str) -> None:
        await self.kill(name)
        self.simulation.host(name).image = DiskImage()
        self._recorder.wiped(name)

    async def damage(self, name: str, damage: Damage) -> Hit:
        if self.state(name) != "down":
            raise HostError(f"{name} is running: a store is damaged while its node is down")
        host = self.simulation.host(name)
        files = SimulatedFiles(host.image, STORE)
        hit = inflict(files, damage, self.simulation.timeline.stream("damage"))
        host.image = files.image()
        return hit

    def reported(self, name: str) -> str:
        return self._recorder.reported(name)

    def refuses(self, name: str) -> str:
        return self._recorder.refuses(name)

    # --- surroundings

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        network = self.simulation.network
        for name in (source, target):
            self.simulation.host(name)
        link = network.between(source, target)
        link.cut = state.cut
        link.latency_ns = self._usual_link.latency_ns + int(state.delay_s * SECOND)
        link.jitter_ns = self._usual_link.jitter_ns + int(state.jitter_s * SECOND)
        link.loss = state.loss
        link.rate = state.rate
        await self._act(partial(network.changed, source, target))

    async def reset(self, first: str, second: str) -> None:
        await self._act(partial(self.simulation.network.reset, first, second))

    async def set_disk(self, name: str, faults: Sequence[DiskFault]) -> None:
        self._faults[name] = tuple(faults)
        if self.state(name) != "down":
            await self._act(partial(put_faults, self.simulation.process(name).disk, faults))

    async def set_clock(self, name: str, *, jump_s: float = 0.0, drift: float = 0.0) -> None:
        clock = self.simulation.host(name).clock
        clock.wall_offset_ms += int(jump_s * 1000)
        clock.rate = 1.0 + drift

    async def set_cpu(self, name: str, slowness: float) -> None:
        self.simulation.host(name).slowness = slowness

    # --- clients

    async def elected(self, group: str) -> Elected | None:
        """Return the leader in the register, and its own record of where its epoch begins."""
        if (entry := self._entry(group)) is None:
            return None
        for name, node in self.nodes.items():
            if node.config.broker_name != group or node.config.replica != entry.leader:
                continue
            leader = node.failover.member.leader if node.failover is not None else None
            start = leader.view.start if leader and leader.epoch == entry.epoch else None
            return Elected(node=name, epoch=entry.epoch, start=start)
        return None

    async def has_spare(self, node: str) -> bool:
        entry = self._entry(node.rstrip("0123456789"))
        if entry is None:
            return True
        members = {**entry.eligible, **entry.in_sync}
        candidates = (
            other
            for name, other in self.nodes.items()
            if name != node and self.state(name) != "down"
        )
        return any(
            other.config.broker_name == entry.name
            and other.failover is not None
            and members.get(other.config.replica) == other.failover.agent.me.incarnation
            for other in candidates
        )

    def _entry(self, group: str) -> GroupEntry | None:
        """Return the current entry of a group in the register."""
        newest = self._register.values.get(group)
        if not newest:
            return None
        return loaded(newest[-1].value, name=group, version=newest[-1].version)

    async def election(self) -> None:
        with trio.move_on_after(ELECTION_LOOK_S):
            await self._led.wait()
        self._led = trio.Event()

    def _logged(self, line: LogLine) -> None:
        if line.event == "member.leads":
            self._in_harness(lambda: self._led.set())

    async def copy_register(self, name: str) -> bool:
        self._copied = self._register.copy()
        return name in self._nameservers

    async def lose_register(self, name: str, fault: RegisterFault) -> bool:
        if name not in self._nameservers:
            return False
        self._newest = self._register.values
        copied = {name: list(versions) for name, versions in self._copied.items()}
        self._register.replace(copied if fault == "old" else {}, damaged=fault == "damage")
        return True

    async def return_register(self, name: str) -> None:
        self._register.replace(self._newest)

    def start_client(self, name: str, program: Program) -> None:
        self.simulation.start(name, program)

    kill_client = kill

    async def pause_client(self, name: str, *, resume: bool = False) -> None:
        await (self.resume if resume else self.pause)(name)

    # --- the end

    async def collect(self, directory: Path) -> Collected:
        collected = self._recorder.collect(directory)
        collected.facts["elects"] = self.elects
        configs = self._configs.values()
        waits_ms = {
            ResponseCode.FLUSH_DISK_TIMEOUT: [
                config.store.sync_flush_timeout_ms for config in configs
            ],
            ResponseCode.FLUSH_SLAVE_TIMEOUT: [config.slave_timeout_ms for config in configs],
        }
        collected.facts["patience_ns"] = {
            code.name: min(limits, default=0) * 1_000_000 for code, limits in waits_ms.items()
        } | {ResponseCode.SLAVE_NOT_AVAILABLE.name: NEVER_NS}
        return collected

    # --- inside

    def _process_ended(self, process: SimProcess) -> None:
        ended = self._ended.pop(process.host.name, None)
        if ended is not None:
            self._in_harness(ended.set)
        self.nodes.pop(process.host.name, None)

    def _in_harness(self, function: Callable[[], object]) -> None:
        harness = self.simulation.host(HARNESS).process
        if harness is not None and not harness.done:
            harness.call(function)

    async def _act(self, action: Callable[[], T]) -> T:
        done = trio.Event()
        result: list[T] = []
        failure: list[Exception] = []

        def act() -> None:
            try:
                result.append(action())
            except Exception as error:
                failure.append(error)
            self._in_harness(done.set)

        self.simulation.timeline.at(self.simulation.timeline.now, act)
        await done.wait()
        if failure:
            raise failure[0]
        return result[0]
