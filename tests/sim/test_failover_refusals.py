"""A replica that its leader refuses is heard of in the logs once, and from the replica itself."""

from dataclasses import replace

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.client.admin import Admin
from rocketbed.replication.errors import LinkRefused
from rocketbed.replication.leader import Leader
from rocketbed.wire.ha_native import Frame, Hello
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import FailoverNodes
from tests.support.sim.failover_traffic import Traffic
from tests.support.sim.store_session import edited

SIZES = "its log has files of 131072 bytes, ours of 65536"


def logged(group: FailoverNodes, reason: str) -> list[tuple[str, str, str]]:
    return [
        (line.node, line.level, line.event)
        for line in group.simulation.log
        if line.event in ("leader.follower_refused", "follower.refused")
        and reason in str(line.fields["reason"])
    ]


def not_ready(group: FailoverNodes, name: str) -> str:
    address = group.nodes[name].config.address

    async def ask(world: World) -> str:
        async with Admin(world, nameservers="ns-1:9876") as admin:
            return (await admin.runtime_info(address))["rbNotReady"]

    reason: str = group.simulation.run_process(group.program(ask), 30)
    return reason


def test_refusal_is_logged_once_on_each_side() -> None:
    with FailoverNodes(3, begin=False) as group:
        group.start("g-1", "g-2")
        group.wait(lambda: bool(group.leader()))
        store = replace(group.config("g-3").store, segment_size=128 * 1024)
        group.start("g-3", store=store)
        group.simulation.run(10)
        leader = group.leader()
        assert logged(group, SIZES) == [
            (leader, "warning", "leader.follower_refused"),
            ("g-3", "warning", "follower.refused"),
        ]
        expected = f"it follows nobody: replica {leader[2:]} refuses: {SIZES}"
        assert not_ready(group, "g-3").startswith(expected)
        assert [not_ready(group, name) for name in ("g-1", "g-2")] == ["", ""]


def test_replica_served_meanwhile_is_reported_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = True
    judge = Leader._judge

    def judged(leader: Leader, first: Frame) -> tuple[Hello, int]:
        hello, cut = judge(leader, first)
        if refuses and hello.replica == 3:
            raise LinkRefused("not this one")
        return hello, cut

    monkeypatch.setattr(Leader, "_judge", judged)
    with FailoverNodes(3, begin=False) as group:
        group.start("g-1", "g-2")
        group.wait(lambda: bool(group.leader()))
        leader = group.leader()
        for turn in (1, 2):
            refuses = True
            group.start("g-3")
            group.simulation.run(5)
            assert logged(group, "not this one") == turn * [
                (leader, "warning", "leader.follower_refused"),
                ("g-3", "warning", "follower.refused"),
            ]
            refuses = False
            group.settle()
            assert not_ready(group, "g-3") == ""
            group.simulation.kill("g-3")
            group.simulation.run(2)


def go_on(group: FailoverNodes) -> None:
    """Some messages more; all logs are the same then."""
    traffic = Traffic(group)
    traffic.start()
    group.simulation.run(2)
    traffic.check()


def follower_of(group: FailoverNodes) -> str:
    """A dead follower, after some traffic; the disk that it leaves is its host's image."""
    leader = group.settle()
    go_on(group)
    name = next(name for name in group.names if name != leader)
    group.simulation.kill(name)
    return name


@pytest.mark.slow
def test_log_of_another_group_with_equal_epochs_is_refused() -> None:
    """`epoch.rb` went with the former log; by the markers in this one it is ours."""
    with FailoverNodes(33) as second_group:
        theirs = second_group.simulation.host(follower_of(second_group)).image
    with FailoverNodes(34) as group:
        name = follower_of(group)
        host = group.simulation.host(name)
        mine = SimDisk(host.image).contents("/store/replica.rb")

        def exchange(disk: SimDisk) -> None:
            disk.replace_contents("/store/replica.rb", mine)
            disk.remove_name("/store/epoch.rb")

        host.image = edited(theirs, exchange)
        group.start(name)
        group.wait(lambda: name in group.nodes)
        failover = group.nodes[name].failover
        assert failover is not None
        group.wait(lambda: "have the same epochs, and other bytes between" in failover.trouble())
        assert group.entry is not None
        assert int(name[-1]) not in group.entry.in_sync


@pytest.mark.slow
def test_empty_directory_replaces_a_lost_one() -> None:
    with FailoverNodes(35) as group:
        name = follower_of(group)
        assert group.entry is not None
        number = int(name[-1])
        lost = group.entry.replicas[number]
        group.simulation.host(name).image = SimDisk().image()  # at once: it was heard a moment ago
        group.start(name)
        group.wait(lambda: group.entry is not None and group.entry.replicas[number] != lost)
        group.settle()
        new = group.entry.replicas[number]
        assert new.uuid != lost.uuid
        assert (lost.incarnation, new.incarnation) == (1, 2)
        group.simulation.kill(name)
        group.start(name)
        group.wait(
            lambda: group.entry is not None and group.entry.replicas[number].incarnation == 3
        )
        go_on(group)


def test_empty_directory_waits_until_the_lost_one_is_unneeded() -> None:
    with FailoverNodes(37) as group:
        name = follower_of(group)
        remaining = [peer for peer in group.names if peer != name]
        for peer in remaining:
            group.simulation.kill(peer)
        group.simulation.host(name).image = SimDisk().image()
        group.start(name)
        group.simulation.run(3)
        group.start(*remaining)
        group.settle()
        go_on(group)


def expelled(group: FailoverNodes, name: str) -> str:
    """Return the reason why a replica ended."""
    process = group.simulation.process(name)
    group.wait(lambda: process.done)
    return process.end_reason


def test_empty_directory_replaces_no_needed_or_running_one() -> None:
    """The lost replica may have had the only copy of everything; and a number may be a mistake."""
    with FailoverNodes(36) as group:
        name = follower_of(group)
        group.simulation.tolerate_crashes = True
        host = group.simulation.host(name)
        image = host.image
        remaining = [peer for peer in group.names if peer != name]
        for peer in remaining:
            group.simulation.kill(peer)
        host.image = SimDisk().image()
        group.start(name)
        group.wait(lambda: name in group.nodes)
        failover = group.nodes[name].failover
        assert failover is not None
        group.wait(lambda: "may hold what no other has" in failover.trouble())
        group.simulation.kill(name)
        host.image = image
        group.start(*group.names)
        group.settle()
        config = group.config(name)
        mistaken = group.simulation.host("mistaken")
        ip = mistaken.address
        store = replace(config.store, store_host=ip)
        group.simulation.start(
            "mistaken", group._main, "mistaken", replace(config, ip1=ip, store=store)
        )
        assert "a number that no replica had yet" in expelled(group, "mistaken")
        group.nodes.pop("mistaken", None)
        group.simulation.run(1)
        go_on(group)
