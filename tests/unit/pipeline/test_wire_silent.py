"""An error of a cluster says who did not answer: on real sockets, some of which nobody serves."""

import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

import pytest
import trio

from rocketbed.pipeline.wire.log import WireError, WireLog
from rocketbed.pipeline.wire.questions import QueueBounds, together
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer
from rocketbed.world.real import real_world

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
Ask = Callable[[WireLog], Awaitable[object]]
Port = Callable[[bool], str]
T = TypeVar("T")


@pytest.fixture
def port() -> Iterator[Port]:
    """Addresses that take connections and never answer, or that refuse them."""
    with ExitStack() as stack:

        def bind(hangs: bool) -> str:
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            if hangs:
                taken.listen()
            return f"127.0.0.1:{taken.getsockname()[1]}"

        yield bind


def answered(nameservers: str, ask: Ask, *, limit_s: float = 0.3) -> object:
    """What a question gives. Raises `WireError`."""

    async def look() -> object:
        async with WireLog(nameservers, limit_s=limit_s, anyone=True) as log:
            return await ask(log)

    return trio.run(look)


def told(nameservers: str, ask: Ask, *, limit_s: float = 0.3) -> str:
    """The error of a question."""
    with pytest.raises(WireError) as caught:
        answered(nameservers, ask, limit_s=limit_s)
    return str(caught.value)


def with_members(
    members: Sequence[str | Handlers], use: Callable[[str], T], *, pause_s: float = 0.0
) -> T:
    """What `use` returns of a cluster whose nameserver is well, and those members that are given by
    what they answer: they have the time to answer. The nameserver takes so long for it."""

    async def look() -> None:
        async with trio.open_nursery() as nursery:

            async def serve(handlers: Handlers) -> str:
                server = Server(real_world("test"), ("127.0.0.1", 0), handlers)
                host, number = await nursery.start(server.run)
                return f"{host}:{number}"

            places = [one if isinstance(one, str) else await serve(one) for one in members]
            data = TopicRouteData(
                broker_datas=[BrokerData(broker_name="a", broker_addrs=dict(enumerate(places)))],
                queue_datas=[
                    QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
                ],
            )

            async def route(command: Command, _: Connection) -> Command:
                await trio.sleep(pause_s)
                return answer(command, ResponseCode.SUCCESS, body=data.encode())

            address = await serve(Handlers(spawned={RequestCode.GET_ROUTEINFO_BY_TOPIC: route}))
            found.append(await trio.to_thread.run_sync(lambda: use(address)))
            nursery.cancel_scope.cancel()

    found: list[T] = []
    trio.run(look)
    return found[0]


def told_of_members(
    members: Sequence[str | Handlers], ask: Ask, *, limit_s: float = 1.0, pause_s: float = 0.0
) -> str:
    """The error of a question to these members."""

    def use(address: str) -> str:
        return told(address, ask, limit_s=limit_s)

    return with_members(members, use, pause_s=pause_s)


def member(first: object, end: object) -> Handlers:
    """One that says so where its queue begins and ends."""

    def of(offset: object) -> Callable[[Command, Connection], Command]:
        fields = {} if offset is None else {"offset": str(offset)}
        return lambda command, _: answer(command, ResponseCode.SUCCESS, fields=fields)

    return Handlers(
        inline={RequestCode.GET_MIN_OFFSET: of(first), RequestCode.GET_MAX_OFFSET: of(end)}
    )


def pull(log: WireLog) -> Awaitable[object]:
    return log.pull(QUEUE, 17)


def bounds(log: WireLog) -> Awaitable[object]:
    return log.bounds(QUEUE)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda log: log.topics(), "list of topics"),
        (lambda log: log.brokers((), ()), "list of brokers"),
        (lambda log: log.queues("T"), "route of topic T"),
        (pull, "pull of queue 0 of topic T at a at 17"),
        # The second one waits for the first one's answer.
        (lambda log: together(log.queues, ["T", "T"]), "route of topic T"),
    ],
    ids=["topics", "brokers", "queues", "pull", "two"],
)
def test_a_nameserver_that_hangs_is_named(ask: Ask, what: str, port: Port) -> None:
    """ "After 0.3 s still: no answer": from whom, nobody said."""
    silent = port(True)
    assert told(silent, ask) == (
        f"{what}: after 0.3 s still: no nameserver answered: no answer from {silent}; check the"
        " addresses of endpoints, and the way there from here"
    )


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (pull, RequestCode.PULL_MESSAGE),
        (bounds, RequestCode.GET_MIN_OFFSET),
        (lambda log: log.offset_at(QUEUE, 1), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
    ],
    ids=["pull", "bounds", "offset_at"],
)
def test_a_member_that_hangs_is_named(ask: Ask, code: int, port: Port) -> None:
    silent = port(True)
    text = told_of_members([silent], ask)
    assert "queue 0 of topic T at a" in text
    assert f": after 1 s still: no answer from {silent} to request {code}" in text
    assert "before that" not in text


@pytest.mark.parametrize("ask", [pull, bounds])
@pytest.mark.parametrize("hangs", [(True, False), (True, True)])
def test_what_was_in_the_way_before_is_told_once(
    ask: Ask, hangs: tuple[bool, bool], port: Port
) -> None:
    """Of a member that hangs and one that is away only the last one asked was told."""
    members = [port(one) for one in hangs]
    last, _, earlier = told_of_members(members, ask).partition("; before that: ")
    for member, silent in zip(members, hangs, strict=True):
        words = f"no answer from {member} to" if silent else f"cannot connect to {member}: "
        assert [words in last, words in earlier].count(True) == 1
    assert "before that" not in earlier


@pytest.mark.parametrize("limit_s", [0.6, 1.0])
def test_a_nameserver_that_is_well_is_not_blamed_for_the_last_moment(
    limit_s: float, port: Port
) -> None:
    """It had no time left to answer once more, and the advice was to check its address."""
    away = port(False)
    text = told_of_members([away], bounds, limit_s=limit_s, pause_s=0.1)
    assert f"after {limit_s:g} s still: cannot connect to {away}: " in text
    assert "nameserver" not in text


@pytest.mark.parametrize("hangs", [True, False])
def test_members_beside_one_that_answers_are_told(hangs: bool, port: Port) -> None:
    """Nobody knew that what only the master had was not read."""
    silent = [port(hangs), port(False)]
    members: list[str | Handlers] = [silent[0], member(3, 10), silent[1]]
    found = with_members(members, lambda address: answered(address, bounds, limit_s=1.0))
    assert found == QueueBounds(3, 10, 10, 1, tuple(silent))
