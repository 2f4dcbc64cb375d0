"""Connections and servers: runs, answers out of order, limits, ends (design.md 4, 5)."""

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.remoting.client import dial, open_connection, parse_address
from rocketbed.remoting.connection import OUTBOX_MAX, SPAWNED_MAX, WAITING_MAX, Connection
from rocketbed.remoting.errors import ConnectionLost, NotConnected, RequestTimeout
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import IDLE_S, STUCK_S, SWEEP_S, Server
from rocketbed.wire.command import Command, answer, request
from rocketbed.wire.encoding.fields import HeaderError
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.world.api import Stream, World

ADDRESS = ("127.0.0.1", 9000)
ECHO, FAIL, REFUSE, SLEEP, RUN, NEVER, CALL_BACK, BIG, BIG_LATER = 1, 2, 3, 4, 5, 6, 7, 8, 9


class Events(list[str]):
    """Events of handlers, in order."""

    connections: list[Connection]


def handlers_for(events: Events) -> Handlers:
    def echo(command: Command, connection: Connection) -> Command:
        events.append(f"echo {command.body.decode()}")
        return answer(command, 0, None, command.fields, command.body)

    def fail(command: Command, connection: Connection) -> Command:
        raise ZeroDivisionError("oh")

    def refuse(command: Command, connection: Connection) -> Command:
        raise HeaderError("the custom field <x> is null")

    def gather(command: Command, connection: Connection) -> Command | None:
        events.append(f"run {command.body.decode()}")
        return None

    def end(connection: Connection) -> None:
        events.append("end")

    def never(command: Command, connection: Connection) -> Command | None:
        connection.open_wait()
        events.connections = [connection]
        return None

    async def sleep(command: Command, connection: Connection) -> Command:
        await trio.sleep(float(command.fields["s"]))
        return answer(command, 0, None, {}, command.body)

    async def call_back(command: Command, connection: Connection) -> Command:
        back = await connection.request(request(ECHO, {}, b"from server"))
        return answer(command, 0, None, {}, back.body)

    def big(command: Command, connection: Connection) -> Command:
        return answer(command, 0, None, {}, bytes(OUTBOX_MAX // 4))

    async def big_later(command: Command, connection: Connection) -> Command:
        await trio.sleep(1)
        return big(command, connection)

    return Handlers(
        inline={ECHO: echo, FAIL: fail, REFUSE: refuse, NEVER: never, BIG: big},
        run={RUN: gather},
        end_of_run=end,
        spawned={SLEEP: sleep, CALL_BACK: call_back, BIG_LATER: big_later},
    )


Scenario = Callable[[World, Server, Events], Awaitable[Any]]


def with_server(scenario: Scenario) -> Any:
    async def main(world: World) -> Any:
        events = Events()
        async with trio.open_nursery() as nursery:
            server = Server(world, ADDRESS, handlers_for(events))
            await nursery.start(server.run)
            value = await scenario(world, server, events)
            nursery.cancel_scope.cancel()
        return value

    run = run_solo(main)
    assert run.outcome == "ended"
    return run.value


async def raw(world: World, *commands: Command) -> Stream:
    """A stream on which commands were sent in one piece."""
    stream = await world.network.connect(*ADDRESS)
    await stream.send_all(b"".join(encode(command) for command in commands))
    return stream


async def read_commands(stream: Stream, count: int) -> list[Command]:
    reader, commands = FrameReader(), list[Command]()
    while len(commands) < count:
        data = await stream.receive_some(65_536)
        assert data, "the server closed the connection"
        commands += reader.feed(bytes(data))
    return commands


def numbered(code: int, opaque: int, body: bytes = b"", **fields: str) -> Command:
    command = request(code, fields, body)
    command.opaque = opaque
    return command


def test_requests_are_answered_and_matched() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        async with open_connection(world, ADDRESS) as connection:
            order: list[str] = []

            async def ask(code: int, name: str, **fields: str) -> None:
                got = await connection.request(request(code, fields, name.encode()))
                assert got.body == name.encode()
                order.append(name)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: ask(SLEEP, "slow", s="2"))
                nursery.start_soon(lambda: ask(SLEEP, "quick", s="1"))
                nursery.start_soon(lambda: ask(ECHO, "now"))
            assert order == ["now", "quick", "slow"]
            assert len(server.connections) == 1

    with_server(scenario)


def test_slow_request_delays_none_of_a_later_read() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        stream = await raw(world, numbered(SLEEP, 1, s="10"))
        await trio.sleep(1)
        await stream.send_all(encode(numbered(ECHO, 2)))
        assert [one.opaque for one in await read_commands(stream, 2)] == [2, 1]

    with_server(scenario)


def test_errors_of_handlers_are_answers() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        async with open_connection(world, ADDRESS) as connection:
            failed = await connection.request(request(FAIL))
            assert (failed.code, failed.remark) == (1, "ZeroDivisionError: oh")
            refused = await connection.request(request(REFUSE))
            assert (refused.code, refused.remark) == (1, "the custom field <x> is null")
            spawned = await connection.request(request(SLEEP, {}))
            assert (spawned.code, spawned.remark) == (1, "KeyError: 's'")
            unknown = await connection.request(request(4711))
            assert (unknown.code, unknown.remark) == (3, " request type 4711 not supported")

    with_server(scenario)


def test_one_way_requests_get_no_answer_even_on_errors() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        oneway = [request(code, {}, b"x", oneway=True) for code in (ECHO, FAIL, 4711, SLEEP)]
        stream = await raw(world, *oneway, numbered(ECHO, 77))
        (only,) = await read_commands(stream, 1)
        assert only.opaque == 77

    with_server(scenario)


def test_run_ends_once_per_read_and_before_other_requests() -> None:
    async def scenario(world: World, server: Server, events: Events) -> list[str]:
        commands = [
            numbered(RUN, 1, b"1"),
            numbered(RUN, 2, b"2"),
            numbered(ECHO, 3, b"3"),
            numbered(RUN, 4, b"4"),
        ]
        stream = await raw(world, *commands)
        await read_commands(stream, 1)
        await trio.sleep(1)
        return events

    events_seen = with_server(scenario)
    assert events_seen.index("end") < events_seen.index("echo 3")
    assert [item for item in events_seen if item != "end"] == ["run 1", "run 2", "echo 3", "run 4"]
    assert events_seen[-1] == "end"


def test_server_may_ask_the_client() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        mine = Events()
        async with open_connection(world, ADDRESS, handlers_for(mine)) as connection:
            assert (await connection.request(request(CALL_BACK))).body == b"from server"
            assert mine == ["echo from server"]

    with_server(scenario)


def test_timeout_drops_the_late_answer_only() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        async with open_connection(world, ADDRESS) as connection:
            with pytest.raises(RequestTimeout, match="request 4 within 1 s"):
                await connection.request(request(SLEEP, {"s": "2"}), timeout_s=1)
            await trio.sleep(2)
            assert (await connection.request(request(ECHO, {}, b"on"))).body == b"on"

    with_server(scenario)


def test_end_of_the_connection_fails_all_waiting_requests() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        lost = 0

        async def ask(connection: Connection) -> None:
            nonlocal lost
            with pytest.raises(ConnectionLost):
                await connection.request(request(NEVER), timeout_s=100)
            lost += 1

        async with open_connection(world, ADDRESS) as connection:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, connection)
                nursery.start_soon(ask, connection)
                await trio.sleep(1)
                (at_server,) = server.connections
                at_server.close()
            assert lost == 2
            with pytest.raises(ConnectionLost):
                await connection.request(request(ECHO))
        assert not server.connections

    with_server(scenario)


def test_dial_without_a_listener() -> None:
    async def main(world: World) -> None:
        with pytest.raises(NotConnected, match=r"127\.0\.0\.1:9000"):
            await dial(world, ADDRESS)

    assert run_solo(main).outcome == "ended"


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        struct.pack(">iI", 10, 9 << 24 | 2) + b"{}xxxx",
        struct.pack(">iI", 7, 3) + b'{"c',
    ],
)
def test_invalid_frame_closes_only_its_connection(bad: bytes) -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        async with open_connection(world, ADDRESS) as second_connection:
            stream = await world.network.connect(*ADDRESS)
            await stream.send_all(encode(numbered(ECHO, 5, b"good")) + bad)
            (good,) = await read_commands(stream, 1)
            assert good.opaque == 5
            assert await stream.receive_some(10) == b""
            assert (await second_connection.request(request(ECHO, {}, b"fine"))).body == b"fine"

    with_server(scenario)


def test_idle_connections_are_closed() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        stream = await world.network.connect(*ADDRESS)
        with trio.fail_after(IDLE_S + 2 * SWEEP_S):
            assert await stream.receive_some(10) == b""
        assert trio.current_time() >= IDLE_S

    with_server(scenario)


def test_stalled_peer_is_closed_and_delays_no_other() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        big = bytes(300_000)
        stuck = await raw(world, *(numbered(ECHO, n, big) for n in range(3)))
        async with open_connection(world, ADDRESS) as second_connection:
            await second_connection.request(request(ECHO, {}, b"both are here"))
            started = trio.current_time()
            while len(server.connections) > 1:
                assert (await second_connection.request(request(ECHO, {}, b"x"))).body == b"x"
                await trio.sleep(1)
            assert STUCK_S <= trio.current_time() - started <= STUCK_S + 2 * SWEEP_S
        await stuck.aclose()

    with_server(scenario)


def test_reading_pauses_while_the_outbox_is_full() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        size = 1 << 20
        count = OUTBOX_MAX // size + 8
        stream = await world.network.connect(*ADDRESS)

        async def send() -> None:
            for number in range(count):
                await stream.send_all(encode(numbered(ECHO, number, bytes(size))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(5)
            (connection,) = server.connections
            handled = len(events)
            assert handled < count
            assert OUTBOX_MAX < connection.outbox_bytes < OUTBOX_MAX + 3 * size
            commands = await read_commands(stream, count)
        assert [command.opaque for command in commands] == list(range(count))

    with_server(scenario)


@pytest.mark.parametrize(
    ("code", "most"), [(BIG, 6), (BIG_LATER, SPAWNED_MAX + 6)], ids=["inline", "in tasks"]
)
def test_requests_of_one_read_wait_for_room_too(code: int, most: int) -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        count = 3 * SPAWNED_MAX
        stream = await raw(world, *(numbered(code, n) for n in range(count)))
        await trio.sleep(10)
        (connection,) = server.connections
        assert OUTBOX_MAX < connection.outbox_bytes < most * OUTBOX_MAX / 4
        commands = await read_commands(stream, count)
        assert sorted(command.opaque for command in commands) == list(range(count))

    with_server(scenario)


def test_reading_pauses_while_too_many_answers_wait() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        stream = await raw(world, *(numbered(NEVER, n) for n in range(WAITING_MAX + 1)))
        await trio.sleep(1)
        await stream.send_all(encode(numbered(ECHO, 9)))
        await trio.sleep(1)
        assert not events
        events.connections[0].close_wait()
        (command,) = await read_commands(stream, 1)
        assert command.opaque == 9

    with_server(scenario)


def test_handlers_in_tasks_are_limited_per_connection() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        count = 2 * SPAWNED_MAX
        stream = await raw(world, *(numbered(SLEEP, n, s="1") for n in range(count)))
        await read_commands(stream, count)
        assert 2 <= trio.current_time() < 3

    with_server(scenario)


def test_requests_before_the_stream_end_are_answered() -> None:
    async def scenario(world: World, server: Server, events: Events) -> None:
        stream = await raw(world, numbered(ECHO, 1, b"last"))
        await stream.send_eof()
        (command,) = await read_commands(stream, 1)
        assert command.body == b"last"
        assert await stream.receive_some(10) == b""

    with_server(scenario)


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), (" 10.0.0.1:9876 ", ("10.0.0.1", 9876)), ("[::1]:5", ("::1", 5))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:x", "h:\u00b2", "h:70000", "u@h:1", "x://h:1"]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)


IMPOSSIBLE_HOSTS = ["ns..svc", "a" * 64, ".", "b\udcff", "b\ufffd", "a b", "a\tb", "a,b", "[]"]


@pytest.mark.parametrize("host", IMPOSSIBLE_HOSTS)
def test_rejects_a_host_that_no_resolver_takes(host: str) -> None:
    with pytest.raises(ValueError, match="not a host name or an IP address"):
        parse_address(f"{host}:1")


@pytest.mark.parametrize("host", ["my_broker", "b\u00fccher", "localhost.", "fe80::1%eth0"])
def test_accepts_names_of_containers_and_domains(host: str) -> None:
    assert parse_address(f"{host}:1") == (host, 1)
