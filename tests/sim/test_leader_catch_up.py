"""A leader with a follower that is far behind: it is sent files at a rate, and delays no send."""

from functools import partial
from typing import Final

import pytest
import trio

from rocketbed.node.store.store import MessageStore
from rocketbed.replication.entry import Policy
from tests.model.stage import Stage
from tests.model.store import HOST
from tests.support.peers.follower import ScriptedFollower
from tests.support.sim.leading_node import NODE, LeadingNode

FAR: Final = 8 << 20
"""A follower that is further behind, and no member, is sent files (replication.md 7.4)."""
LENGTH: Final = FAR + (3 << 20)
SEGMENT: Final = 3 << 20
BODY: Final = bytes(300_000)
PIECE: Final = 1 << 20
"""Bytes in flight beyond the rate."""
RATE: Final = 1 << 20


async def acknowledge(follower: ScriptedFollower, delay_s: float = 0.005) -> None:
    """Acknowledge what a follower has, after a delay, for ever."""
    while True:
        size = len(follower.log)
        await trio.sleep(delay_s)
        if follower.is_linked and size > follower.acknowledged:
            await follower.ack(size)


async def grow(node: LeadingNode) -> None:
    """Write a long log while the first follower keeps up."""
    first, _ = node.followers
    await node.join(first)
    node.nursery.start_soon(acknowledge, first)
    await node.until(lambda: node.members == {1, 2}, "the first member", 2)
    process = node.stage.simulation.process(NODE)
    while node.end < LENGTH:
        await node.script.outside(lambda: process.call(put_two, node.node.store))
        await trio.sleep(0.01)
    await node.until(lambda: node.confirmed == node.end, "all is confirmed", 5)


def put_two(store: MessageStore) -> None:
    run = store.begin()
    for _ in range(2):
        run.add("T", 0, BODY, b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST)
    store.commit(run)


async def catch_up(node: LeadingNode, rate: int) -> None:
    second = node.followers[1]
    await grow(node)
    began_s, length = trio.current_time(), node.end
    epoch = node.controller.entry.epoch
    await second.join(node.nursery, node.world, node.address, epoch)
    node.nursery.start_soon(acknowledge, second)
    while node.end - len(second.log) > FAR:
        await trio.sleep(0.05)
        took_s = trio.current_time() - began_s
        allowed = rate * took_s + 2 * PIECE if rate else length
        is_far = node.end - len(second.log) > FAR
        assert not is_far or len(second.log) <= allowed, f"rate: {len(second.log)} bytes"
        assert took_s < 20, f"rate: {len(second.log)} bytes in {took_s} s"
        if node.sends < 4:
            node.send()
            await node.until(lambda: len(node.answers) == node.sends, "a send", 0.15)
    took_s = trio.current_time() - began_s
    expected_s = (length - FAR) / rate if rate else 0.0
    assert expected_s - 1 <= took_s <= expected_s + 2, f"rate: {took_s} s, not {expected_s}"
    await node.receives(second)
    await node.until(lambda: node.members == {1, 2, 3}, "a member", 2)


@pytest.mark.parametrize("rate", [0, RATE])
def test_sends_files_at_the_configured_rate(rate: int) -> None:
    with Stage(f"rate {rate}") as stage:
        node = LeadingNode(
            stage, Policy.MEMORY, SEGMENT, maxMessageSize=2 * len(BODY),
            mappedFileSizeConsumeQueue=20_000, rbCatchUpRate=rate,
        )  # fmt: skip
        node.play(partial(catch_up, rate=rate))
