"""Controllers and replicas' lines to them, as whole processes of the simulator: who leads, for how
long two believe to, and what is on record."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

import pytest
import trio

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.memory_cas import MemoryCas, Shelf
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.remoting.errors import RemotingError
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.replication.agent import Agent, Identity
from rocketbed.replication.controller import Controller
from rocketbed.replication.election import Proposal
from rocketbed.replication.entry import GroupEntry, Policy
from rocketbed.replication.errors import (
    ChangeRefused,
    ReplicationError,
    Superseded,
)
from rocketbed.replication.lease import BEAT_S, LEASE_S, MEMORY_S
from rocketbed.replication.register.form import loaded
from rocketbed.world.api import World
from tests.support.sim.links import cut, heal

PORT = 9800
REPLICA_PORT = 10911
LEADER_MAX_S = LEASE_S + 0.2
"""From the death of a leader, noticed by its silence, to its successor's first lease."""


class Cluster:
    """Controllers c1.. and replicas r0.. of one group, which append nothing."""

    def __init__(self, simulation: Simulation, replicas: int = 3, controllers: int = 1) -> None:
        self.simulation = simulation
        self.shelf = Shelf(lambda: simulation.timeline.now / SECOND)
        self.agents: dict[str, Agent] = {}
        self.ends: dict[str, int] = {}
        self.unfit: dict[str, str] = {}
        self.lives: dict[str, int] = {}
        self.names = [f"r{number}" for number in range(replicas)]
        self.controllers = [f"c{number + 1}" for number in range(controllers)]
        self.departed: set[int] = set()
        """Replicas that must not be asked back."""
        self.acting: list[tuple[int, str, int]] = []
        """Times at which each replica acted as the leader of an epoch."""
        for name in self.controllers:
            self.start_controller(name)
        for name in self.names:
            self.start(name)

    def start_controller(self, name: str) -> None:
        async def main(world: World) -> None:
            controller = Controller(world, MemoryCas(world, self.shelf))
            server = Server(
                world, ("0.0.0.0", PORT), controller.handlers(), on_close=controller.on_close
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                nursery.start_soon(controller.run)

        self.simulation.start(name, main)

    def start(
        self, name: str, *, lossless: bool = True, uuid: str = "", number: int | None = None
    ) -> None:
        number = int(name[1:]) if number is None else number
        self.lives[name] = life = self.lives.get(name, 0) + 1
        addresses = self.simulation.network.addresses

        async def raised(incarnation: int) -> None:
            self.lives[name] = incarnation

        async def main(world: World) -> None:
            mine = f"{addresses[name]}:{REPLICA_PORT}"
            me = Identity(
                group="g",
                number=number,
                uuid=uuid or f"uuid of r{number}",
                incarnation=life,
                address=mine,
                ha_address=mine,
                lossless=lossless,
                replicas=len(self.names),
                policy=Policy.MEMORY if len(self.names) >= 3 else Policy.FSYNC,
                founds=True,
            )
            controllers = [(addresses[one], PORT) for one in self.controllers]
            agent = Agent(
                world,
                controllers,
                me,
                lambda: (0, self.ends.get(name, 0)),
                lambda: (0, ""),
                lambda: self.unfit.get(name, ""),
                raised,
            )
            self.agents[name] = agent
            async with trio.open_nursery() as nursery:
                await nursery.start(Server(world, ("0.0.0.0", REPLICA_PORT), _none()).run)
                nursery.start_soon(self._act, name, agent)
                try:
                    await agent.run()
                finally:
                    nursery.cancel_scope.cancel()

        self.simulation.start(name, main)

    async def _act(self, name: str, agent: Agent) -> None:
        """Do what a leader does, for as long as it may; and have the others join."""
        number = 0
        while True:
            await trio.sleep(0.005)
            if agent.lease_s() <= 0:
                continue
            entry = agent.entry
            assert entry is not None
            self.acting.append((self.simulation.timeline.now, name, entry.epoch))
            absent = sorted(entry.replicas.keys() - entry.in_sync.keys() - self.departed)
            if absent and len(self.acting) % 20 == 0:
                life = entry.replicas[absent[0]].incarnation
                members = {**entry.in_sync, absent[0]: life}
                proposal = Proposal(agent.me.number, entry.epoch, entry.version, members)
                number += 1
                with suppress(RemotingError, ReplicationError):
                    await agent.alter(proposal, op=f"{name} {self.lives[name]} {number}")

    @property
    def history(self) -> list[GroupEntry]:
        versions = self.shelf.values.get("g", [])
        return [loaded(one.value, name="g", version=one.version) for one in versions]

    @property
    def entry(self) -> GroupEntry:
        return self.history[-1]

    def leader(self) -> str:
        """Name of the replica that acted as the leader within the last 20 ms; empty for none."""
        now = self.simulation.timeline.now
        return next((name for at, name, _ in self.acting[-3:] if now - at < SECOND // 50), "")

    def wait(self, condition: Callable[[], bool], seconds: float = 30.0) -> float:
        """Simulated seconds until it holds."""
        began = self.simulation.timeline.now
        self.simulation.run(seconds, until=condition)
        assert condition()
        return (self.simulation.timeline.now - began) / SECOND

    def settle(self) -> str:
        """Wait for a leader and a full in-sync set; the leader's name."""
        self.wait(lambda: bool(self.leader()) and len(self.entry.in_sync) == len(self.names))
        return self.leader()

    def check(self) -> None:
        """I2, I10, and that no two ever acted at once: the lease of one is over before another is
        named."""
        history = self.history
        assert [one.version for one in history] == list(range(1, len(history) + 1))
        epochs: dict[int, str] = {}
        for at, name, epoch in self.acting:
            assert epochs.setdefault(epoch, name) == name, f"two leaders of epoch {epoch}"
            assert epoch == max(epochs), (
                f"{name} acted at {at} in epoch {epoch} after {max(epochs)}"
            )


def _none() -> Handlers:
    return Handlers()


@contextmanager
def cluster(seed: int = 1, **shape: int) -> Iterator[Cluster]:
    with Simulation(seed=seed) as simulation:
        for name in ("c1", "c2", "r0", "r1", "r2", "copy"):
            simulation.host(name)
        replicas = Cluster(simulation, **shape)
        yield replicas
        replicas.check()


def test_new_group_gets_a_leader_and_all_replicas() -> None:
    with cluster() as replicas:
        assert replicas.wait(lambda: bool(replicas.leader())) < 1.0
        replicas.settle()
        assert replicas.entry.epoch == 1
        replicas.simulation.run(10)
        assert replicas.entry.epoch == 1, "a live leader keeps the lead"


@pytest.mark.parametrize("fault", ["kill", "power_cut", "pause", "cut", "cut and reset"])
def test_lost_leader_is_replaced_within_a_lease(fault: str) -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        replicas.simulation.run(1)  # a controller that has just begun waits to hear all
        if fault.startswith("cut"):
            for name in (*replicas.controllers, *replicas.names):
                if name != leader:
                    cut(replicas.simulation.network, leader, name)
                    if fault == "cut and reset":
                        replicas.simulation.network.reset(leader, name)
        else:
            getattr(replicas.simulation, fault)(leader)
        took_s = replicas.wait(lambda: replicas.leader() not in ("", leader))
        if fault == "kill":
            assert took_s < 0.1, "its machine refuses the connection"
        else:
            assert LEASE_S - 2 * BEAT_S < took_s < LEADER_MAX_S
        assert replicas.entry.epoch == 2
        assert len(replicas.entry.in_sync) == 2
        replicas.simulation.run(1)
        if fault.startswith("cut"):
            heal(replicas.simulation.network)
        elif fault == "pause":
            replicas.simulation.resume(leader)
        else:
            replicas.start(leader)
        replicas.settle()
        assert replicas.entry.epoch == 2, "who comes back takes nothing from anybody"


def test_starved_leader_keeps_the_lead_and_a_stopped_one_does_not() -> None:
    """What ends its lease at once on a quiet machine is expected on a busy one."""
    with cluster() as replicas:
        leader = replicas.settle()
        simulation = replicas.simulation

        def stall(seconds: float) -> None:
            simulation.pause(leader)
            simulation.run(seconds)
            simulation.resume(leader)
            simulation.run(1)

        for _ in range(5):
            stall(0.35)
        stall(1.0)
        assert (replicas.leader(), replicas.entry.epoch) == (leader, 1)
        simulation.run(MEMORY_S)
        stall(1.0)
        assert replicas.leader() != leader, "its machine has been quiet for long"


def test_dead_leader_of_a_former_controller_is_replaced_at_once() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        simulation = replicas.simulation
        simulation.kill("c1")
        simulation.kill(leader)
        replicas.shelf.holder = ""
        replicas.start_controller("c1")
        took_s = replicas.wait(lambda: replicas.leader() not in ("", leader))
        assert took_s < LEADER_MAX_S, "nobody listens at its addresses"


def test_leader_with_a_reset_connection_is_asked_first() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        for _ in range(5):
            replicas.simulation.run(1)
            replicas.simulation.network.reset("c1", leader)
        replicas.simulation.run(1)
        assert (replicas.leader(), replicas.entry.epoch) == (leader, 1)
        assert any(line.event == "replica.controller_lost" for line in replicas.simulation.log)


def test_longest_in_sync_log_is_preferred() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        followers = [name for name in replicas.names if name != leader]
        replicas.ends = {leader: 900, followers[0]: 400, followers[1]: 800}
        replicas.simulation.run(1)
        replicas.simulation.kill(leader)
        replicas.wait(lambda: replicas.leader() not in ("", leader))
        assert replicas.leader() == followers[1]


def test_incomplete_replica_needs_an_operator_to_be_elected() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        followers = [name for name in replicas.names if name != leader]
        for name in (*followers, leader):
            replicas.simulation.power_cut(name)
            replicas.simulation.run(2)
        for name in replicas.names:
            replicas.start(name, lossless=False)
        replicas.simulation.run(5)
        assert replicas.leader() == ""
        assert replicas.entry.last_known, "they may hope for the operator"
        assert (replicas.entry.in_sync, replicas.entry.eligible) == ({}, {})


def test_leader_hands_over_at_once_and_a_stopping_one_leaves() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        to = next(name for name in replicas.names if name != leader)
        agent = replicas.agents[leader]
        process = replicas.simulation.process(leader)

        async def hand_over() -> None:
            number = replicas.agents[to].me.number
            entry = await agent.hand_over(epoch=1, to=number, op="by hand")
            assert entry == await agent.hand_over(epoch=1, to=number, op="by hand")
            with pytest.raises(Superseded):
                await agent.hand_over(epoch=1, to=number, op="again")
            assert entry.leader is not None
            members = {agent.me.number: 9, number: 1}
            bad = Proposal(entry.leader, entry.epoch, entry.version, members)
            with pytest.raises(ChangeRefused, match="has no registered life 9"):
                await agent.alter(bad, op="not a life of it")
            await agent.leave(op="stops")

        done: list[bool] = []

        async def run() -> None:
            await hand_over()
            done.append(True)

        process.call(lambda: trio.lowlevel.spawn_system_task(run))
        replicas.departed.add(agent.me.number)
        took_s = replicas.wait(lambda: replicas.leader() == to)
        assert took_s < 0.1
        replicas.wait(lambda: bool(done))
        replicas.simulation.kill(leader)
        replicas.simulation.run(1)
        assert replicas.agents[leader].me.number not in replicas.entry.in_sync
        assert replicas.entry.epoch == 2


def test_copied_directory_and_old_incarnation_are_expelled() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        follower = next(name for name in replicas.names if name != leader)
        replicas.simulation.tolerate_crashes = True
        replicas.simulation.kill(follower)
        replicas.start(follower, uuid="another directory")
        replicas.wait(lambda: "may hold what no other has" in replicas.agents[follower].trouble)
        replicas.simulation.kill(follower)
        replicas.start(follower)
        number = int(follower[1:])
        replicas.wait(
            lambda: replicas.entry.replicas[number].incarnation == replicas.lives[follower]
        )
        running = replicas.simulation.process(follower)
        replicas.lives["copy"] = replicas.lives[follower]
        replicas.simulation.run(0.5)
        replicas.start("copy", number=number)
        copy = replicas.simulation.process("copy")
        replicas.wait(lambda: copy.done)
        assert "runs already, at" in copy.end_reason
        assert not running.done
        cut(replicas.simulation.network, follower, "c1")
        replicas.simulation.run(2 * LEASE_S)
        replicas.start("copy", number=number)
        replicas.simulation.run(0.5)
        heal(replicas.simulation.network)
        replicas.wait(lambda: running.done)
        assert "ReplicaExpelled" in running.end_reason
        assert "is known already" in running.end_reason
        replicas.simulation.kill("copy")
        replicas.lives[follower] = 0
        replicas.start(follower)
        process = replicas.simulation.process(follower)
        replicas.wait(lambda: process.done)
        assert "ReplicaExpelled" in process.end_reason
        assert "is known already" in process.end_reason


def test_second_controller_takes_over_and_keeps_the_leader() -> None:
    with cluster(controllers=2) as replicas:
        leader = replicas.settle()
        active = replicas.shelf.holder.split()[0]
        replicas.simulation.kill(active)
        replicas.simulation.run(6)
        assert replicas.leader() == leader
        assert replicas.entry.epoch == 1
        assert replicas.shelf.holder.split()[0] != active
        replicas.start_controller(active)
        replicas.simulation.kill(leader)
        replicas.wait(lambda: replicas.leader() not in ("", leader))
        replicas.start(leader)
        replicas.settle()


def test_superseded_controller_changes_nothing() -> None:
    """It is stopped for longer than its claim, and believes to be active when it continues."""
    with cluster(controllers=2) as replicas:
        leader = replicas.settle()
        active = replicas.shelf.holder.split()[0]
        replicas.simulation.pause(active)
        replicas.simulation.run(4)
        replicas.simulation.kill(leader)
        replicas.wait(lambda: replicas.leader() not in ("", leader))
        versions = replicas.entry.version
        replicas.simulation.resume(active)
        replicas.simulation.run(2)
        assert any(line.event == "controller.superseded" for line in replicas.simulation.log)
        assert replicas.entry.epoch == 2
        assert replicas.entry.version >= versions


def test_silent_register_only_delays_an_election() -> None:
    with cluster() as replicas:
        leader = replicas.settle()
        replicas.shelf.silent = True
        replicas.simulation.run(1)
        replicas.simulation.kill(leader)
        replicas.simulation.run(1.5)
        assert replicas.leader() == ""
        replicas.shelf.silent = False
        replicas.wait(lambda: replicas.leader() not in ("", leader), 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(one, marks=pytest.mark.slow) for one in range(3, 40))]
)
def test_never_two_leaders_under_kills_pauses_and_cuts(seed: int) -> None:
    random = Random(seed)
    with cluster(seed=seed, controllers=2, replicas=3) as replicas:
        simulation = replicas.simulation
        for name in (*replicas.names, *replicas.controllers):
            simulation.host(name).clock.rate = 1 + random.uniform(-0.001, 0.001)
        replicas.settle()
        for _ in range(25):
            name = random.choice((*replicas.names, *replicas.controllers))
            kind = random.choice(("kill", "power_cut", "pause", "cut"))
            if kind == "cut":
                for peer in random.sample((*replicas.names, *replicas.controllers), 3):
                    if peer != name:
                        cut(simulation.network, name, peer, both_ways=random.random() < 0.7)
            elif not simulation.process(name).done:
                getattr(simulation, kind)(name)
            simulation.run(random.uniform(0, 3 * LEASE_S))
            heal(simulation.network)
            process = simulation.process(name)
            if process.state == "paused":
                simulation.resume(name)
            elif process.done:
                replicas.start(name) if name in replicas.names else replicas.start_controller(name)
            simulation.run(random.uniform(0, 10 * BEAT_S))
        replicas.settle()
        assert replicas.entry.epoch > 1
