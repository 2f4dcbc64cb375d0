"""A leader with scripted followers: which set it requests, and when."""

import trio

from rocketbed.replication.entry import Policy
from rocketbed.wire.command import ResponseCode
from rocketbed.wire.ha_native import Ack, Welcome
from tests.support.sim.leading_node import (
    CAUGHT_UP_S,
    GRACE_S,
    LAG_S,
    LATE_S,
    LeadingNode,
    leads,
)


@leads(Policy.MEMORY)
async def test_adds_a_replica_that_stayed_complete(node: LeadingNode) -> None:
    """Nothing waits for it; a learner is never added."""
    first, second = node.followers
    await node.join_set(first)
    node.forget_changes()
    epoch = node.controller.entry.epoch
    hello = second.hello(learner=True)
    welcome = await second.dial(node.world, node.address, epoch, hello)
    assert isinstance(welcome, Welcome)
    await second.say(Ack(0, 0, 1))
    await node.follow(CAUGHT_UP_S + LATE_S, first)
    assert not node.changes, "a learner does not join"
    await node.join(second)
    began_s = trio.current_time()
    await second.ack_all()
    await node.follow(CAUGHT_UP_S + LATE_S)
    assert node.check_members(2, 3) - began_s > CAUGHT_UP_S - 0.1


@leads()
async def test_drops_a_slow_member_unless_it_is_the_last(node: LeadingNode) -> None:
    first, second = node.followers
    await node.join_set(first, second)
    node.forget_changes()
    await node.write(2)
    await node.receives(first, second)
    began_s = trio.current_time()
    await node.follow(LAG_S + LATE_S, first)
    assert node.check_members(2) - began_s > LAG_S - 0.1
    await node.answered()
    await second.ack_all()
    node.forget_changes()
    await node.write(1)
    await trio.sleep(2 * LAG_S)
    assert not node.changes, "the last follower stays"
    await node.follow(0.1, first)
    await node.answered()
    await node.follow(CAUGHT_UP_S + LAG_S + LATE_S)
    assert node.members == {1, 2, 3}, "the second one keeps up again"


@leads(Policy.MEMORY)
async def test_waits_a_while_for_a_lost_link(node: LeadingNode) -> None:
    first, second = node.followers
    await node.join_set(first, second)
    node.forget_changes()
    second.hang_up()
    await node.follow(GRACE_S - 0.1, first)
    await node.join(second)
    await node.follow(2 * GRACE_S)
    assert not node.changes, "a link that is back in time"
    second.hang_up()
    began_s = trio.current_time()
    await node.follow(GRACE_S + LATE_S, first)
    assert node.check_members(2) - began_s > GRACE_S - 0.1
    node.forget_changes()
    first.hang_up()
    await node.until(lambda: bool(node.changes), "the leader is alone", GRACE_S + LATE_S)
    await trio.sleep(0.05)
    assert node.members == {1}
    await node.is_refused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: 1 of 2")
    await node.join(first)
    await node.follow(0.2, first)
    assert node.members == {1, 2}, "a replica that is needed joins at once"
