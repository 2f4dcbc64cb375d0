"""A group with automatic failover: nothing acknowledged is lost, whatever fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from rocketbed.chaos.backends.sim.clock import MILLISECOND, SECOND
from rocketbed.chaos.backends.sim.simulation import Simulation
from tests.support.sim.failover import FailoverGroup, random_faults


@contextmanager
def group(seed: int = 1, **shape: int) -> Iterator[FailoverGroup]:
    with Simulation(seed=seed) as simulation:
        for name in ("c1", "c2", "r0", "r1", "r2"):
            simulation.host(name)
        replicas = FailoverGroup(simulation, **shape)
        yield replicas
        replicas.check()


def test_a_group_begins_and_acknowledges() -> None:
    with group() as replicas:
        replicas.settle()
        replicas.simulation.run(3)
        assert len(replicas.acknowledged) > 100
        assert replicas.entry.epoch == 1


@pytest.mark.parametrize("fault", ["kill", "power_cut", "pause"])
def test_dead_leader_is_replaced_within_a_second(fault: str) -> None:
    with group() as replicas:
        leader = replicas.settle()
        replicas.simulation.run(2)
        getattr(replicas.simulation, fault)(leader)
        began = replicas.simulation.timeline.now
        replicas.wait(lambda: replicas.leader() not in ("", leader) and replicas.when[-1] > began)
        gap_s = (replicas.when[-1] - began) / SECOND
        assert gap_s < 1.5
        replicas.simulation.run(2)
        if fault == "pause":
            replicas.simulation.resume(leader)
        else:
            replicas.start(leader)
        replicas.settle()
        assert replicas.entry.epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_whatever_fails(seed: int) -> None:
    with group(seed=seed, controllers=1 + seed % 2) as replicas:
        replicas.settle()
        random_faults(replicas, Random(seed), 12)
        replicas.check()
        assert len(replicas.acknowledged) > 100


def test_distant_follower_joins_while_producers_write() -> None:
    with group() as replicas:
        leader = replicas.settle()
        far, near = [name for name in replicas.names if name != leader]
        for pair in ((far, leader), (leader, far), (far, near), (near, far)):
            replicas.simulation.network.between(*pair).latency_ns = 5 * MILLISECOND
        replicas.simulation.kill(far)
        replicas.simulation.run(1)
        replicas.start(far)
        assert replicas.wait(replicas.is_settled, 20) < 5
