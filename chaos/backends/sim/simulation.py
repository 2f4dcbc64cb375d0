"""Several nodes in one process, on one timeline, from one seed.

    with Simulation(seed=7) as simulation:
        broker = simulation.start("broker", run_node, config)
        simulation.run(seconds=3)
        simulation.power_cut("broker")
        simulation.start("broker", run_node, config)
        simulation.run(seconds=3)

`main` of a process is an async function that gets a World, then its own arguments. The same seed
gives the same run, to the last event, which `digest` proves.
"""

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rocketbed.chaos.backends.sim.clock import SECOND, Timeline
from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.engine import seeded_scheduling
from rocketbed.chaos.backends.sim.incarnation import SimKilled, SimulationError
from rocketbed.chaos.backends.sim.network import Network
from rocketbed.chaos.backends.sim.process import Main, SimHost, SimProcess


class LogLine(NamedTuple):
    moment: int
    """Nanoseconds since the beginning."""
    node: str
    level: str
    event: str
    fields: dict[str, object]


class Simulation:
    """A world of hosts. A context manager; leaving it ends everything."""

    def __init__(self, seed: int | str = 0, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.timeline = Timeline(seed, keep_trace=keep_trace)
        self.network = Network(self.timeline)
        self.hosts: dict[str, SimHost] = {}
        self.log: list[LogLine] = []
        self.marks: Counter[tuple[str, str]] = Counter()
        """(node, mark) -> times that it was reached."""
        self.tolerate_crashes = False
        """True if a process may end with an error of its own without ending the run."""
        self.on_mark: list[Callable[[str, str], None]] = []
        """Called with each mark that a node reaches: host, name."""
        self.on_log: list[Callable[[LogLine], None]] = []
        """Called with each event that a node logs."""
        self.on_end: list[Callable[[SimProcess], None]] = []
        """Called with each process that has ended, whatever the cause (`life.cause`)."""
        self.on_disk: list[Callable[[str, str, str, int, int], None]] = []
        """Called with each event of a disk: host, kind, path, offset, size."""
        self._buried: list[SimProcess] = []
        self._crash_at_pattern: dict[str, tuple[str, str]] = {}
        self._crashes: list[SimProcess] = []

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def host(self, name: str) -> SimHost:
        """Return the host of this name, created if new."""
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = SimHost(self, name, self.network.add_host(name))
        return host

    def start(self, name: str, main: Main, *arguments: object) -> SimProcess:
        """Start a process on a host that has none running; boots the host if it has no power."""
        host = self.host(name)
        if host.running:
            raise SimulationError(f"{name} is already running: kill it first")
        if not host.has_power:
            host.boot()
        self.timeline.record("start", name)
        host.process = SimProcess(host, main, arguments)
        return host.process

    def process(self, name: str) -> SimProcess:
        process = self.host(name).process
        if process is None:
            raise SimulationError(f"nothing was ever started on {name}")
        return process

    def kill(self, name: str) -> None:
        process = self.process(name)
        if not process.done:
            process.life.die("kill")
            process.end()

    def power_cut(self, name: str, mode: str = "random") -> None:
        """Cut a host's power, running or not."""
        host = self.host(name)
        process = host.process
        host.has_power = False
        if process is not None and not process.done:
            process.disk.power_cut(mode)
            process.end()
        else:
            disk = SimDisk(host.image, random=self.timeline.stream(f"power/{name}"))
            disk.power_cut(mode)
            host.image = disk.image()

    def pause(self, name: str) -> None:
        self.process(name).pause()

    def resume(self, name: str) -> None:
        self.process(name).resume()

    def stop(self, name: str) -> None:
        self.process(name).request_stop()

    def crash_at_pattern(self, name: str, pattern: str | None, *, kind: str = "kill") -> None:
        """Kill a host's process, or cut its power, at the next mark whose name matches.

        The pattern is one as a shell writes it; None removes it.
        """
        self._crash_at_pattern.pop(name, None)
        if pattern is not None:
            self._crash_at_pattern[name] = (pattern, kind)

    def run(self, seconds: float | None = None, *, until: Callable[[], bool] | None = None) -> None:
        """Continue for a time, or until a condition holds, or until nothing is due any more.

        With both, raises `SimulationError` if the time ran out first. Raises the error of a process
        that crashed, unless crashes are tolerated.
        """
        timeline = self.timeline
        end = None if seconds is None else timeline.now + int(seconds * SECOND)
        with seeded_scheduling(timeline.stream("trio")):
            while until is None or not until():
                moment = timeline.next_moment()
                if moment is None or (end is not None and moment > end):
                    break
                timeline.advance()
                if self._crashes and not self.tolerate_crashes:
                    process = self._crashes.pop(0)
                    process.value()
        if until is not None and not until():
            raise SimulationError(f"not reached by {timeline.now / SECOND:.3f} s: {until}")
        if end is not None and until is None and end > timeline.now:
            timeline.now = end

    def run_process(self, process: SimProcess, seconds: float = 3600.0) -> Any:
        """Continue until a process has ended. Return its result, raise its error."""
        tolerated, self.tolerate_crashes = self.tolerate_crashes, True
        try:
            self.run(seconds, until=lambda: process.done)
        finally:
            self.tolerate_crashes = tolerated
        if process in self._crashes:
            self._crashes.remove(process)
        return process.value()

    def digest(self) -> str:
        return self.timeline.digest()

    def close(self) -> None:
        """End all processes and free what they hold; their coroutines unwind without effect."""
        self.timeline.clear()
        for host in self.hosts.values():
            process = host.process
            if process is not None and not process.done:
                process.life.die("closed")
                process.end()
        for process in self._buried:
            process.bury()
        self._buried.clear()
        self.network.ends.clear()
        self.network.listeners.clear()

    # Called by hosts and processes.

    def reachable(self, source: str, target: str) -> bool:
        """Return whether packets pass between two addresses both ways."""
        cut = self.network.link(source, target).cut or self.network.link(target, source).cut
        return not cut and any(
            host.address == target and host.has_power for host in self.hosts.values()
        )

    def process_ended(self, process: SimProcess) -> None:
        cause = process.life.cause
        self.network.drop_process(process, cause)
        if cause == "power":
            process.host.has_power = False
        self._buried.append(process)
        if process.crashed:
            self._crashes.append(process)
        for listener in self.on_end:
            listener(process)

    def reached(self, process: SimProcess, mark: str) -> None:
        """Handle a mark that a node reached; the node dies there if a crash point matches."""
        process.life.check()
        name = process.host.name
        self.marks[name, mark] += 1
        for listener in self.on_mark:
            listener(name, mark)
        self.timeline.record("mark", name, mark)
        pattern, kind = self._crash_at_pattern.get(name, ("", ""))
        if pattern and fnmatchcase(mark, pattern):
            del self._crash_at_pattern[name]
            if kind == "power":
                process.disk.power_cut(process.disk.crash_mode)
            else:
                process.life.die("kill")
            raise SimKilled(f"mark {mark}")

    def logged(
        self, process: SimProcess, level: str, event: str, fields: dict[str, object]
    ) -> None:
        line = LogLine(self.timeline.now, process.host.name, level, event, fields)
        self.log.append(line)
        self.timeline.record("log", process.host.name, level, event, fields)
        for listener in self.on_log:
            listener(line)
