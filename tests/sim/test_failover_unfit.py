"""A group with failover whose leader is there, and would be a bad one: full disks, damaged logs."""

import errno

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk, SimFile
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Sent
from rocketbed.client.producer import Producer
from rocketbed.node.store.epochs import StoreEpochs
from rocketbed.replication.errors import NoRoom, ReplicationError
from rocketbed.replication.kept_file import KeptFileUnwritable, read_kept, write_kept
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import FailoverNodes
from tests.support.sim.failover_traffic import Traffic, waits_longest
from tests.support.sim.store_session import flip_bit

FIRST_SEGMENT = "/store/commitlog/00000000000000000000"


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 100 * 1024])
def test_leader_with_a_full_disk_hands_over(room: int) -> None:
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


def test_full_disks_everywhere_are_waited_out() -> None:
    """No better leader exists: the leader stays, and accepts messages as soon as it can."""
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
def test_replica_without_room_for_an_epoch_steps_down(seed: int) -> None:
    with FailoverNodes(seed) as group:
        leader = group.settle()
        followers = [name for name in group.names if name != leader]
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        fill(group, *followers)
        group.simulation.kill(leader)
        group.simulation.run(10)
        assert group.leader() == ""
        assert all(group.simulation.process(name).state == "running" for name in followers)
        assert group.entry is not None
        assert 5 < group.entry.epoch < 50
        make_room(group)
        group.wait(lambda: group.leader() in followers, 15)
        group.start(leader)
        group.settle()
        traffic.check()


def rot(disk: SimDisk) -> int:
    """Flip a bit of the first message's body, which only a reader finds; return its place."""
    at = disk.contents(FIRST_SEGMENT).index(b"1 \0\0\0") + 4
    flip_bit(disk, FIRST_SEGMENT, 8 * at)
    return at


def test_leader_with_a_damaged_log_hands_over() -> None:
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


def last_bit(group: FailoverNodes, name: str) -> tuple[str, int]:
    """Return file and bit of one of the last records in a log."""
    store = group.nodes[name].store
    segment, at = divmod(store.max_offset - 1000, store.config.segment_size)
    return f"/store/commitlog/{segment * store.config.segment_size:020d}", 8 * at


def test_leader_refused_by_all_followers_hands_over() -> None:
    """It has no follower to hand over to, and nothing is confirmed here any more."""
    with FailoverNodes(38) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        traffic.stop()
        group.simulation.run(1)
        disk, where = group.simulation.process(leader).disk, last_bit(group, leader)
        flip_bit(disk, *where)
        for name in group.names:
            if name != leader:
                group.simulation.network.reset(leader, name)
        group.wait(lambda: group.leader() not in ("", leader), 20)
        failover = group.nodes[leader].failover
        assert failover is not None
        group.wait(lambda: "same epochs, and other bytes" in failover.trouble())
        flip_bit(disk, *where)
        traffic.start()
        group.simulation.run(1)
        traffic.check()


def test_full_segment_right_after_a_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has an epoch then that its history on disk lacks."""
    begin = StoreEpochs.begin_epoch
    full: list[int] = []
    with FailoverNodes(39) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)

        async def begin_epoch(epochs: StoreEpochs, number: int, replica_number: int) -> int:
            start = await begin(epochs, number, replica_number)
            if not full:
                full.append(number)
                fill(group, f"g-{replica_number}")
            return start

        monkeypatch.setattr(StoreEpochs, "begin_epoch", begin_epoch)
        group.simulation.kill(leader)
        group.simulation.run(3)
        assert full == [2]
        make_room(group)
        group.start(leader)
        group.settle()
        traffic.check()


def test_shortage_of_descriptors_ends_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with FailoverNodes(40) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        opened = SimDisk.open

        def open_file(disk: SimDisk, path: str, **how: bool) -> SimFile:
            if path.endswith("epoch.rb.new"):
                raise OSError(errno.EMFILE, "Too many open files")
            return opened(disk, path, **how)

        with monkeypatch.context() as patch:
            patch.setattr(SimDisk, "open", open_file)
            group.simulation.run(3)
            group.simulation.kill(leader)
            group.simulation.run(3)
        group.start(leader)
        group.settle()
        assert all_run(group)
        traffic.check()


def test_forged_checksum_property_stops_no_replica() -> None:
    """Followers compare the checksum that a record ends with; it is the broker's to write."""
    with FailoverNodes(41) as group:
        group.settle()
        traffic = Traffic(group)
        traffic.start()

        async def send(world: World) -> Outcome:
            async with Producer(world, nameservers=traffic.nameservers, group="odd") as producer:
                odd = Message("T", b"odd", properties={"__CRC32#": "0000000000"})
                return await producer.send_batch([Message("T", b"even"), odd])

        outcome = group.simulation.run_process(group.program(send), 30)
        assert isinstance(outcome, Sent)
        group.simulation.run(2)
        assert group.settle()
        traffic.check()


@pytest.mark.parametrize(
    ("step", "error"), [("open", NoRoom), ("rename", NoRoom), ("sync_dir", KeptFileUnwritable)]
)
def test_shortage_is_waited_for_only_before_the_rename(
    step: str, error: type[ReplicationError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that, the next start may find either file, and a cut on record there is done."""

    def lacks(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def write(world: World) -> None:
        world.disk.makedirs("/kept")
        await write_kept(world, "/kept", "x", "kind 1", {"number": 1})
        with monkeypatch.context() as patch:
            patch.setattr(SimDisk, step, lacks)
            with pytest.raises(error):
                await write_kept(world, "/kept", "x", "kind 1", {"number": 2})
        document = read_kept(world, "/kept/x", "kind 1")
        assert document == {"number": 1 if error is NoRoom else 2}

    with Simulation(0) as simulation:
        simulation.run_process(simulation.start("host", write), 5)
