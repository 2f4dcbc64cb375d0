"""A client that is used from the wrong place says what to do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio

from rocketbed import Admin, ClientError, Consumer, Message, Producer
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command, answer
from tests.support.client import HOST, NAMESERVER, Stage, on_stage, port_of, route


def producer() -> Producer:
    return Producer(nameservers=NAMESERVER)


def consumer() -> Consumer:
    return Consumer(nameservers=NAMESERVER, group="g")


CALLS: list[Callable[[], Awaitable[object]]] = [
    lambda: producer().send(Message("T", b"x")),
    lambda: producer().send_oneway(Message("T", b"x")),
    lambda: consumer().subscribe("T"),
    lambda: consumer().poll(),
    lambda: consumer().queues("T"),
    lambda: consumer().commit(),
    lambda: consumer().lag(),
    lambda: consumer().unsubscribe("T"),
    lambda: Admin(nameservers=NAMESERVER).topics(),
]


async def refused(call: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(ClientError) as error:
        await call()
    return str(error.value)


@pytest.mark.parametrize("call", CALLS)
def test_unopened_client(call: Callable[[], Awaitable[object]]) -> None:
    assert "in `async with`" in trio.run(refused, call)


@pytest.mark.parametrize("call", CALLS)
def test_a_client_on_another_loop(call: Callable[[], Awaitable[object]]) -> None:
    assert "import it from rocketbed.aio" in asyncio.run(refused(call))


def test_unreadable_answer_is_a_client_error() -> None:
    """The codec's own error reached the caller, and named no broker."""

    def nonsense(command: Command) -> Command:
        return answer(command, 0, None, {"offset": "banana"}, body=b"{banana")

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await stage.broker("a", nonsense)
        at, queue = f"{HOST}:{port_of('a')}", MessageQueue(topic="T", broker_name="a", queue_id=0)
        async with Admin(stage.world, nameservers=NAMESERVER) as admin:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: admin.topic_config("T", "a"),
                lambda: admin.topic_configs(at),
                lambda: admin.runtime_info(at),
                admin.groups,
                lambda: admin.group_members("g"),
                lambda: admin.offsets.max_offset(queue),
                lambda: admin.offsets.committed("g", queue),
            ]
            for call in calls:
                assert "broker " in (text := await refused(call))
                assert "gives an answer that cannot be read" in text
            stage.nameserver.answering = nonsense
            for of_nameserver in (admin.topics, admin.cluster, admin.failover_groups):
                assert await refused(of_nameserver)

    on_stage(scenario)
