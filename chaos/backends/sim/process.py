"""A host of the simulation, and one incarnation of the process that runs on it."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from outcome import Error

from rocketbed.chaos.backends.sim.clock import MICROSECOND, SECOND, HostClock
from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.engine import NodeLoop
from rocketbed.chaos.backends.sim.host_network import HostNetwork
from rocketbed.chaos.backends.sim.incarnation import Life, SimKilled, SimulationError
from rocketbed.chaos.backends.sim.world import InlineOffloader, ProcessSeam, SimLog
from rocketbed.world.api import World

if TYPE_CHECKING:
    from rocketbed.chaos.backends.sim.simulation import Simulation

STEP_COST_NS = (2 * MICROSECOND, 40 * MICROSECOND)
"""Processor time of one step of a loop, drawn evenly, before `Host.slowness`."""
SYNC_SECONDS = (0.0002, 0.002)
"""Duration of a sync: a common SSD."""
SPINNING_STEPS = 200_000
"""Steps of one loop without a pause, after which it counts as spinning."""

Main = Callable[..., Awaitable[object]]
T = TypeVar("T")


class SimHost:
    """A machine: its name, address, clock and, while nothing runs on it, its disk at rest."""

    def __init__(self, simulation: "Simulation", name: str, address: str) -> None:
        self.simulation = simulation
        self.name = name
        self.address = address
        self.clock = HostClock(simulation.timeline)
        self.image = DiskImage()
        self.process: SimProcess | None = None
        self.has_power = True
        self.boots = 1
        self.incarnations = 0
        self.slowness = 1.0
        """Factor on the processor time of its steps."""
        self.sync_seconds = SYNC_SECONDS
        """Least and greatest duration of a sync, of processes that start from now on."""
        self.cold_share = 0.0
        """Share of reads that miss the page cache."""
        self.cut_mode = "random"
        """Mode of a power cut at a crash point (`chaos.backends.sim.inode`)."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.state != "dead"

    @property
    def boot_id(self) -> str:
        """Changes with each power cut."""
        return f"{self.name}-boot-{self.boots}"

    def boot(self) -> None:
        self.has_power = True
        self.boots += 1
        self.clock.boot()


class SimProcess:
    """Incarnation of a process: a loop and a world, with a common process state (`Life`)."""

    def __init__(self, host: SimHost, main: Main, arguments: tuple[object, ...]) -> None:
        simulation = host.simulation
        host.incarnations += 1
        self.host = host
        self.name = f"{host.name}.{host.incarnations}"
        self.life = Life()
        self.state = "running"
        """running, paused or dead."""
        self.exit_code: int | None = None
        self._timeline = simulation.timeline
        self._scheduling = simulation.timeline.stream("steps")
        self._wake_at: int | None = None
        self._burnt_ns = 0
        self._steps_without_pause = 0
        self.disk = SimDisk(
            host.image,
            random=Random(f"{simulation.seed}/disk/{self.name}"),
            life=self.life,
            wall_ms=host.clock.wall_ms,
            sync_seconds=host.sync_seconds,
        )
        self.disk.cold_share = host.cold_share
        self.disk.crash_mode = host.cut_mode
        self.disk.observer = self._saw_disk
        self.disk.burn = self.burn
        self.system = ProcessSeam(self.life, host.boot_id, 1000 + host.incarnations, self.exit)
        self.world = World(
            name=host.name,
            clock=host.clock,
            disk=self.disk,
            network=HostNetwork(simulation.network, self),
            random=Random(f"{simulation.seed}/node/{self.name}"),
            log=SimLog(self.life, partial(simulation.logged, self)),
            process=self.system,
            mark=partial(simulation.reached, self),
            offloader=InlineOffloader(self.life),
        )
        self._loop = NodeLoop(host.clock, main, (self.world, *arguments))
        self._kick(0)

    @property
    def done(self) -> bool:
        """True if it runs no more, for whatever reason."""
        return self.state == "dead"

    @property
    def crashed(self) -> bool:
        """True if its `main` raised an error on its own."""
        return self.life.cause == "end" and isinstance(self._loop.outcome, Error)

    @property
    def end_reason(self) -> str:
        """Kind and text of the error that its `main` raised; empty without one."""
        if not self.crashed or not isinstance(self._loop.outcome, Error):
            return ""
        error = self._loop.outcome.error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"

    def value(self) -> Any:
        """Return the result of `main`; raises its error, or `SimulationError` if it never ended."""
        if self._loop.outcome is None or self.life.cause != "end":
            raise SimulationError(f"{self.name} did not end: {self.life.cause or self.state}")
        return self._loop.outcome.unwrap()

    def request_stop(self) -> None:
        if not self.done:
            self._timeline.record("stop", self.name)
            self._loop.inside(self.system.stop_requested.set)
            self._kick()

    def pause(self) -> None:
        if self.state == "running":
            self._timeline.record("pause", self.name)
            self.state = "paused"

    def resume(self) -> None:
        """Resume after a pause; timers that ran out meanwhile fire at once."""
        if self.state == "paused":
            self._timeline.record("resume", self.name)
            self.state = "running"
            self._kick(0)

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Wake a parked task; does nothing once the process is dead."""
        if not self.life.dead:
            self._loop.wake(task)
            self._kick()

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a plain function as if one of this process's tasks did; for tests and harnesses."""
        if self.done:
            raise SimulationError(f"{self.name} is dead")
        result = self._loop.inside(function, *arguments)
        self._kick()
        return result

    def burn(self, seconds: float) -> None:
        self._burnt_ns += int(seconds * SECOND)

    def exit(self, code: int) -> SimKilled:
        """End without any clean-up. Return what to raise."""
        self.exit_code = code
        self.life.die("exit")
        return SimKilled(f"exit {code}")

    def bury(self) -> None:
        self.life.die("end")
        self._loop.bury()

    def end(self) -> None:
        """Stop for ever, after the process state is dead; the disk comes to rest."""
        if self.state == "dead":
            return
        self.state = "dead"
        self.host.image = self.disk.image()
        self._loop.let_go()
        self._timeline.record("dead", self.name, self.life.cause, self.disk.events)
        self.host.simulation.process_ended(self)

    def _kick(self, delay_ns: int | None = None) -> None:
        """Step the loop soon; an earlier appointment stands."""
        if delay_ns is None:
            least, most = STEP_COST_NS
            delay_ns = int(
                (least + self._scheduling.random() * (most - least)) * self.host.slowness
            )
        moment = self._timeline.now + delay_ns + self._burnt_ns
        self._burnt_ns = 0
        self._appoint(moment)

    def _appoint(self, moment: int) -> None:
        if self._wake_at is None or moment < self._wake_at:
            self._wake_at = moment
            self._timeline.at(moment, self._step, moment)

    def _step(self, moment: int) -> None:
        if moment != self._wake_at:
            return
        self._wake_at = None
        if self.state != "running":
            return
        timeout = self._loop.step()
        if self.life.dead:
            self.end()
        elif self._loop.outcome is not None:
            self.life.die("end")
            self.end()
        elif timeout == 0.0:
            self._steps_without_pause += 1
            if self._steps_without_pause > SPINNING_STEPS:
                raise SimulationError(f"{self.name} spins: {'; '.join(self._loop.stacks())}")
            self._kick()
        else:
            self._steps_without_pause = 0
            if timeout is not None:
                self._appoint(self.host.clock.until(timeout) + self._burnt_ns)

    def _saw_disk(self, kind: str, path: str, offset: int, size: int) -> None:
        self._timeline.record("disk", self.host.name, kind, path, offset, size)
        for listener in self.host.simulation.on_disk:
            listener(self.host.name, kind, path, offset, size)
