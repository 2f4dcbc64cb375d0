"""Programs that use a group of whole nodes with failover, and what becomes of its machines."""

from itertools import pairwise
from random import Random

import trio

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import FailoverNodes

Place = tuple[int, int]
"""Queue and offset in it."""


class Traffic:
    """A producer that goes on whatever happens, and a final reader."""

    def __init__(self, group: FailoverNodes) -> None:
        self.group = group
        self.sent: dict[bytes, Place] = {}
        """What was acknowledged, and where it was said to stand."""
        self.tried = 0
        self.when: list[int] = []
        self._ends = False
        self.nameservers = ";".join(
            f"{group.simulation.host(name).address}:9876" for name in group.nameservers
        )

    def start(self, *, parallel: int = 4) -> None:
        self._ends = False

        async def main(world: World) -> None:
            async with (
                Producer(world, nameservers=self.nameservers, group="pg") as producer,
                trio.open_nursery() as nursery,
            ):
                for _ in range(parallel):
                    nursery.start_soon(self._send, world, producer)

        self._program = self.group.program(main)

    async def _send(self, world: World, producer: Producer) -> None:
        while not self._ends:
            self.tried += 1
            body = b"%d " % self.tried + bytes(world.random.randrange(300))
            outcome = await producer.send(Message("T", body))
            if isinstance(outcome, Sent) and outcome.is_safe:
                self.sent[body] = outcome.queue.queue_id, outcome.queue_offset
                self.when.append(self.group.simulation.timeline.now)
            await trio.sleep(0.01)

    def stop(self) -> None:
        self._ends = True
        self.group.simulation.run_process(self._program, 60)

    def read_all(self) -> dict[Place, bytes]:
        """All that there is, from whoever leads."""

        async def main(world: World) -> dict[Place, bytes]:
            found: dict[Place, bytes] = {}
            async with Consumer(world, nameservers=self.nameservers, group="final") as reader:
                await reader.subscribe("T", start="first")
                while messages := await reader.poll(timeout_s=3):
                    for one in messages:
                        place = one.queue.queue_id, one.queue_offset
                        assert place not in found, f"{place} came twice"
                        found[place] = one.body
            return found

        found: dict[Place, bytes] = self.group.simulation.run_process(self.group.program(main), 120)
        return found

    def check(self) -> None:
        """I1, I13, I15: all that was acknowledged stands where it was said, once."""
        self.stop()
        leader = self.group.settle()
        self.group.wait(self.group.is_routed)
        found = self.read_all()
        lost = {body: place for body, place in self.sent.items() if found.get(place) != body}
        assert not lost, f"{len(lost)} of {len(self.sent)} acknowledged are lost: {lost}"
        offsets: dict[int, list[int]] = {}
        for queue, offset in sorted(found):
            offsets.setdefault(queue, []).append(offset)
        for queue, row in offsets.items():
            assert row == list(range(len(row))), f"queue {queue} has holes: {row}"
        logs = {name: self.group.log_of(name) for name in self.group.names}
        assert all(log == logs[leader] for log in logs.values()), {
            name: len(log) for name, log in logs.items()
        }


def waits_longest(when: list[int]) -> float:
    """Seconds without an acknowledgement."""
    return max(b - a for a, b in pairwise(when)) / SECOND


def faults(group: FailoverNodes, random: Random, count: int) -> None:
    """Kill, pause, cut off and unplug nodes, and mend all again, one after the other."""
    simulation, machines = group.simulation, (*group.names, *group.nameservers)
    for _ in range(count):
        name = random.choice(machines)
        kind = random.choice(("kill", "kill", "power_cut", "pause", "cut"))
        if kind == "cut":
            for other in machines:
                if other != name:
                    simulation.network.between(name, other).cut = True
                    simulation.network.between(other, name).cut = True
        elif not simulation.process(name).done:
            getattr(simulation, kind)(name)
        simulation.run(random.uniform(0, 2))
        for other in machines:
            if other != name:
                simulation.network.between(name, other).cut = False
                simulation.network.between(other, name).cut = False
                simulation.network.changed(name, other)
        process = simulation.process(name)
        if process.state == "paused":
            simulation.resume(name)
        elif process.done:
            group.start(name) if name in group.names else group.start_nameserver(name)
        simulation.run(random.uniform(0, 2))


def run_seed(seed: int, *, replicas: int = 3) -> None:
    with FailoverNodes(seed, replicas=replicas) as group:
        group.settle()
        traffic = Traffic(group)
        traffic.start()
        faults(group, Random(seed), 8)
        traffic.check()
        assert len(traffic.sent) > 100
