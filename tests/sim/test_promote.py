"""Failover by hand in classic mode: a slave becomes the master, the former one comes back.

The former master under asynchronous replication has messages that no other node has. It is cut to
what both have, keeps a copy of the rest, and follows (design.md 13).
"""

from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.remoting.client import dial
from rocketbed.replication.errors import LogDiverged, NothingInCommon
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, request
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, PORT
from tests.support.sim.links import cut, heal
from tests.support.sim.promotion import SEGMENT, Group
from tests.support.sim.store_session import edited, flip_bit


def begin(group: Group, *, common: int = 20, lost: int = 10, size: int = 300) -> bytes:
    """Start a group whose master b1 has a tail that no other node has, and isolate b1; return its
    log.
    """
    group.start("b1", "b2", "b3")
    group.simulation.run(2)
    group.send(common, size=size)
    group.run_until_equal("b2", "b3")
    group.isolate("b1")
    group.send(lost, prefix="lost", size=size)
    return group.log_of("b1")


def finish(group: Group, directory: Path) -> None:
    """More messages reach everybody; clean stops; the independent reader finds no damage."""
    group.send(5, prefix="more")
    names = [name for name in group.roles if name in group.nodes]
    group.run_until_equal(*(name for name in names if group.roles[name]))
    for name in names:
        group.restart(name)
    group.simulation.run(1)
    for name in names:
        group.check_directory(name, directory / name)


def check_cut(group: Group, name: str, before: bytes) -> None:
    """A node with this log was cut once, at the end of what is common, and keeps what it lost."""
    (cut,) = group.events("replication.cut", name)
    start = cut["start"]
    assert isinstance(start, int)
    assert cut["kept"] == f"/store/rocketbed.cut/{start:020d}"
    assert group.kept_of(name)[f"{start:020d}"] == before[start:]
    log = group.log_of(name)
    assert log[:start] == before[:start]
    size = int.from_bytes(before[start : start + 4], "big")
    assert log[start : start + size] != before[start : start + size]


@pytest.mark.parametrize("sent_after", [0, 5, 40])
@pytest.mark.parametrize("how", ["kill", "power", "stop"])
def test_former_master_is_cut_to_the_common_prefix_and_follows(
    how: str, sent_after: int, tmp_path: Path
) -> None:
    """Killed and stopped, it has its whole log; after a power cut, what was on its disk."""
    with Group(sent_after) as group:
        before = begin(group)
        if how == "stop":
            process = group.simulation.process("b1")
            group.simulation.stop("b1")
            group.simulation.run(20, until=lambda: process.done)
        else:
            group.end("b1", power="random" if how == "power" else "")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.send(sent_after, prefix="new")
        group.start("b1")
        group.run_until_equal("b1", "b3")
        if how != "power":
            check_cut(group, "b1", before)
        finish(group, tmp_path)


def test_a_former_master_that_is_several_segments_longer(tmp_path: Path) -> None:
    with Group(2) as group:
        before = begin(group, common=100, lost=200, size=3000)
        assert len(before) > 12 * SEGMENT
        group.end("b1")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.send(1, prefix="new", size=3000)
        group.start("b1")
        group.run_until_equal("b1", "b3")
        check_cut(group, "b1", before)
        assert (
            len([p for p in group.simulation.process("b1").disk.paths() if "commitlog/" in p]) < 8
        )
        finish(group, tmp_path)


def test_both_went_on_for_several_segments(tmp_path: Path) -> None:
    with Group(3) as group:
        begin(group, common=100, lost=120, size=3000)
        group.end("b1", power="prefix")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.send(150, prefix="new", size=3000)
        group.start("b1")
        group.run_until_equal("b1", "b3")
        finish(group, tmp_path)


def test_second_slave_longer_than_the_promoted_one(tmp_path: Path) -> None:
    with Group(4) as group:
        group.start("b1", "b2", "b3")
        group.simulation.run(2)
        group.send(20)
        group.run_until_equal("b2", "b3")
        group.isolate("b2")
        group.send(10, prefix="lost")
        group.simulation.run(
            10,
            until=lambda: group.nodes["b3"].store.max_offset == group.nodes["b1"].store.max_offset,
        )
        before = group.log_of("b3")
        group.end("b1", power="random")
        group.end("b2")
        heal(group.simulation.network)
        group.promote("b2")
        group.start("b2")
        group.run_until_equal("b3", seconds=3)
        check_cut(group, "b3", before)
        group.start("b1")
        group.run_until_equal("b1")
        finish(group, tmp_path)


def test_unrelated_logs_are_refused_and_left_unchanged() -> None:
    with Group(5) as group:
        group.start("b1", "b2")
        group.simulation.run(2)
        cut(group.simulation.network, "b1", "b2")
        group.send(30, prefix="lost")
        before = group.log_of("b1")
        group.end("b1")
        group.end("b2")
        group.simulation.host("b2").image = DiskImage()
        heal(group.simulation.network)
        group.promote("b2")
        group.start("b2")
        group.send(10, prefix="new")
        group.start("b1")
        group.simulation.run(15)
        slave = group.nodes["b1"].replication.slave
        assert slave is not None
        assert isinstance(slave.refusal, NothingInCommon)
        assert group.log_of("b1") == before


def test_refusal_names_the_missing_setting() -> None:
    with Group(6) as group:
        group.diverged = "refuse"
        before = begin(group)
        group.end("b1")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.send(5, prefix="new")
        group.start("b1")
        group.simulation.run(5)
        slave = group.nodes["b1"].replication.slave
        assert slave is not None
        assert isinstance(slave.refusal, LogDiverged)
        assert "rbDiverged=cut" in str(slave.refusal)
        assert group.log_of("b1") == before


@pytest.mark.parametrize("mark", ["kept", "lost"])
def test_shorter_master_at_another_address_was_not_promoted(mark: str) -> None:
    """A container that was moved and has an older disk, for example; or the slave's own mark is
    lost.
    """
    with Group(6) as group:
        group.promotions = 1
        group.start("b1", "b2", "b3")
        group.simulation.run(2)
        group.send(10)
        group.run_until_equal("b2", "b3")
        group.isolate("b3")
        group.send(10, prefix="without-b3")
        group.run_until_equal("b2")
        before = group.log_of("b2")
        for name in ("b1", "b2", "b3"):
            group.end(name)
        heal(group.simulation.network)
        if mark == "lost":
            host = group.simulation.host("b2")
            path = "/store/rocketbed.ckpt"
            host.image = edited(host.image, lambda disk: flip_bit(disk, path, 8 * 60))
            group.promotions = 2
        group.roles["b1"], group.roles["b3"] = 2, 0
        group.start("b3", "b2")
        group.send(1, prefix="other")
        group.simulation.run(5)
        slave = group.nodes["b2"].replication.slave
        assert slave is not None
        assert "so it is not truncated" in str(slave.refusal)
        assert group.log_of("b2") == before


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", ["", "random"])
def test_promoted_there_and_back(seed: int, power: str, tmp_path: Path) -> None:
    with Group(seed) as group:
        begin(group)
        for turn, (former, promoted) in enumerate((("b1", "b2"), ("b2", "b1"), ("b1", "b3"))):
            group.end(former, power=power)
            heal(group.simulation.network)
            group.promote(promoted)
            group.restart(promoted)
            group.restart(({"b1", "b2", "b3"} - {former, promoted}).pop())  # it learns the number
            group.send(5, prefix=f"new-{turn}")
            group.start(former)
            group.run_until_equal(*(name for name, number in group.roles.items() if number))
            group.isolate(promoted)
            group.send(5, prefix=f"lost-{turn}")
        group.end("b3")
        heal(group.simulation.network)
        group.promote("b1")
        group.restart("b1")
        group.restart("b2")
        group.start("b3")
        finish(group, tmp_path)


def test_synchronously_replicated_messages_survive() -> None:
    """With one slave that had it: the longest slave is promoted, and nothing is lost."""
    with Group(8, sync=True) as group:
        group.start("b1", "b2", "b3")
        group.simulation.run(2)
        group.send(40)
        group.isolate("b3")
        group.send(20, prefix="without-b3")
        group.end("b1", power="strict")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.start("b1")
        group.send(5, prefix="after")
        group.run_until_equal("b1", "b3")
        log = group.log_of("b1")
        assert all(body in log for body, _ in group.outcomes)
        places = [(sent.queue, sent.queue_offset) for _, sent in group.outcomes]
        assert len(set(places)) == len(places) == 65


# --- roles, routes, offsets


def test_clients_find_the_promoted_master_within_a_second() -> None:
    """The time counts from when it serves; no other node is restarted."""
    times: list[float] = []

    async def main(world: World) -> None:
        async with Producer(world, nameservers=NAMESERVERS, group="pg", timeout_s=1) as sender:
            while True:
                outcome = await sender.send(Message("T", b"x" * 100))
                if isinstance(outcome, Sent):
                    times.append(trio.current_time())
                await trio.sleep(0.02)

    with Group(9) as group:
        group.start("b1", "b2", "b3")
        group.simulation.run(2)
        group.send(1)
        group.program(main)
        group.simulation.run(3)
        group.end("b1")
        group.simulation.run(5)
        group.promote("b2")
        began = len(times)
        group.restart("b2")
        serving = group.simulation.timeline.now
        group.simulation.run(5, until=lambda: "b2" in group.nodes and len(times) > began)
        assert group.simulation.timeline.now - serving < 1.5e9
        group.simulation.run(2, until=lambda: group.nodes["b3"].replication.is_following)
        assert group.simulation.timeline.now - serving < 2.5e9
        group.run_until_equal("b3")


def test_offsets_beyond_the_promoted_log_are_lowered() -> None:
    """Else the group would never see the messages that get those queue offsets (T20)."""

    async def main(world: World) -> list[bytes]:
        async with Consumer(world, nameservers=NAMESERVERS, group="cg") as reader:
            await reader.subscribe("T", start="first")
            bodies: list[bytes] = []
            while messages := await reader.poll(timeout_s=3):
                bodies += [message.body.split()[0] for message in messages]
            await reader.commit()
            return bodies

    with Group(10) as group:
        group.start("b1", "b2")
        group.simulation.run(2)
        group.send(20)
        group.run_until_equal("b2")
        cut(group.simulation.network, "b1", "b2")
        group.send(40, prefix="lost")
        assert len(group.run(main)) == 60
        committed = group.nodes["b1"].tables.offsets.body()
        group.simulation.process("b2").call(group.nodes["b2"].tables.offsets.replace_all, committed)
        group.end("b1")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.send(40, prefix="new")
        assert len(group.events("offsets.brought_down", "b2")) > 0
        group.start("b1")
        assert sorted(group.run(main)) == sorted(f"new-{n}".encode() for n in range(40))
        group.run_until_equal("b1")
        group.simulation.run(2)
        tables = {name: node.tables.offsets.body() for name, node in group.nodes.items()}
        assert tables["b1"].offset_table == tables["b2"].offset_table


def test_slave_has_a_new_topic_with_its_first_message() -> None:
    """Else, promoted before the next copy of the tables, it would hold messages of no topic."""

    with Group(13) as group:
        group.start("b1", "b2", metadata_sync_ms=600_000)
        group.simulation.run(2)
        group.send(1)
        group.run_until_equal("b2")
        group.simulation.run(0.1)
        topic = group.nodes["b2"].tables.topics.get("T")
        assert topic is not None
        assert topic == group.nodes["b1"].tables.topics.get("T")


def test_held_pull_at_a_slave_is_answered_on_a_cut() -> None:
    """Held at an offset that other messages get; else it would wait, then skip them."""

    def pull(offset: int) -> Command:
        fields = {
            "consumerGroup": "cg",
            "topic": "T",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "50000",
            "subVersion": "0",
            "subscription": "*",
        }
        return request(RequestCode.PULL_MESSAGE, fields)

    async def main(world: World) -> tuple[Command, float]:
        connection = await dial(world, ("b1", PORT))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            offset = group.nodes["b1"].store.queue_max("T", 0)
            answer = await connection.request(pull(offset), timeout_s=100)
            connection.close()
        return answer, trio.current_time()

    with Group(11) as group:
        begin(group)
        group.promote("b2")
        group.restart("b1")
        group.simulation.run(0.5)
        process = group.program(main)
        group.simulation.run(3)
        assert not process.done
        heal(group.simulation.network)
        group.restart("b2")
        answer, moment = group.simulation.run_process(process, 20)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        (line,) = [
            line
            for line in group.simulation.log
            if line.event == "replication.cut" and line.node == "b1"
        ]
        assert moment * 1e9 - line.moment < 1e9


def test_a_slave_of_a_slave_follows_a_cut() -> None:
    """b3 is fed by b1, fixed by its configuration, while b1 is cut for b2."""
    with Group(12) as group:
        group.start("b1", "b2")
        group.start("b3", ha_master_address="b1:10912")
        group.simulation.run(2)
        group.send(20)
        group.run_until_equal("b2", "b3")
        cut(group.simulation.network, "b1", "b2")
        group.send(10, prefix="lost")
        group.run_until_equal("b3")
        group.end("b1")
        heal(group.simulation.network)
        group.promote("b2")
        group.restart("b2")
        group.start("b1")
        group.run_until_equal("b1")
        slave = group.nodes["b3"].replication.slave
        assert slave is not None
        group.simulation.run(10, until=lambda: slave.state == "refused")
        assert "it is a slave itself" in str(slave.refusal)
