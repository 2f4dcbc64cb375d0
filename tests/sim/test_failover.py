"""A group that fails over by itself: nothing that was acknowledged is lost, whatever fails."""

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
        one = FailoverGroup(simulation, **shape)
        yield one
        one.check()


def test_a_group_begins_and_acknowledges() -> None:
    with group() as one:
        one.settle()
        one.simulation.run(3)
        assert len(one.acknowledged) > 100
        assert one.entry.epoch == 1


@pytest.mark.parametrize("fault", ["kill", "power_cut", "pause"])
def test_a_dead_leader_is_followed_by_another_within_a_second(fault: str) -> None:
    with group() as one:
        leader = one.settle()
        one.simulation.run(2)
        getattr(one.simulation, fault)(leader)
        began = one.simulation.timeline.now
        one.wait(lambda: one.leader() not in ("", leader) and one.when[-1] > began)
        gap_s = (one.when[-1] - began) / SECOND
        assert gap_s < 1.5
        one.simulation.run(2)
        if fault == "pause":
            one.simulation.resume(leader)
        else:
            one.start(leader)
        one.settle()
        assert one.entry.epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_whatever_fails(seed: int) -> None:
    with group(seed=seed, controllers=1 + seed % 2) as one:
        one.settle()
        random_faults(one, Random(seed), 12)
        one.check()
        assert len(one.acknowledged) > 100


def test_a_follower_that_is_further_away_joins_while_producers_write() -> None:
    with group() as one:
        leader = one.settle()
        far, near = [name for name in one.names if name != leader]
        for pair in ((far, leader), (leader, far), (far, near), (near, far)):
            one.simulation.network.between(*pair).latency_ns = 5 * MILLISECOND
        one.simulation.kill(far)
        one.simulation.run(1)
        one.start(far)
        assert one.wait(one.is_settled, 20) < 5
