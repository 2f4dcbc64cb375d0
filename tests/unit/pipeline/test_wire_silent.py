"""An error of a cluster names the members that did not answer: on real sockets, some unserved."""

import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import pytest
import trio

from rocketbed.client import session
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire import log as log_module
from rocketbed.pipeline.wire.chunks import chunk
from rocketbed.pipeline.wire.log import RawPull, WireError, WireLog
from rocketbed.pipeline.wire.plan import QueueRange
from rocketbed.pipeline.wire.questions import QueueBounds, together
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer
from rocketbed.wire.headers import PullMessageResponse
from rocketbed.world.real import real_world
from tests.support.logs import Message

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
Ask = Callable[[WireLog], Awaitable[object]]
Port = Callable[[bool], str]
Member = str | bytes | Handlers
"""An address; what it says to anybody; or what it answers."""
T = TypeVar("T")


@pytest.fixture
def port() -> Iterator[Port]:
    """Addresses that take connections and never answer, or that refuse them."""
    with ExitStack() as stack:

        def bind(hangs: bool) -> str:
            bound = stack.enter_context(socket.socket())
            bound.bind(("127.0.0.1", 0))
            if hangs:
                bound.listen()
            return f"127.0.0.1:{bound.getsockname()[1]}"

        yield bind


def answered(nameservers: str, ask: Ask, *, limit_s: float = 0.3) -> object:
    """Return the answer to a question. Raises `WireError`."""

    async def look() -> object:
        async with WireLog(nameservers, limit_s=limit_s, anyone=True) as log:
            return await ask(log)

    return trio.run(look)


def error_text(nameservers: str, ask: Ask, *, limit_s: float = 0.3) -> str:
    """The error of a question."""
    with pytest.raises(WireError) as caught:
        answered(nameservers, ask, limit_s=limit_s)
    return str(caught.value)


def with_members(
    members: Sequence[Member], use: Callable[[str], T], *, pause_s: float = 0.0, first_id: int = 0
) -> T:
    """Return what `use` returns of a cluster whose nameserver works, and whose members answer as
    given: they have the time to answer. The nameserver takes so long for it."""

    async def look() -> None:
        async with trio.open_nursery() as nursery:

            async def serve(handlers: str | bytes | Handlers) -> str:
                if isinstance(handlers, str):
                    return handlers
                if isinstance(handlers, bytes):
                    answer_text = handlers

                    async def say(stream: trio.SocketStream) -> None:
                        await stream.receive_some()
                        await stream.send_all(answer_text)

                    listen = partial(trio.serve_tcp, say, 0, host="127.0.0.1")
                    (listener,) = await nursery.start(listen)
                    return f"127.0.0.1:{listener.socket.getsockname()[1]}"
                server = Server(real_world("test"), ("127.0.0.1", 0), handlers)
                host, number = await nursery.start(server.run)
                return f"{host}:{number}"

            places = [await serve(one) for one in members]
            data = TopicRouteData(
                broker_datas=[
                    BrokerData(broker_name="a", broker_addrs=dict(enumerate(places, first_id)))
                ],
                queue_datas=[
                    QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
                ],
            )

            async def route(command: Command, _: Connection) -> Command:
                await trio.sleep(pause_s)
                return answer(command, ResponseCode.SUCCESS, body=data.encode())

            address = await serve(Handlers(spawned={RequestCode.GET_ROUTEINFO_BY_TOPIC: route}))
            results.append(await trio.to_thread.run_sync(lambda: use(address)))
            nursery.cancel_scope.cancel()

    results: list[T] = []
    trio.run(look)
    return results[0]


def told_of_members(
    members: Sequence[Member],
    ask: Ask,
    *,
    limit_s: float = 1.0,
    pause_s: float = 0.0,
    first_id: int = 0,
) -> str:
    """The error of a question to these members."""

    def use(address: str) -> str:
        return error_text(address, ask, limit_s=limit_s)

    return with_members(members, use, pause_s=pause_s, first_id=first_id)


def member(first: object, end: object) -> Handlers:
    """A member that gives these bounds of its queue."""

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
    ("ask", "question"),
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
def test_a_nameserver_that_hangs_is_named(ask: Ask, question: str, port: Port) -> None:
    """ "After 0.3 s still: no answer" did not name the nameserver."""
    silent = port(True)
    assert error_text(silent, ask) == (
        f"{question}: after 0.3 s still: no nameserver answered: no answer from {silent}; check the"
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
def test_earlier_problems_are_reported_once(ask: Ask, hangs: tuple[bool, bool], port: Port) -> None:
    """Of a member that hangs and one that is away only the last one asked was reported."""
    members = [port(one) for one in hangs]
    last, _, earlier = told_of_members(members, ask).partition("; before that: ")
    for member, silent in zip(members, hangs, strict=True):
        words = f"no answer from {member} to" if silent else f"cannot connect to {member}: "
        assert [words in last, words in earlier].count(True) == 1
    assert "before that" not in earlier


@pytest.mark.parametrize("limit_s", [0.6, 1.0])
def test_healthy_nameserver_is_not_blamed_at_the_deadline(limit_s: float, port: Port) -> None:
    """It had no time left to answer once more, and the advice was to check its address."""
    away = port(False)
    text = told_of_members([away], bounds, limit_s=limit_s, pause_s=0.1)
    assert f"after {limit_s:g} s still: cannot connect to {away}: " in text
    assert "nameserver" not in text


@pytest.mark.parametrize("hangs", [True, False])
def test_silent_members_beside_an_answering_one_are_reported(hangs: bool, port: Port) -> None:
    """No warning said that messages only on the master were not read."""
    silent = [port(hangs), port(False)]
    members: list[Member] = [silent[0], member(3, 10), silent[1]]
    bounds_read = with_members(members, lambda address: answered(address, bounds, limit_s=1.0))
    assert bounds_read == QueueBounds(3, 10, 10, 1, tuple(silent))


def test_master_missing_from_the_route_is_reported() -> None:
    """It was stopped, so it did not answer: a batch of its emptied slave was empty."""
    bounds_read = with_members(
        [member(3, 10)], lambda address: answered(address, bounds), first_id=1
    )
    assert bounds_read == QueueBounds(3, 10, 10, 1, ("a master",))


def test_the_shortest_member_is_known() -> None:
    bounds_read = with_members(
        [member(3, 10), member(5, 1), member(4, 10)], lambda address: answered(address, bounds)
    )
    assert isinstance(bounds_read, QueueBounds)
    assert bounds_read[:5] == (3, 1, 10, 3, ())
    assert re.fullmatch(r"127\.0\.0\.1:\d+", bounds_read.shortest)
    alike = with_members([member(3, 10)] * 2, lambda address: answered(address, bounds))
    assert alike == QueueBounds(3, 10, 10, 2)


HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
HUGE = "9" * 30


@pytest.mark.parametrize(
    ("bad", "expected_text"),
    [
        (
            member(None, 10),
            "gives an answer that cannot be read: the custom field <offset> is null",
        ),
        (member(3, "banana"), "gives an answer that cannot be read: "),
        (member(3, HUGE), "gives an answer that cannot be read: "),
        (HTTP, "sent what is no frame of RocketMQ's: not RocketMQ's remoting protocol but HTTP"),
    ],
    ids=["no field", "no number", "too large", "http"],
)
def test_member_answering_nonsense_is_named_and_others_read(
    bad: Member, expected_text: str
) -> None:
    """The read ended at once, without an address, though another member was well."""
    text = told_of_members([bad], bounds, limit_s=0.5)
    assert "after 0.5 s still: 127.0.0.1:" in text
    assert expected_text in text
    assert "closed before" not in text
    bounds_read = with_members([bad, member(3, 10)], lambda address: answered(address, bounds))
    assert isinstance(bounds_read, QueueBounds)
    assert (bounds_read[:4], len(bounds_read.silent)) == ((3, 10, 10, 1), 1)


def pulled(next_offset: object) -> Handlers:
    """A member that answers pulls so."""
    fields = PullMessageResponse(
        suggestWhichBrokerId=0, nextBeginOffset=18, minOffset=0, maxOffset=18
    ).encode() | {"nextBeginOffset": str(next_offset)}

    def pull(command: Command, _: Connection) -> Command:
        return answer(command, ResponseCode.SUCCESS, fields=fields)

    return Handlers(inline={RequestCode.PULL_MESSAGE: pull})


@pytest.mark.parametrize("bad", [pulled("banana"), HTTP], ids=["no number", "http"])
def test_pull_answered_with_nonsense_continues_elsewhere(bad: Member) -> None:
    pull_result = with_members([bad, pulled(18)], lambda address: answered(address, pull))
    assert isinstance(pull_result, RawPull)
    assert (pull_result.next_offset, pull_result.broker_id) == (18, 1)
    text = told_of_members([bad], pull, limit_s=0.5)
    assert re.search(
        r"after 0\.5 s still: 127\.0\.0\.1:\d+ (gives an answer|sent what is no f)", text
    )


@pytest.mark.parametrize("code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION])
def test_member_closed_to_readers_is_skipped(code: ResponseCode) -> None:
    def refuse(command: Command, _: Connection) -> Command:
        return answer(command, code, remark="not here")

    (give,) = pulled(18).inline.values()
    times = iter(range(9))

    def refuse_once(command: Command, connection: Connection) -> Command | None:
        if next(times):
            return give(command, connection)
        return answer(command, ResponseCode.SYSTEM_ERROR, remark="not yet")

    closed = Handlers(inline={RequestCode.PULL_MESSAGE: refuse})
    refusing = Handlers(inline={RequestCode.PULL_MESSAGE: refuse_once})
    for member in (pulled(18), refusing):
        pull_result = with_members([closed, member], partial(answered, ask=pull, limit_s=2.0))
        assert isinstance(pull_result, RawPull)
        assert (pull_result.next_offset, pull_result.broker_id) == (18, 1)
    text = told_of_members([closed, closed], pull, limit_s=0.5)
    assert "not here" in text


def test_closed_slave_is_no_refusal_while_the_master_is_down() -> None:
    """NO_PERMISSION of a slave ended a read whose master was starting again."""

    def refuse(command: Command, _: Connection) -> Command:
        return answer(command, ResponseCode.NO_PERMISSION, remark="not here")

    (give,) = pulled(18).inline.values()
    times = iter(range(99))

    def away_at_first(command: Command, connection: Connection) -> Command | None:
        return give(command, connection) if next(times) else None

    closed = Handlers(inline={RequestCode.PULL_MESSAGE: refuse})
    late = Handlers(inline={RequestCode.PULL_MESSAGE: away_at_first})
    pull_result = with_members([late, closed], partial(answered, ask=pull, limit_s=8.0))
    assert isinstance(pull_result, RawPull)
    assert (pull_result.next_offset, pull_result.broker_id) == (18, 0)
    text = told_of_members([closed], pull, limit_s=0.5, first_id=1)
    assert re.search(r"after 0\.5 s still: .*not here", text)
    assert re.search(r"^(?!.*after).*not here", told_of_members([closed], pull, limit_s=0.5))


def test_search_by_time_goes_to_an_answering_member(port: Port) -> None:
    def search(command: Command, _: Connection) -> Command:
        return answer(command, ResponseCode.SUCCESS, fields={"offset": "7"})

    well = Handlers(inline={RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search})
    members: list[Member] = [port(True), well]
    ask = partial(answered, ask=lambda log: log.offset_at(QUEUE, 1_000), limit_s=20.0)
    assert with_members(members, ask) == 7


def keeping(end: int) -> Handlers:
    """A member that has messages 0 to `end`, and gives one at a time."""

    def pull(command: Command, _: Connection) -> Command:
        at = int(str(command.raw_fields["queueOffset"]))
        is_there = at < end
        fields = PullMessageResponse(
            suggestWhichBrokerId=0, nextBeginOffset=at + is_there, minOffset=0, maxOffset=end
        ).encode()
        code = ResponseCode.SUCCESS if is_there else ResponseCode.PULL_NOT_FOUND
        body = Message(body=str(at).encode()).encode(0, at) if is_there else b""
        return answer(command, code, fields=fields, body=body)

    return Handlers(inline={RequestCode.PULL_MESSAGE: pull})


@pytest.mark.parametrize(
    ("ends", "longest", "is_read"),
    [((3, 2, 9), "true", True), ((3, 2), "true", False), ((3, 2, 9), "false", False)],
)
def test_longer_slave_is_read_where_the_longest_is_wanted(
    ends: Sequence[int], longest: str, is_read: bool
) -> None:
    def use(address: str) -> None:
        options = {"endpoints": address, "topics": "T", "readUncommitted": longest}
        options["retryTimeoutMs"] = "1000"
        ask = partial(chunk, Options.parse(options), QueueRange(QUEUE, 0, 9), 0)
        if is_read:
            pulls = answered(address, ask, limit_s=2.0)
            assert isinstance(pulls, list)
            told_of = [int.from_bytes(one.records[20:28]) for one in pulls if one.records]
            assert told_of == [*range(9)]
        else:
            assert "no messages at 3, though" in error_text(address, ask, limit_s=2.0)

    with_members([keeping(end) for end in ends], use)


def test_hanging_member_is_not_reported_as_closed(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We close it ourselves, as it answers no heartbeat either."""
    monkeypatch.setattr(session, "PROBE_S", 0.1)
    silent = port(True)
    text = told_of_members([silent], pull)
    assert f": after 1 s still: no answer from {silent} to request " in text
    assert "before that" not in text


@pytest.mark.slow
@pytest.mark.parametrize("ask", [pull, bounds])
def test_every_member_is_named(ask: Ask, port: Port) -> None:
    """Of three the error named two."""
    silent = [port(True), port(True), port(False)]
    text = told_of_members(silent, ask, limit_s=2.0)
    for address in silent:
        assert text.count(f"{address} ") + text.count(f"{address}:") + text.endswith(address) == 1


def test_slow_member_is_read_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever retryTimeoutMs was, one that took more than 5 s for an answer never was."""
    monkeypatch.setattr(log_module, "ANSWER_S", 0.1)

    request_codes: list[int] = []

    async def offset(command: Command, _: Connection) -> Command:
        request_codes.append(command.code)
        await trio.sleep(0.7)
        return answer(command, ResponseCode.SUCCESS, fields={"offset": "7"})

    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, search
    slow = Handlers(spawned=dict.fromkeys(codes, offset))
    bounds_read = with_members([slow], lambda address: answered(address, bounds, limit_s=4.0))
    assert bounds_read == QueueBounds(7, 7, 7, 1)
    ask = partial(answered, ask=lambda log: log.offset_at(QUEUE, 1), limit_s=60.0)
    assert (with_members([slow], ask), request_codes.count(search)) == (7, 1)
