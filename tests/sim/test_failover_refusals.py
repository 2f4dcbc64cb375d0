"""A replica that its leader refuses is heard of in the logs once, and from the replica itself."""

from dataclasses import replace

import pytest

from rocketbed.client.admin import Admin
from rocketbed.replication.errors import LinkRefused
from rocketbed.replication.leader import Leader
from rocketbed.wire.ha_native import Frame, Hello
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import FailoverNodes

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

    found: str = group.simulation.run_process(group.program(ask), 30)
    return found


def test_a_refusal_is_told_once_in_each_log_and_by_who_is_refused() -> None:
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
        said = f"it follows nobody: replica {leader[2:]} refuses: {SIZES}"
        assert not_ready(group, "g-3").startswith(said)
        assert [not_ready(group, name) for name in ("g-1", "g-2")] == ["", ""]


def test_who_was_served_meanwhile_is_told_of_anew(monkeypatch: pytest.MonkeyPatch) -> None:
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
