"""A group of replicas with failover, as processes of the simulator: logs of numbered records over
simulated disks, controllers, and a producer at whoever leads that keeps what was acknowledged."""

import struct
import zlib
from collections.abc import Callable
from random import Random

import trio

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.memory_cas import MemoryCas, Shelf
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.remoting.server import Server
from rocketbed.replication.agent import Agent, Identity
from rocketbed.replication.controller import Controller
from rocketbed.replication.entry import GroupEntry, Policy
from rocketbed.replication.epoch_file import EpochFile
from rocketbed.replication.leader import Leader
from rocketbed.replication.member import Member
from rocketbed.replication.register.cas import Versioned
from rocketbed.replication.register.form import loaded
from rocketbed.replication.restart import lost_nothing
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World
from tests.support.segmented_log import SegmentedLog

CONTROLLER_PORT = 9800
HA_PORT = 10912
SEGMENT = 4096
FLUSH_S = 0.5
"""Of the policy `memory`."""
HEAD = struct.Struct(">IIBQ")
MARKER, DATA = 1, 2


class RecordLog(SegmentedLog):
    """Records `size | crc | kind | number | filling`. An `EpochLog`."""

    def __init__(self, world: World, directory: str) -> None:
        super().__init__(world, directory, SEGMENT)
        self._parsed = self.min_offset
        self._synced = 0
        """Below it all was synced in this life: only segments beyond it need to be."""
        self._cuts = 0
        self.records: list[tuple[int, int, int]] = []
        """Offset, kind and number of each whole record."""

    def record(self, kind: int, number: int, size: int = 0) -> int:
        """Append one; its offset."""
        offset = self.written.value
        body = struct.pack(">BQ", kind, number) + bytes(size)
        self.append(struct.pack(">II", HEAD.size + size, zlib.crc32(body)) + body)
        return offset

    @property
    def copied_from(self) -> str | None:
        return ""

    def whole_end(self) -> int:
        if self._parsed > self.written.value:  # it was cut
            self.records = [one for one in self.records if one[0] < self.written.value]
            self._parsed = self.written.value
        while True:
            head = self.bytes_at(self._parsed, HEAD.size)
            if len(head) < HEAD.size:
                return self._parsed
            size, crc, kind, number = HEAD.unpack(head)
            if not HEAD.size <= size <= SEGMENT:
                return self._parsed
            whole = self.bytes_at(self._parsed, size)
            if len(whole) < size or zlib.crc32(whole[8:]) != crc:
                return self._parsed
            self.records.append((self._parsed, kind, number))
            self._parsed += size

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Across segments, as far as the log goes."""
        found = b""
        end = min(offset + size, self.written.value)
        while offset + len(found) < end:
            part = self.read(offset + len(found), end - offset - len(found))
            if not part:
                break
            found += part[: SEGMENT - (offset + len(found)) % SEGMENT]
        return found

    async def flush(self) -> None:
        while True:
            end, cuts = self.written.value, self._cuts
            for start in sorted(self._files):
                if start + SEGMENT > self._synced and start in self._files:
                    await self._files[start].sync()
            await self._world.disk.sync_dir(self._directory)
            if cuts == self._cuts:
                break
        self._synced = max(self._synced, end)
        self.flushed.advance(end)

    def cut(self, offset: int) -> None:
        super().cut(offset)
        self._synced = min(self._synced, offset)
        self._cuts += 1

    async def begin_epoch(self, number: int, leader: int) -> int:
        offset = self.record(MARKER, number)
        await self.flush()
        return offset

    async def filler_before(self, below: int) -> int:
        return below  # nothing fills files here

    async def epochs(self, since: int) -> list[tuple[int, int]]:
        self.whole_end()
        return [(number, at) for at, kind, number in self.records if kind == MARKER and at >= since]

    async def cut_to(self, offset: int) -> None:
        self.cut(offset)
        self.whole_end()  # before anything is appended behind it
        await self.flush()


class FailoverGroup:
    """Controllers c1.., replicas r0.., and what was acknowledged."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        replicas: int = 3,
        controllers: int = 1,
        sync_s: float = 0.002,
        rate: float = 100.0,
    ) -> None:
        self.simulation = simulation
        self.shelf = Shelf(lambda: simulation.timeline.now / SECOND)
        self._read: tuple[Versioned, GroupEntry] | None = None
        """The newest entry that was looked at: it is looked at with each event."""
        self.names = [f"r{number}" for number in range(replicas)]
        self.controllers = [f"c{number + 1}" for number in range(controllers)]
        self.members: dict[str, Member] = {}
        self.agents: dict[str, Agent] = {}
        self.logs: dict[str, RecordLog] = {}
        self.acknowledged: dict[int, int] = {}
        """Number -> offset, of what is confirmed."""
        self.when: list[int] = []
        """Moments of acknowledgements."""
        self.confirmed = bytearray()
        """The bytes that some leader has confirmed."""
        self._numbers = 0
        self._rate = rate
        for name in (*self.controllers, *self.names):
            simulation.host(name).sync_seconds = (sync_s / 2, sync_s * 1.5)
        for name in self.controllers:
            self.start_controller(name)
        for name in self.names:
            self.start(name)

    def start_controller(self, name: str) -> None:
        async def main(world: World) -> None:
            controller = Controller(world, MemoryCas(world, self.shelf))
            handlers = controller.handlers()
            server = Server(
                world, ("0.0.0.0", CONTROLLER_PORT), handlers, on_close=controller.on_close
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                nursery.start_soon(controller.run)

        self.simulation.start(name, main)

    def start(self, name: str) -> None:
        self.simulation.start(name, lambda world: self._replica(name, world))

    async def _replica(self, name: str, world: World) -> None:
        addresses = self.simulation.network.addresses
        policy = Policy.MEMORY if len(self.names) >= 3 else Policy.FSYNC
        uuid, incarnation, lossless = await _identity(world, policy)
        log = RecordLog(world, "/data/log")
        if log.written.value > log.whole_end():
            log.cut(log.whole_end())
        await log.flush()
        file = EpochFile(world, "/data")
        file.load()
        me = Identity(
            group="g",
            number=int(name[1:]),
            uuid=uuid,
            incarnation=incarnation,
            address=f"{addresses[name]}:{HA_PORT}",
            ha_address=f"{addresses[name]}:{HA_PORT}",
            lossless=lossless,
            replicas=len(self.names),
            policy=policy,
            founds=True,
        )
        controllers = [(addresses[one], CONTROLLER_PORT) for one in self.controllers]
        agent = Agent(
            world,
            controllers,
            me,
            lambda: (file.state.history[-1].number if file.state.history else 0, log.whole_end()),
            lambda: (file.state.promised, file.state.group),
            lambda: "",
            _no_other_life,
        )
        confirm = Watermark(min(file.state.confirm, log.whole_end()))
        member = Member(world, log, agent, file, cluster="c", catch_up_rate=0, confirm=confirm)
        self.agents[name], self.logs[name], self.members[name] = agent, log, member
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush, log, policy)
            nursery.start_soon(self._produce, world, log, member)
            nursery.start_soon(_forget_boot, world, agent)
            nursery.start_soon(_listen, world, member)
            try:
                await member.run()
            finally:
                nursery.cancel_scope.cancel()

    async def _flush(self, log: RecordLog, policy: Policy) -> None:
        while True:
            await log.written.wait_above(log.flushed.value)
            await log.flush()
            if policy is Policy.MEMORY:
                await trio.sleep(FLUSH_S)

    async def _produce(self, world: World, log: RecordLog, member: Member) -> None:
        watched: Leader | None = None
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(world.random.expovariate(self._rate))
                leader = member.leader
                if leader is None or not leader.may_append():
                    continue
                if leader is not watched:
                    watched = leader
                    self._compare(log, leader.confirm.value)
                    leader.confirm.subscribe(lambda end: self._compare(log, end))
                self._numbers += 1
                number, size = self._numbers, world.random.randrange(400)
                offset = log.record(DATA, number, size)
                nursery.start_soon(self._await, leader, number, offset, log.written.value)

    async def _await(self, leader: Leader, number: int, offset: int, end: int) -> None:
        with trio.move_on_after(3):
            await leader.confirm.wait_for(end)
            self.acknowledged[number] = offset
            self.when.append(self.simulation.timeline.now)

    def _compare(self, log: RecordLog, end: int) -> None:
        """I6, I18: whatever is confirmed, by whomever, is the same."""
        begin = max(0, min(len(self.confirmed), end) - 2 * SEGMENT)
        bytes_now = log.bytes_at(begin, end - begin)
        both = min(len(self.confirmed), end) - begin
        assert bytes_now[:both] == self.confirmed[begin : begin + both], "two confirmed prefixes"
        self.confirmed[begin + both :] = max(
            bytes_now[both:], self.confirmed[begin + both :], key=len
        )

    # --- looking

    @property
    def history(self) -> list[GroupEntry]:
        found = self.shelf.values.get("g", [])
        return [loaded(one.value, name="g", version=one.version) for one in found]

    @property
    def entry(self) -> GroupEntry:
        newest = self.shelf.values["g"][-1]
        if self._read is None or self._read[0] is not newest:
            self._read = newest, loaded(newest.value, name="g", version=newest.version)
        return self._read[1]

    def leader(self) -> str:
        """Who may append now; empty for nobody."""
        for name, member in self.members.items():
            process = self.simulation.process(name)
            if process.state == "running" and member.leader and member.leader.may_append():
                return name
        return ""

    def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> float:
        """Simulated seconds until it holds."""
        began = self.simulation.timeline.now
        self.simulation.run(seconds, until=condition)
        return (self.simulation.timeline.now - began) / SECOND

    def is_settled(self) -> bool:
        if not self.shelf.values.get("g"):
            return False
        return bool(self.leader()) and len(self.entry.in_sync) == len(self.names)

    def settle(self) -> str:
        """Wait for a leader and a full in-sync set; the leader's name."""
        self.wait(self.is_settled)
        return self.leader()

    def check(self) -> None:
        """I1 and I15: all that was acknowledged stands where it was said, and logs are equal."""
        leader = self.settle()
        log = self.logs[leader]
        self.simulation.run(2)
        log.whole_end()
        places: dict[int, list[int]] = {}
        for offset, kind, number in log.records:
            if kind == DATA:
                places.setdefault(number, []).append(offset)
        lost = {
            number: offset
            for number, offset in self.acknowledged.items()
            if places.get(number) != [offset]
        }
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged are lost: {lost}"
        end = min(self.logs[name].whole_end() for name in self.names)
        whole = log.bytes_at(0, end)
        for name in self.names:
            assert self.logs[name].bytes_at(0, end) == whole, f"{name} has other bytes"
        assert bytes(self.confirmed) == log.bytes_at(0, len(self.confirmed))
        versions = [one.version for one in self.history]
        assert versions == list(range(1, len(versions) + 1))


async def _listen(world: World, member: Member) -> None:
    listener = await world.network.listen("0.0.0.0", HA_PORT)
    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(member.serve, await listener.accept())


async def _identity(world: World, policy: Policy) -> tuple[str, int, bool]:
    """Who this directory is, which life it is, and whether the one before lost nothing."""
    disk = world.disk
    disk.makedirs("/data")
    uuid = await _kept(world, "uuid", lambda old: old or f"{world.random.getrandbits(64):016x}")
    life = await _kept(world, "incarnation", lambda old: str(int(old or "0") + 1))
    boot = await _kept(world, "boot", lambda old: old or world.process.boot_id)
    same = boot == world.process.boot_id
    return uuid, int(life), lost_nothing(policy, stopped=False, same_kernel=same)


async def _no_other_life(incarnation: int) -> None:
    raise AssertionError(f"life {incarnation}: no directory is lost here")


async def _forget_boot(world: World, agent: Agent) -> None:
    """What tells of a loss is kept until the register has heard of it."""
    while agent.entry is None:
        await agent.changed.wait()
    await _kept(world, "boot", lambda _: world.process.boot_id)


async def _kept(world: World, name: str, change: Callable[[str], str]) -> str:
    """A small file, made anew where it changes."""
    disk, path = world.disk, f"/data/{name}"
    old = ""
    if disk.exists(path):
        file = disk.open(path)
        old = file.read_at(0, file.size()).decode()
        file.close()
    new = change(old)
    if new != old:
        file = disk.open(f"{path}.new", create=True)
        file.truncate(0)
        file.write_at(0, new.encode())
        await file.sync()
        file.close()
        disk.rename(f"{path}.new", path)
        await disk.sync_dir("/data")
    return new


def random_faults(group: FailoverGroup, random: Random, count: int) -> None:
    """Kill, pause, cut off and unplug machines, and mend all again, one after the other."""
    simulation = group.simulation
    machines = (*group.names, *group.controllers)
    for _ in range(count):
        chosen = random.sample(machines, random.choice((1, 1, 1, 2)))
        for name in chosen:
            kind = random.choice(("kill", "kill", "power_cut", "pause", "cut", "one way"))
            if kind in ("cut", "one way"):
                for other in machines:
                    if other != name and random.random() < 0.7:
                        simulation.network.between(name, other).cut = True
                        if kind == "cut":
                            simulation.network.between(other, name).cut = True
            elif not simulation.process(name).done:
                getattr(simulation, kind)(name)
        simulation.run(random.uniform(0, 2))
        for one in machines:
            for other in machines:
                if one != other:
                    simulation.network.between(one, other).cut = False
        for one in machines[1:]:
            simulation.network.changed(machines[0], one)
        for name in chosen:
            process = simulation.process(name)
            if process.state == "paused":
                simulation.resume(name)
            elif process.done:
                group.start(name) if name in group.names else group.start_controller(name)
        simulation.run(random.uniform(0, 2))
