"""A client that is used from the wrong place says what to do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio

from rocketbed import Admin, ClientError, Consumer, Message, Producer
from tests.support.client import NAMESERVER


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
def test_a_client_that_is_not_open(call: Callable[[], Awaitable[object]]) -> None:
    assert "in `async with`" in trio.run(refused, call)


@pytest.mark.parametrize("call", CALLS)
def test_a_client_on_another_loop(call: Callable[[], Awaitable[object]]) -> None:
    assert "import it from rocketbed.aio" in asyncio.run(refused(call))
