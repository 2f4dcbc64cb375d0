"""Queue locks of ordered consumers (wire.md 6.6)."""

import pytest
import trio

from rocketbed.node.broker.clients import SCAN_S
from rocketbed.node.broker.locks import LASTS_S
from rocketbed.wire.bodies import LockedQueues, LockQueues, MessageQueue
from rocketbed.wire.command import RequestCode
from rocketbed.wire.headers_admin import CreateTopicRequest
from tests.support.broker import Session, with_node


def queue(number: int, broker: str = "broker-a", topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=number)


async def make(session: Session, queues: int) -> None:
    header = CreateTopicRequest(
        topic="T", defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues, perm=6,
        topicFilterType="SINGLE_TAG",
    )  # fmt: skip
    assert (await session.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())).code == 0


async def lock(session: Session, client: str, *queues: MessageQueue, group: str = "g") -> list[int]:
    """Ids of the queues that were granted."""
    body = LockQueues(client_id=client, consumer_group=group, mq_set=list(queues)).encode()
    answer = await session.ask(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert answer.code == 0
    return [one.queue_id for one in LockedQueues.decode(answer.body).lock_ok_mq_set]


async def unlock(session: Session, client: str, *queues: MessageQueue) -> None:
    body = LockQueues(client_id=client, consumer_group="g", mq_set=list(queues)).encode()
    assert (await session.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body)).code == 0


def test_queue_is_held_by_one_client_of_a_group() -> None:
    async def scenario(session: Session) -> None:
        await make(session, 4)
        assert await lock(session, "a", queue(0), queue(1)) == [0, 1]
        assert await lock(session, "b", queue(1), queue(2)) == [2]
        assert await lock(session, "b", queue(0), group="other") == [0]
        await unlock(session, "b", queue(1))  # not its own
        assert await lock(session, "b", queue(1)) == []
        await unlock(session, "a", queue(1))
        assert await lock(session, "b", queue(1)) == [1]

    with_node(scenario)


def test_lock_expires_a_minute_after_its_last_request() -> None:
    async def scenario(session: Session) -> None:
        await make(session, 1)
        locks = session.node.broker.locks
        assert await lock(session, "a", queue(0)) == [0]
        for _ in range(3):
            await trio.sleep(LASTS_S - 1)
            assert await lock(session, "b", queue(0)) == []
            assert await lock(session, "a", queue(0)) == [0]
        await trio.sleep(LASTS_S + 0.1)
        assert await lock(session, "b", queue(0)) == [0]
        await trio.sleep(LASTS_S + SCAN_S + 1)
        assert locks._groups == {}

    with_node(scenario)


@pytest.mark.parametrize(
    "stray", [queue(0, broker="other"), queue(0, topic="U"), queue(4), queue(-1)]
)
def test_foreign_queue_is_not_granted(stray: MessageQueue) -> None:
    async def scenario(session: Session) -> None:
        await make(session, 4)
        assert await lock(session, "a", stray, queue(3)) == [3]
        await unlock(session, "a", stray, queue(3))
        assert session.node.broker.locks._groups == {}

    with_node(scenario)


def test_invalid_body_is_refused() -> None:
    async def scenario(session: Session) -> None:
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            assert (await session.ask(code, {}, b'{"mqSet":[{"queueId":"x"}]}')).code == 1
            assert (await session.ask(code, {}, b"\x00")).code == 1

    with_node(scenario)
