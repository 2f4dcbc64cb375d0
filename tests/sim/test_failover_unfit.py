"""A group with failover whose leader is there, and would be a bad one: full disks, damaged logs."""

import pytest

from rocketbed.chaos.sim.disk import SimDisk
from tests.support.sim.failover_nodes import FailoverNodes
from tests.support.sim.failover_traffic import Traffic, waits_longest
from tests.support.sim.store_session import flip_bit

FIRST_SEGMENT = "/store/commitlog/00000000000000000000"


@pytest.mark.parametrize("room", [0, 100 * 1024])
def test_a_leader_whose_disk_is_full_gives_the_lead_away(room: int) -> None:
    with FailoverNodes(19) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        disk = group.simulation.process(leader).disk
        disk.quota = disk.allocated() + room
        group.wait(lambda: group.leader() not in ("", leader))
        began = len(traffic.sent)
        group.simulation.run(5)
        assert len(traffic.sent) > began + 100
        assert waits_longest(traffic.when) < 5
        assert group.simulation.process(leader).state == "running"
        disk.quota = None
        traffic.check()


def fill(group: FailoverNodes, *names: str) -> None:
    """No block of these disks is free any more."""
    for name in names:
        disk = group.simulation.process(name).disk
        disk.quota = disk.allocated()


def make_room(group: FailoverNodes) -> None:
    for name in group.names:
        group.simulation.process(name).disk.quota = None


def all_run(group: FailoverNodes) -> bool:
    return all(group.simulation.process(name).state == "running" for name in group.names)


def test_full_disks_everywhere_are_waited_for() -> None:
    """Nobody is a better leader: it stays who leads, and takes messages as soon as it can."""
    with FailoverNodes(27) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        fill(group, *group.names)
        group.wait(lambda: bool(group.nodes[leader].store.lack_of_room()))
        assert group.entry is not None
        epoch = group.entry.epoch
        group.simulation.run(40)
        assert all_run(group)
        assert (group.entry.leader, group.entry.epoch) == (int(leader[-1]), epoch)
        make_room(group)
        assert group.settle() == leader
        began = len(traffic.sent)
        group.wait(lambda: len(traffic.sent) > began + 100)
        traffic.check()


@pytest.mark.parametrize("seed", [28, 29])
def test_who_has_no_room_for_an_epoch_steps_down_and_lives(seed: int) -> None:
    with FailoverNodes(seed) as group:
        leader = group.settle()
        others = [name for name in group.names if name != leader]
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        fill(group, *others)
        group.simulation.kill(leader)
        group.simulation.run(10)
        assert group.leader() == ""
        assert all(group.simulation.process(name).state == "running" for name in others)
        assert group.entry is not None
        assert 5 < group.entry.epoch < 50
        make_room(group)
        group.wait(lambda: group.leader() in others, 15)
        group.start(leader)
        group.settle()
        traffic.check()


def rot(disk: SimDisk) -> int:
    """A bit of the first message's body, which is found by nobody but a reader; where."""
    at = disk.contents(FIRST_SEGMENT).index(b"1 \0\0\0") + 4
    flip_bit(disk, FIRST_SEGMENT, 8 * at)
    return at


def test_a_leader_that_finds_its_log_damaged_gives_the_lead_away() -> None:
    with FailoverNodes(30) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        at = rot(group.simulation.process(leader).disk)
        group.simulation.kill(leader)
        group.wait(lambda: group.leader() not in ("", leader))
        group.start(leader)
        second = group.settle()
        group.wait(lambda: bool(group.nodes[leader].store.unfit()))
        group.simulation.kill(second)
        third = next(name for name in group.names if name not in (leader, second))
        group.wait(lambda: group.leader() == third)
        group.simulation.run(1)
        fill(group, third)  # full now, and no worse than a damaged one
        group.simulation.run(5)
        assert group.leader() in ("", third)
        make_room(group)
        group.start(second)
        group.settle()
        flip_bit(group.simulation.process(leader).disk, FIRST_SEGMENT, 8 * at)
        traffic.check()


def test_damage_is_not_copied() -> None:
    """An empty replica refuses what its leader's disk has spoilt, and gets it from the next."""
    with FailoverNodes(31, begin=False) as group:
        group.start("g-1", "g-2")
        group.wait(lambda: bool(group.leader()))
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        leader = group.leader()
        at = rot(group.simulation.process(leader).disk)
        group.start("g-3")
        group.wait(lambda: "g-3" in group.nodes)
        failover = group.nodes["g-3"].failover
        assert failover is not None
        group.wait(lambda: "body CRC does not match" in failover.trouble())
        group.wait(lambda: group.leader() not in ("", leader))
        group.settle()
        flip_bit(group.simulation.process(leader).disk, FIRST_SEGMENT, 8 * at)
        traffic.check()
