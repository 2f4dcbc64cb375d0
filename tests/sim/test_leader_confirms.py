"""A leader with scripted followers: whom it serves, what it confirms, and what it answers.

A message is acknowledged as soon as all members have it, of both sets while a change of the set is
not answered, and never before.
"""

from functools import partial
from typing import Any

import trio

from rocketbed.replication.entry import Policy
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.ha_native import Ack, Beat, Content, Data, Welcome
from tests.model.stage import SEGMENT
from tests.support.peers.follower import ScriptedFollower
from tests.support.sim.leading_node import (
    CAUGHT_UP_S,
    CLUSTER,
    GROUP,
    LAG_S,
    LATE_S,
    SOON_S,
    LeadingNode,
    leads,
)


@leads(Policy.MEMORY)
async def test_refuses_followers_that_do_not_fit(node: LeadingNode) -> None:
    follower, epoch = node.followers[0], node.controller.entry.epoch
    is_refused = partial(follower.is_refused, node.world, node.address)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"cluster": "another"}, "it is of cluster 'another'"),
        ({"group": "another"}, "is not registered"),
        ({"replica": 9}, "is not registered"),
        ({"uuid": "another"}, "is not registered"),
        ({"incarnation": 2}, "life 2 of it is not the registered one"),
        ({"segment": SEGMENT + 1}, f"has files of {SEGMENT + 1} bytes"),
        ({"promised": epoch + 1}, f"has promised {epoch + 1}"),
        ({"history": ((3, 5),), "end": 5}, "cannot be in a log"),
        ({"history": ((3, 5), (2, 9)), "end": 50}, "cannot follow"),
        ({"history": ((9, 0),), "end": 50}, "reseed: its log shares no epoch"),
    )
    for changes, reason in cases:
        await is_refused(epoch, follower.hello(**changes), reason)
    await is_refused(epoch - 1, follower.hello(), f"it asks for epoch {epoch - 1}")
    await is_refused(epoch + 1, follower.hello(promised=epoch + 1), "")
    await is_refused(epoch, Beat(0, 0), "the first frame has to be a HELLO")


@leads()
async def test_confirms_nothing_without_a_second_member(node: LeadingNode) -> None:
    await node.is_refused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: 1 of 2")
    follower, _ = node.followers
    welcome = await node.join(follower)
    fields = (welcome.leader, welcome.history, welcome.cut, welcome.first, welcome.confirm)
    assert fields == (1, ((1, 0),), 0, 0, 0)
    await follower.ack(0)
    await trio.sleep(SOON_S)
    assert not node.changes, "a follower without a record of the epoch"
    await follower.ack_all()
    await node.until(lambda: bool(node.changes), "the first member is requested")
    node.check_members(2)
    await node.until(lambda: node.confirmed == node.end, "the marker is confirmed")
    node.send()
    await node.follow(0.5, follower)
    await node.answered()


@leads()
async def test_confirms_record_by_record(node: LeadingNode) -> None:
    follower, _ = node.followers
    await node.join_set(follower)
    ends = await node.write(4)
    await node.receives(follower)
    for count, end in enumerate(ends[-4:], 1):
        await follower.ack(end - 1)  # not a whole record
        if node.policy is Policy.FSYNC:
            await follower.ack(end, durable=end - 1)
        await trio.sleep(0.02)
        assert len(node.answers) == count - 1, f"answered before {end} is acknowledged"
        await follower.ack(end, durable=end + 7)
        await node.until(lambda end=end: node.confirmed == end, f"{end} is confirmed")  # type: ignore[misc]
        await node.answered(count)
    await follower.ack(ends[-3])
    await trio.sleep(0.02)
    assert node.confirmed == ends[-1], "a lower acknowledgement changes nothing"
    await node.until(lambda: follower.confirms[-1] == ends[-1], "the follower is told")


@leads(Policy.MEMORY)
async def test_ends_a_link_by_an_impossible_frame(node: LeadingNode) -> None:
    former, _ = node.followers
    await node.join_set(former)
    follower = former.twin()
    node.followers[0] = follower
    await node.join(follower)
    await node.until(lambda: not former.is_linked, "the older connection ends")
    await follower.ack_all()
    end, epoch = node.end, node.controller.entry.epoch
    frames: tuple[tuple[Content, int], ...] = (
        (Ack(end + 1, 0, 1), epoch), (Ack(end, 0, 2), epoch), (Data(0, 0, b"x"), epoch),
        (Beat(0, 0), epoch + 1),
    )  # fmt: skip
    for content, number in frames:
        await follower.say(content, epoch=number)
        await node.until(lambda: not follower.is_linked, f"{content} ends the link")
        await node.join(follower)
        await follower.ack_all()
    assert node.members == {1, 2}


@leads()
async def test_needs_every_member_of_the_set(node: LeadingNode) -> None:
    """A message can be read by its id only once it is confirmed."""
    first, second = node.followers
    await node.join_set(first, second)
    ends = await node.write(2)
    for start in (node.confirmed, ends[-2]):
        await _view(node, start, ResponseCode.SYSTEM_ERROR)
    await node.receives(first, second)
    await first.ack(ends[-1])
    await trio.sleep(0.05)
    assert node.confirmed < ends[-2], "confirmed without the second member"
    await second.ack(ends[-2])
    await node.until(lambda: node.confirmed == ends[-2], "both have it")
    await trio.sleep(0.05)
    await _view(node, ends[-3], ResponseCode.SUCCESS)
    await _view(node, ends[-2], ResponseCode.SYSTEM_ERROR)
    await second.ack(ends[-1])
    await node.answered()


async def _view(node: LeadingNode, offset: int, code: int) -> None:
    await node.peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}, code)


@leads(Policy.MEMORY)
async def test_needs_both_sets_while_a_change_is_unanswered(node: LeadingNode) -> None:
    first, second = node.followers
    await node.join_set(first)
    await node.join(second)
    node.controller.answers_changes = False
    node.forget_changes()
    await node.follow(CAUGHT_UP_S + LATE_S)
    node.check_members(2, 3)
    ends = await node.write(1)
    await node.receives(first, second)
    await first.ack(ends[-1])
    await trio.sleep(0.1)
    assert node.confirmed < ends[-1], "confirmed by the old set alone"
    await second.ack(ends[-1])
    await node.answered()
    node.controller.answers_changes = True
    node.controller.publish()
    await node.follow(0.2)
    ids = {change.header.op for change in node.changes}
    assert len(ids) == 1, f"one request is repeated with its id: {ids}"
    assert "" not in ids


@leads(Policy.MEMORY)
async def test_sends_the_log_from_where_it_begins_now(node: LeadingNode) -> None:
    """A follower that ends below the first file left has to begin with an empty log."""
    store, early = node.node.store, node.ends()[0]
    await node.join_set(*node.followers)
    while node.end < 3 * SEGMENT:
        for _ in range(8):
            node.send()
        await node.follow(0.1)
    store.delete_expired()
    for _ in range(100):
        await node.follow(0.2)
        if store.min_offset:
            break
    low, epoch = store.min_offset, node.controller.entry.epoch
    assert low >= SEGMENT > early, f"the log begins at {low}"
    await node.answered()
    follower = ScriptedFollower(3, GROUP, CLUSTER, SEGMENT)
    hello = follower.hello(promised=epoch, end=early, history=((1, 0),))
    reason = f"reseed: our log is the same up to {early}, and begins at {low} now"
    await follower.is_refused(node.world, node.address, epoch, hello, reason)
    welcome = await follower.dial(node.world, node.address, epoch, follower.hello(promised=epoch))
    assert isinstance(welcome, Welcome)
    fields = (welcome.history, welcome.first, welcome.cut, welcome.crc)
    assert fields == (((1, 0),), low, low, 0)
    await node.until(lambda: not node.followers[1].is_linked, "the older connection ends")
    await node.join(node.followers[1])
    await node.follow(CAUGHT_UP_S + LAG_S + LATE_S)
    assert node.members == {1, 2, 3}
