"""Queue locks of ordered consumers (wire.md 6.6)."""

from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rocketbed.node.broker.clients import SCAN_S
from rocketbed.node.broker.locks import LASTS_S, QueueLocks
from rocketbed.wire.bodies import LockedQueues, LockQueues, MessageQueue
from rocketbed.wire.command import RequestCode, request
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


@pytest.mark.parametrize("seed", range(4))
async def test_locks_over_a_drawn_history(seed: int, autojump_clock: MockClock) -> None:
    """A lock lasts a minute; a change is reported once, a renewal after a minute."""
    random, connection = Random(seed), SimpleNamespace()
    topics: Any = SimpleNamespace(
        get=lambda topic: SimpleNamespace(queue_nums=2) if topic == "A" else None
    )
    locks: Any = QueueLocks("b", topics)
    held: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
    reported_s: dict[tuple[str, MessageQueue], float] = {}
    changed = dict[tuple[str, MessageQueue], None]()
    for _ in range(120):
        now, draw = trio.current_time(), random.random()
        group, client = random.choice("gh"), random.choice("xyz")
        queues = [
            queue(number, broker, topic)
            for topic in "AN"
            for broker in "bc"
            for number in random.sample(range(-1, 4), 2)
        ]
        body = LockQueues(consumer_group=group, client_id=client, mq_set=queues).encode()
        if draw < 0.4:
            reply = locks.lock(request(RequestCode.LOCK_BATCH_MQ, {}, body), connection)
            expected = set[MessageQueue]()
            for at in queues:
                key, is_known = (group, at), at.topic == "A" and at.broker_name == "b"
                holder, until = held.get(key, ("", -inf))
                if not is_known or at.queue_id not in (0, 1) or (holder != client and now < until):
                    continue
                expected.add(at)
                if holder != client or now >= reported_s[key] + LASTS_S:
                    reported_s[key] = now
                    changed[key] = None
                held[key] = client, now + LASTS_S
            assert set(LockedQueues.decode(reply.body).lock_ok_mq_set) == expected
        elif draw < 0.55:
            locks.unlock(request(RequestCode.UNLOCK_BATCH_MQ, {}, body), connection)
            for at in queues:
                if held.get((group, at), ("",))[0] == client:
                    del held[group, at]
                    changed[group, at] = None
        elif draw < 0.65:
            locks.forget_expired()
            for key in [key for key, (_, until) in held.items() if until <= now]:
                del held[key]
                changed[key] = None
        elif draw < 0.75:
            locks.renew()
            held = {key: (holder, now + LASTS_S) for key, (holder, _) in held.items()}
        elif draw < 0.85:
            number, holder = random.randrange(2), random.choice(("", "x", "w"))
            locks.apply({f"A@{group}": {number: holder}})
            key = group, queue(number, "b", "A")
            held.pop(key, None)
            if holder:
                held[key], reported_s[key] = (holder, now + LASTS_S), -inf
        else:
            await trio.sleep(random.choice((1, 20, 30, LASTS_S)))
        if random.random() < 0.5:
            rows = {
                (key.partition("@")[2], number): holder
                for key, row in locks.take_changes().items()
                for number, holder in row.items()
            }
            assert rows == {
                (at, one.queue_id): held.get((at, one), ("",))[0] for at, one in changed
            }
            changed.clear()
        assert set(locks._groups) == {group for group, _ in held}
