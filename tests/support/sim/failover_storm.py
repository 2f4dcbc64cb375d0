"""Faults for a group with failover that overlap: machines, links, slow disks, lost answers.

Each seed draws how often which fault comes, which disks and links are slow, and how often the links
of a leader go in the moment that the register has changed, so that the leader misses it.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from rocketbed.chaos.backends.sim.clock import MICROSECOND, MILLISECOND, SECOND
from rocketbed.replication.entry import Policy
from tests.support.sim.failover_watch import WatchedGroup

KINDS = ("kill", "power_cut", "restart", "reboot", "pause", "cut", "deaf", "mute", "pair", "reset")
POWER = ("power_cut", "reboot")


@dataclass(slots=True)
class Fault:
    """One that lasts."""

    machine: str
    cut: list[tuple[str, str]] = field(default_factory=list)
    """Directions of links."""
    until: float = float("inf")
    """When it ends by itself, simulated seconds."""


class Storm:
    """`blow` for a time, then `clear`."""

    def __init__(self, group: WatchedGroup, seed: int | str) -> None:
        self.group = group
        self.random = Random(f"storm {seed}")
        random = self.random
        self._faults: list[Fault] = []
        self._mean_s = random.choice((0.1, 0.3, 0.6))
        self._heals = random.choice((0.3, 0.5, 0.7))
        self._weights = [random.choice((0.0, 1.0, 1.0, 3.0)) for _ in KINDS]
        self._weights[0] += 0.1
        self._troubles_changes = random.choice((0.0, 0.2, 0.6))
        machines = (*group.names, *group.controllers)
        self._machines = machines
        network = group.simulation.network
        for name in machines:
            slow_s = random.choice((0.002, 0.01, 0.1, 0.1))
            group.simulation.host(name).sync_seconds = (slow_s / 2, slow_s * 1.5)
            for other in group.names:
                link = network.between(name, other)
                link.latency_ns = random.choice((0, 0, 2, 30)) * MILLISECOND + 100 * MICROSECOND
                if name in group.names:
                    link.rate = random.choice((None, None, 100_000, 20_000))
        group.shelf.on_swap.append(self._swapped)

    @property
    def _now_s(self) -> float:
        return self.group.simulation.timeline.now / SECOND

    def blow(self, seconds: float) -> None:
        """Faults, one after another, some at once."""
        simulation, random = self.group.simulation, self.random
        end_s = self._now_s + seconds
        while self._now_s < end_s and not self.group.violation:
            for fault in [one for one in self._faults if one.until <= self._now_s]:
                self._heal(fault)
            if self._faults and random.random() < self._heals:
                self._heal(random.choice(self._faults))
            else:
                self._break(random.choices(KINDS, self._weights)[0])
            simulation.run(random.expovariate(1 / self._mean_s))

    def clear(self) -> None:
        """All is well again, and stays so."""
        self.heal()
        for name in self._machines:
            self._mend(name)
        self.calm()

    def calm(self) -> None:
        """Nothing but what somebody breaks is slow or fails."""
        self._troubles_changes = 0.0
        for name in self._machines:
            self.group.simulation.process(name).disk.sync_seconds = (0.001, 0.003)
            for other in self.group.names:
                link = self.group.simulation.network.between(name, other)
                link.rate, link.latency_ns = None, 100 * MICROSECOND
                self.group.simulation.network.changed(name, other)

    def part(self, here: Collection[str], there: Collection[str]) -> None:
        """Cut all links between two sides, until `heal`."""
        pairs = [pair for one in here for other in there for pair in _both(one, other)]
        self._faults.append(Fault(pairs[0][0], pairs))
        self._set_links()

    def heal(self) -> None:
        """End all faults."""
        for fault in list(self._faults):
            self._heal(fault)

    def _break(self, kind: str) -> None:
        group, random, simulation = self.group, self.random, self.group.simulation
        machine = random.choice((*group.names, *group.names, *group.controllers))
        if kind in POWER and not self._may_lose(machine):
            kind = "kill" if kind == "power_cut" else "restart"
        others = [one for one in self._machines if one != machine]
        fault = Fault(machine)
        match kind:
            case "cut" | "deaf" | "mute":
                some = random.sample(others, random.randint(1, len(others)))
                if kind != "deaf":
                    fault.cut += [(machine, other) for other in some]
                if kind != "mute":
                    fault.cut += [(other, machine) for other in some]
            case "pair":
                other = random.choice(others)
                fault.cut += _both(machine, other)
            case "reset":
                simulation.network.reset(machine, random.choice(others))
                return
            case _:
                self._end(kind, machine)
                if kind in ("restart", "reboot"):
                    simulation.run(random.choice((0.0, 0.05)))
                    self._mend(machine)
                    return
        self._faults.append(fault)
        self._set_links()

    def _end(self, kind: str, machine: str) -> None:
        simulation = self.group.simulation
        process = simulation.process(machine)
        if kind == "pause":
            if process.state == "running":
                simulation.pause(machine)
        elif kind in POWER:
            simulation.power_cut(machine, self.random.choice(("random", "random", "strict")))
        elif not process.done:
            simulation.kill(machine)

    def _may_lose(self, machine: str) -> bool:
        """Under the policy `memory` one at a time, or nobody complete would be left."""
        group = self.group
        if machine in group.controllers or group.policy is Policy.FSYNC or not group.history:
            return True
        rest = {one for one in group.names if one != machine}
        complete = {f"r{one}" for one in (*group.entry.in_sync, *group.entry.eligible)}
        return rest <= complete or self.random.random() < 0.1

    def _heal(self, fault: Fault) -> None:
        self._faults.remove(fault)
        self._set_links()
        self._mend(fault.machine)

    def _mend(self, name: str) -> None:
        group, simulation = self.group, self.group.simulation
        process = simulation.process(name)
        if process.state == "paused":
            simulation.resume(name)
        elif process.done:
            group.start(name) if name in group.names else group.start_controller(name)

    def _set_links(self) -> None:
        network = self.group.simulation.network
        cut = {pair for fault in self._faults for pair in fault.cut}
        for one in self._machines:
            for other in self._machines:
                if one != other and network.between(one, other).cut != ((one, other) in cut):
                    network.between(one, other).cut = (one, other) in cut
                    network.changed(one, other)

    def _swapped(self) -> None:
        """The register has changed: its leader may not hear of it, or be cut off with one other
        from the rest; and a link to a leader that is new may go before it is of use."""
        group, random = self.group, self.random
        network, timeline = group.simulation.network, group.simulation.timeline
        leader = group.entry.leader
        if leader is None or random.random() >= self._troubles_changes:
            return
        name = f"r{leader}"
        rest = [one for one in group.names if one != name]
        random.shuffle(rest)
        cut = [(one, name) for one in group.controllers]
        match random.choice(("answer", "answer and link", "partition", "reset")):
            case "answer and link":
                cut += [(name, rest[0]), (rest[0], name)]
            case "partition":
                here, there = (name, *rest[1:]), (*group.controllers, rest[0])
                cut = [pair for one in here for other in there for pair in _both(one, other)]
            case "reset":
                later = timeline.now + int(random.uniform(0, 0.4) * SECOND)
                timeline.at(later, network.reset, name, rest[0])
                return
        self._faults.append(Fault(name, cut, self._now_s + random.uniform(0.3, 1.8)))
        for pair in cut:
            network.between(*pair).cut = True


def _both(one: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (one, other), (other, one)


def reborn_while_joining(storm: Storm) -> None:
    """A follower that is nearly added loses power, and registers before its link is given up."""
    group, simulation, random = storm.group, storm.group.simulation, storm.random
    network = simulation.network
    storm.calm()
    group.slow_down(rate=1.0)
    for _ in range(5):
        leader = group.settle()
        name = random.choice([one for one in group.names if one != leader])
        simulation.kill(name)
        simulation.run(0.5)
        group.start(name)
        simulation.run(random.uniform(0.9, 1.15))
        simulation.power_cut(name, "strict")
        for pair in ((name, leader), (leader, name)):
            network.between(*pair).cut = True
        group.start(name)
        simulation.run(0.4)
        for pair in ((name, leader), (leader, name)):
            network.between(*pair).cut = False
            network.changed(*pair)


def cut_off_while_adding(storm: Storm) -> None:
    """A leader is cut off with one other in the moment that the third one is added, so that it
    never hears of it, and long enough for the third one to be elected."""
    group, simulation, random = storm.group, storm.group.simulation, storm.random
    storm.calm()
    for _ in range(3):
        leader = group.settle()
        rest = [one for one in group.names if one != leader]
        random.shuffle(rest)
        simulation.kill(rest[0])
        simulation.run(random.uniform(0.5, 1))
        group.start(rest[0])
        group.wait(lambda: len(group.entry.in_sync) == len(group.names))
        storm.part((leader, rest[1]), (rest[0], *group.controllers))
        simulation.run(random.uniform(2, 3))
        storm.heal()
