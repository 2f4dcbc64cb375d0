"""A follower with scripted leaders: which it follows, what it copies, and what it cuts off."""

from dataclasses import replace

import trio

from rocketbed.replication.entry import Policy
from rocketbed.wire.ha_native import Ack, Beat, Content, Data, Reject
from tests.model.stage import SEGMENT
from tests.support.peers.logs import record_ends
from tests.support.sim.following_node import NODE, FollowingNode, follows

BODY_AT = 88
"""Offset of a record's body, which its CRC covers."""


@follows(Policy.MEMORY)
async def test_refuses_a_welcome_that_cannot_be(node: FollowingNode) -> None:
    leader = node.leader
    for reply, changes, reason in (
        (Reject(why="no"), {}, "replica 2 refuses: no"),
        (Beat(0, 0), {}, "no WELCOME of epoch 2"),
        (None, {"leader": 3}, "it is replica 3, not 2"),
        (None, {"history": ((2, 5), (1, 9))}, "a history that no log can have"),
        (None, {"history": ((1, 0), (2, 200_000))}, "a history that no log can have"),
        (None, {"cut": 5, "compared": 5}, "an empty log is sent from 5"),
    ):
        leader.reply, leader.changes = reply, changes
        await node.next_hello(reason)
        await node.until(lambda reason=reason: reason in node.follower.refusal, reason)  # type: ignore[misc]
        assert node.store.log.written.value == 0


@follows()
async def test_copies_pieces_of_any_size(node: FollowingNode) -> None:
    """The follower is told which part of its log is confirmed."""
    ends = record_ends(node.leader.log)
    await node.follow()
    for at in (node.diverged_at - 3, node.diverged_at, node.diverged_at + 40):
        await node.copy_up_to(at)
    node.leader.confirm = ends[3]
    await node.until(lambda: node.confirm == ends[3], "it knows what is confirmed")


@follows(Policy.MEMORY)
async def test_follows_a_leader_without_a_usable_address_for_clients(node: FollowingNode) -> None:
    """Only the tables come from there."""
    await node.follow()
    entry = node.controller.entry
    changed = replace(entry.replicas[3], address="ns..svc:10911")
    node.controller.publish(replicas={**entry.replicas, 3: changed})
    node.lead(3, 3)
    await node.follow()
    await node.copy_up_to(len(node.leader.log))


@follows(Policy.MEMORY)
async def test_ends_a_link_by_an_impossible_frame(node: FollowingNode) -> None:
    leader = node.leader
    await node.follow()
    await node.copy_up_to(node.diverged_at + 40)
    end = leader.sent_end
    data = leader.log[end : end + 50]
    frames: tuple[tuple[Content, int], ...] = (
        (Data(end + 1, 0, data[1:]), 2), (Data(end - 1, 0, data), 2),
        (Data(end, 0, data), 1), (Beat(0, 0), 3),
        (Data(end, 0, bytes(SEGMENT - end % SEGMENT + 1)), 2), (Ack(0, 0, 1), 2),
    )  # fmt: skip
    for content, epoch in frames:
        await leader.say(content, epoch)
        hello = await node.next_hello(f"after {type(content).__name__} of epoch {epoch}")
        node.check_hello(hello, end=leader.whole())
        await node.copies("after an impossible frame")


@follows(Policy.MEMORY)
async def test_rejects_a_damaged_record(node: FollowingNode) -> None:
    leader, log = node.leader, node.leader.log
    await node.follow()
    await node.copy_up_to(node.diverged_at + 40)
    start = leader.whole()
    damaged = bytearray(log)
    damaged[start + BODY_AT + 2] ^= 8
    leader.log = bytes(damaged)
    leader.sent_end = next(end for end in record_ends(log) if end > start)
    await node.until(lambda: bool(leader.rejects), "it rejects the record")
    assert leader.rejects[-1].first == start
    leader.log = log
    node.check_hello(await node.next_hello("after a damaged record"), end=start)
    await node.copies("after a damaged record")


@follows(Policy.MEMORY)
async def test_rejects_another_log_of_the_same_epochs(node: FollowingNode) -> None:
    leader = node.leader
    await node.follow()
    await node.copy_up_to(node.diverged_at)
    await leader.say(Beat(0, 0), 9)
    leader.changes, leader.speaks = {"crc": 1}, False  # sent data may hide the REJECT
    await node.next_hello("another log")
    await node.until(lambda: bool(leader.rejects), "it rejects the log")
    assert node.log == leader.log[: leader.sent_end]
    leader.changes, leader.speaks = {}, True
    await node.next_hello("its log again")


@follows()
async def test_keeps_what_it_acknowledged(node: FollowingNode) -> None:
    """A kill leaves the page cache, whatever the policy."""
    is_sync = node.policy is Policy.FSYNC
    await node.follow()
    await node.copy_up_to(node.diverged_at)
    for incarnation in (2, 3):
        more = node.random.randint(500, 4000)
        node.leader.send_up_to(min(node.leader.sent_end + more, len(node.leader.log) - 700))
        await trio.sleep(node.random.random() * 0.1)
        await node.restart(incarnation, power_cut=is_sync or incarnation == 3)
    await node.copy_filler()
    await node.restart(4, power_cut=is_sync)


@follows(Policy.MEMORY)
async def test_gives_up_a_silent_leader(node: FollowingNode) -> None:
    """A member does so sooner than a replica that is not waited for."""
    leader = node.leader
    await node.follow()
    await node.copy_up_to(node.diverged_at)
    for members, least_s, most_s in (({2: 1}, 2.5, 3.15), ({2: 1, 1: 1}, 0.2, 0.45)):
        node.controller.publish(in_sync=members, eligible={})
        await trio.sleep(0.2)
        leader.speaks = False
        began_s = trio.current_time()
        await node.until(lambda: leader.stream is None, "it gives up", most_s)
        assert trio.current_time() - began_s >= least_s
        leader.speaks = True
        await node.copies("the leader speaks again")


@follows()
async def test_cuts_its_log_for_a_newer_leader(node: FollowingNode) -> None:
    """The former leader is fenced; what is confirmed is cut only by the word of an operator."""
    former = node.leader
    await node.follow()
    await node.copy_up_to(node.diverged_at + 3000)
    former.confirm = node.diverged_at
    node.lead(3, 3)
    leader = node.leader
    leader.send_up_to(node.diverged_at + 300)
    await node.until(lambda: bool(leader.hellos), "it finds the next leader", 3)
    hello = leader.hellos[0]
    node.check_hello(hello, end=hello.end, epochs=former.history)
    assert [fence.promised for fence in former.fences] == [3]
    await node.copies("of the next epoch")
    leader.sent_end = leader.confirm = len(leader.log)
    await node.copies("to its end")
    await node.until(lambda: node.confirm == len(leader.log), "all is confirmed")
    log, history = node.log, leader.history
    former.confirm, former.sent_end = 0, len(former.log)
    for epoch, unclean in ((4, ()), (5, (5,))):
        node.lead(2, epoch, unclean=unclean)
        node.check_hello(await node.next_hello(f"epoch {epoch}"), end=len(log), epochs=history)
        if not unclean:
            await node.until(lambda: "was confirmed" in node.follower.refusal, "it refuses")
            assert node.log == log, "confirmed records are cut off"
    await node.copies("by the word of an operator")


@follows(Policy.MEMORY)
async def test_follows_no_leader_of_an_older_register(node: FollowingNode) -> None:
    await node.follow()
    await node.copy_up_to(node.diverged_at)
    node.lead(3, 4)
    await node.until(lambda: bool(node.leader.hellos), "it promises epoch 4", 3)
    count = sum(len(leader.hellos) for leader in node.leaders.values())
    await node.script.outside(lambda: node.stage.simulation.kill(NODE))
    node.controller.lead_at(3, 3)
    await node.script.outside(lambda: node.stage.begin(NODE, node.settings))
    await trio.sleep(3)
    assert sum(len(leader.hellos) for leader in node.leaders.values()) == count
    assert node.follower is None
