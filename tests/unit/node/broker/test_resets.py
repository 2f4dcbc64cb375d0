"""Sending a group elsewhere in a topic (wire.md 6.7)."""

from typing import Any

import pytest
import trio

from rocketbed.node.broker.offsets import TOLD_S
from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.headers_admin import ResetOffsetRequest
from tests.support.broker import Session, with_node

COUNT = 5


async def prepare(session: Session) -> list[int]:
    """A group that has read all of queue 0; store times before each message."""
    times = []
    for _ in range(COUNT):
        times.append(session.world.clock.wall_ms())
        assert (await session.send()).code == 0
        await trio.sleep(1)
    await session.node.store.dispatched.wait_for(session.node.store.max_offset)
    await session.heartbeat(topics={"T": "*"})
    await session.commit("g", "T", COUNT)
    return times


async def reset(session: Session, time_ms: int = 0, **changes: Any) -> Command:
    values: dict[str, Any] = {"topic": "T", "group": "g", "timestamp": time_ms, "isForce": True}
    header = ResetOffsetRequest(**{**values, **changes})
    return await session.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.encode())


def table(answer: Command) -> dict[int, int]:
    assert answer.code == 0, answer.remark
    offsets = QueueOffsets.decode(answer.body).offset_table
    return {queue.queue_id: offset for queue, offset in offsets.items()}


def test_next_pull_is_told_its_reset_offset() -> None:
    async def scenario(session: Session) -> None:
        times = await prepare(session)
        assert table(await reset(session, times[2])) == {0: 2, 1: 0, 2: 0, 3: 0}
        offsets = session.node.tables.offsets
        assert offsets.get("g", "T", 0) == 2
        await session.commit("g", "T", COUNT)  # it has not heard of it yet
        assert offsets.get("g", "T", 0) == 2
        moved = await session.pull(offset=COUNT, consumerGroup="g")
        assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert moved.fields["nextBeginOffset"] == "2"
        assert (await session.pull(offset=2, consumerGroup="g")).code == 0
        await session.commit("g", "T", 3)
        assert offsets.get("g", "T", 0) == 3

    with_node(scenario)


def test_held_pull_is_answered_at_once() -> None:
    async def scenario(session: Session) -> float:
        await prepare(session)
        answers: list[Command] = []

        async def hold() -> None:
            answers.append(
                await session.pull(
                    offset=COUNT, consumerGroup="g", sysFlag=6, suspendTimeoutMillis=30_000
                )
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await trio.sleep(1)
            assert answers == []
            began = trio.current_time()
            await reset(session, 0)
        assert answers[0].code == ResponseCode.PULL_OFFSET_MOVED
        return trio.current_time() - began

    assert with_node(scenario) < 1


def test_reset_is_repeated_until_a_member_moves() -> None:
    """A pull that its client has given up may be held still, and answered first."""

    async def scenario(session: Session) -> None:
        await prepare(session)
        await reset(session, 0)
        for _ in range(3):
            moved = await session.pull(offset=COUNT, consumerGroup="g")
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED
            await session.commit("g", "T", COUNT)
            assert session.node.tables.offsets.get("g", "T", 0) == 0
        assert (await session.pull(offset=0, consumerGroup="g")).code == 0
        assert (await session.pull(offset=COUNT, consumerGroup="g")).code == 19

    with_node(scenario)


def test_member_ignoring_a_reset_is_told_for_a_while() -> None:
    async def scenario(session: Session) -> None:
        await prepare(session)
        await reset(session, 0)
        assert (await session.pull(offset=2, consumerGroup="g")).code == 21
        await trio.sleep(TOLD_S + 1)
        assert (await session.pull(offset=2, consumerGroup="g")).code == 0

    with_node(scenario)


def test_reset_of_one_queue_to_an_existing_offset() -> None:
    async def scenario(session: Session) -> None:
        await prepare(session)
        assert table(await reset(session, queueId=0, offset=3)) == {0: 3}
        assert table(await reset(session, -1)) == {0: COUNT, 1: 0, 2: 0, 3: 0}
        for beyond in ({"queueId": 0, "offset": COUNT + 1}, {"queueId": 4, "offset": 0}):
            assert (await reset(session, **beyond)).code != 0
        assert session.node.tables.offsets.get("g", "T", 0) == COUNT

    with_node(scenario)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST, "Topic none does not exist"),
        ({"group": "x"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group x does not exist"),
    ],
)
def test_missing_topics_groups_and_queues(changes: dict[str, Any], code: int, remark: str) -> None:
    async def scenario(session: Session) -> None:
        await prepare(session)
        answer = await reset(session, **changes)
        assert (answer.code, answer.remark) == (code, remark)

    with_node(scenario)
