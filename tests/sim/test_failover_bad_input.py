"""Bad input that a member of a failover group finds at its start, or later: each ends in a clear
state and a text, and nothing acknowledged is lost.
"""

from collections.abc import Callable

import crcmod.predefined
import orjson
import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.replication.epoch_file import EpochFile
from tests.support.sim.failover_nodes import GROUP, FailoverNodes
from tests.support.sim.failover_traffic import Traffic, waits_longest
from tests.support.sim.store_session import edited

EPOCHS = "/store/epoch.rb"
crc32c = crcmod.predefined.mkCrcFun("crc-32c")


def changed(change: Callable[[bytes], bytes]) -> Callable[[SimDisk], None]:
    def on(disk: SimDisk) -> None:
        disk.replace_contents(EPOCHS, change(disk.contents(EPOCHS)))

    return on


def removed(disk: SimDisk) -> None:
    disk.remove_name(EPOCHS)


def a_directory(disk: SimDisk) -> None:
    disk.remove_name(EPOCHS)
    disk.makedirs(EPOCHS)


def follower_of(group: FailoverNodes) -> tuple[str, Traffic]:
    """A follower that has died, and the producers that continue."""
    leader = group.settle()
    traffic = Traffic(group)
    traffic.start()
    group.simulation.run(1)
    name = next(name for name in group.names if name != leader)
    group.simulation.kill(name)
    return name, traffic


def trouble(group: FailoverNodes, name: str) -> str:
    failover = group.nodes[name].failover if name in group.nodes else None
    return "" if failover is None else failover.trouble()


def join(group: FailoverNodes, name: str) -> None:
    """Start a node that is dead, and wait until it follows and all are in sync."""
    group.start(name)
    group.wait(lambda: name in group.nodes and not trouble(group, name))
    group.settle()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed(lambda data: data[: len(data) // 2]), "it does not match its CRC"),
        (changed(lambda data: data.replace(b'"promised":1', b'"promised":2')), "match its CRC"),
        (changed(lambda data: b""), "it has 0 bytes"),
        (changed(lambda data: data.replace(b"epochs 1", b"epochs 2")), "it is a 'rocketbed-epochs"),
        (a_directory, "it is no file"),
    ],
)
def test_damaged_epoch_file_ends_a_start_and_can_be_removed(
    change: Callable[[SimDisk], None], text: str
) -> None:
    with FailoverNodes(41) as group:
        group.simulation.tolerate_crashes = True
        name, traffic = follower_of(group)
        host = group.simulation.host(name)
        whole, host.image = host.image, edited(host.image, change)
        group.start(name)
        process = group.simulation.process(name)
        group.wait(lambda: process.done)
        assert process.end_reason.startswith("EpochFileDamaged: /store/epoch.rb cannot be read:")
        assert text in process.end_reason
        assert "Move it away" in process.end_reason
        host.image = edited(whole, removed)  # as the text says
        join(group, name)
        traffic.check()


def test_missing_epoch_file_is_rebuilt_from_the_log() -> None:
    with FailoverNodes(42) as group:
        name, traffic = follower_of(group)
        host = group.simulation.host(name)
        host.image = edited(host.image, removed)
        join(group, name)
        file = EpochFile(group.simulation.process(name).world, "/store")
        assert file.load()
        assert [one.number for one in file.state.history] == [1]
        traffic.check()


def test_epoch_file_from_the_future_stops_its_group() -> None:
    """By it the register is older than this replica, and may lack a leader of an epoch between."""

    def promise(data: bytes) -> bytes:
        kind, text, _, _ = data.split(b"\n")
        text = orjson.dumps({**orjson.loads(text), "promised": 99})
        return b"%s\n%s\n%08x\n" % (kind, text, crc32c(text))

    with FailoverNodes(43) as group:
        name, traffic = follower_of(group)
        host = group.simulation.host(name)
        whole, host.image = host.image, edited(host.image, changed(promise))
        group.start(name)
        group.simulation.run(10)
        older = f"as it was in epoch 1, and replica {name[-1]} knows of epoch 99"
        assert group.leader() == ""
        assert older in trouble(group, name)
        assert older in group.status()[GROUP]["damaged"]
        assert sum(line.event == "controller.older_register" for line in group.simulation.log) == 1
        group.simulation.kill(name)
        host.image = edited(whole, removed)
        group.simulation.kill("ns-1")  # a controller that has seen it trusts its register no more
        group.start_nameserver("ns-1")
        join(group, name)
        traffic.check()


def test_a_node_of_another_cluster_is_refused() -> None:
    with FailoverNodes(44) as group:
        name, traffic = follower_of(group)
        group.start(name, cluster_name="Other")
        group.wait(lambda: "refuses: it is of cluster 'Other'" in trouble(group, name))
        group.simulation.kill(name)
        join(group, name)
        traffic.check()


def test_node_with_a_lower_in_sync_minimum_is_refused() -> None:
    with FailoverNodes(47) as group:
        group.simulation.tolerate_crashes = True
        name, traffic = follower_of(group)
        group.start("g-4", replicas=2)
        process = group.simulation.process("g-4")
        group.wait(lambda: process.done)
        assert "and rbReplicas=2 of replica 4 asks for 1" in process.end_reason
        join(group, name)
        traffic.check()


@pytest.mark.parametrize("effect", ["error", "error_clean"])
def test_leader_with_a_failed_fsync_is_replaced(effect: str) -> None:
    with FailoverNodes(45) as group:
        group.simulation.tolerate_crashes = True
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        process = group.simulation.process(leader)
        fault = SimFault(operation="sync", effect=effect, path="/store/commitlog/*")  # type: ignore[arg-type]
        process.disk.faults.append(fault)
        group.wait(lambda: process.done)
        assert fault.fired == 1
        assert "/store/commitlog/" in process.end_reason
        group.wait(lambda: group.leader() not in ("", leader))
        group.simulation.run(2)
        join(group, leader)
        traffic.check()


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [-7200, 7200])
def test_wall_clock_jumps_do_not_move_the_lead(jump_s: int) -> None:
    with FailoverNodes(46) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        for name in (leader, *group.nameservers):
            group.simulation.host(name).clock.wall_offset_ms += jump_s * 1000
        group.simulation.run(3)
        assert group.leader() == leader
        assert group.entry is not None
        assert len(group.entry.in_sync) == 3
        assert waits_longest(traffic.when) < 1
        group.simulation.kill(leader)
        group.wait(lambda: group.leader() not in ("", leader))
        join(group, leader)
        traffic.check()
