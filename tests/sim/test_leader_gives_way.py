"""A leader with scripted followers: when it takes no messages, and when it gives the lead away."""

import re

import trio

from rocketbed.replication.entry import Policy
from rocketbed.wire.bodies import KvTable
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.ha_native import Fenced, Reject
from tests.model.stage import SEGMENT
from tests.support.sim.leading_node import (
    CAUGHT_UP_S,
    LEASE_S,
    NODE,
    LeadingNode,
    leads,
)

NOT_AVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE
INVALID = ResponseCode.CONTROLLER_INVALID_REQUEST
RETRY_S = 31.0
"""A leader that did not find a better one tries again after less than this."""


@leads(Policy.MEMORY)
async def test_without_a_lease_serves_while_all_members_follow(node: LeadingNode) -> None:
    """Those would follow no other leader."""
    first, second = node.followers
    await node.join_set(first, second)
    second.hang_up()
    await node.follow(CAUGHT_UP_S, first)
    status = await node.peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}, 0)
    text = KvTable.decode(status.body).table["rbGroup"]
    match = re.fullmatch(r"epoch 1: leads, lease (0\.\d) s, 2 of 3 in sync: 1, 2", text)
    assert match is not None, text
    assert 0 < float(match[1]) <= LEASE_S
    await node.join_set(second)
    node.controller.answers_beats = False
    await node.follow(2 * LEASE_S)
    node.send()
    await node.follow(0.1)
    await node.answered()
    second.hang_up()
    await node.follow(0.05, first)
    await node.is_refused(NOT_AVAILABLE, '"leader"')
    node.controller.answers_beats = True
    await node.join(second)
    await node.follow(4.0)
    node.send()
    await node.follow(0.1)
    await node.answered()


@leads(Policy.MEMORY)
async def test_hands_over_to_a_complete_and_fit_member(node: LeadingNode) -> None:
    first, second = node.followers
    await node.join_set(first, second)
    node.forget_changes()
    epoch = node.controller.entry.epoch
    for fields in ({"group": "another"}, {"epoch": epoch + 1}, {"to": 9}):
        await node.hand_over(INVALID, **fields)
    second.is_unfit = True
    await node.follow(0.2)
    await node.hand_over(INVALID, to=3)
    assert not node.changes
    node.nursery.start_soon(node.request_send)
    await trio.sleep(0.05)
    await node.receives(first)
    is_done = trio.Event()

    async def hand_over() -> None:
        await node.hand_over(to=-1)
        is_done.set()

    node.nursery.start_soon(hand_over)
    await trio.sleep(0.1)
    assert not is_done.is_set(), "a message is not acknowledged yet"
    await node.is_refused(NOT_AVAILABLE, '"leader"')
    await node.follow(0.2)
    (change,) = node.changes
    actual = (change.code, change.header.to, change.header.epoch, change.header.leader)
    assert actual == (RequestCode.RB_HAND_OVER, 2, epoch, 1)
    await node.until(lambda: node.leader is None, "it leads no more")


@leads(Policy.MEMORY)
async def test_a_fenced_leader_requests_a_new_epoch(node: LeadingNode) -> None:
    """It takes nothing from the moment at which a follower tells of a higher epoch."""
    first, second = node.followers
    await node.join_set(first, second)
    await node.lead()
    epoch = node.controller.entry.epoch
    for follower in (first, second):
        size = len(follower.log)
        welcome = await node.join(follower)
        assert welcome.cut == min(size, welcome.history[-1][1])
    await node.follow(0.2)
    await first.say(Fenced(epoch))
    await node.follow(0.1)
    node.send()
    await node.follow(0.1)
    await node.answered()
    node.forget_changes()
    end, responses = node.end, list[Command]()

    async def send() -> None:
        responses.append(await node.request_send())

    node.nursery.start_soon(send)
    await node.until(lambda: node.end > end, "a send without an acknowledgement")
    await first.say(Fenced(epoch + 1))
    await node.until(lambda: bool(node.changes), "it requests another epoch", 1)
    await node.until(lambda: bool(responses), "the send is answered")
    assert responses[0].code != ResponseCode.SUCCESS
    (change,) = node.changes
    actual = (change.code, change.header.to, change.header.epoch)
    assert actual == (RequestCode.RB_HAND_OVER, 1, epoch)


@leads(Policy.MEMORY)
async def test_leaves_when_its_log_keeps_followers_away(node: LeadingNode) -> None:
    """Not before a follower has doubted its log, nor once that is repaired."""
    first, second = node.followers
    await node.join_set(first, second)
    doubt = Reject(why="no good", first=first.acknowledged)
    checked, scrubber = list[int](), node.node.store.scrubber
    check = scrubber.check_at

    async def check_at(offset: int) -> None:
        checked.append(offset)
        await check(offset)

    scrubber.check_at = check_at
    for _ in range(2):
        await first.say(doubt)
    await trio.sleep(0.02)
    lines = node.stage.told(NODE, "leader.doubted")
    assert [line["offset"] for line in lines] == [doubt.first]
    await node.until(lambda: checked == [doubt.first], "it checks the record", 1.5)
    await node.write(1)
    await node.follow(0.1)  # the doubted record is there now
    node.forget_changes()
    first.hang_up()
    second.hang_up()
    await trio.sleep(2.0)
    assert {change.code for change in node.changes} == {RequestCode.RB_ALTER_IN_SYNC}
    assert node.members == {1}
    await node.join(second)
    await second.say(Reject(why="no good", first=second.acknowledged))
    await trio.sleep(0.02)
    second.hang_up()
    await node.until(lambda: bool(node.departures), "it leaves", 0.8)
    (departure,) = node.departures
    assert (departure.header.replica, departure.header.incarnation) == (1, node.incarnation)


@leads(Policy.MEMORY)
async def test_a_full_disk_hands_over_to_a_better_member(node: LeadingNode) -> None:
    """Not while no member is better, and not while this node is well."""
    first, second = node.followers
    await node.join_set(first, second)
    await trio.sleep(RETRY_S)
    assert node.members == {1, 2, 3}
    first.is_unfit = second.is_unfit = True
    await node.follow(0.3)
    node.forget_changes()
    disk = node.stage.simulation.process(NODE).disk
    disk.quota = disk.allocated() + SEGMENT - 1
    await node.follow(2.0)
    assert not node.changes, "no member is better"
    second.is_unfit = False
    await node.follow(1.5)
    requests = [(change.code, change.header.to) for change in node.changes]
    assert requests == [(RequestCode.RB_HAND_OVER, 3)]
    disk.quota = None
