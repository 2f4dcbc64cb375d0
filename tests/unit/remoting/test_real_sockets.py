"""Connections on real sockets: answers that the socket takes at once, and those it does not."""

import hashlib
import socket
import struct
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from rocketbed.client.connections import Connections
from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import NotConnected
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.command import Command, answer, request
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.world.real import real_world

ECHO = 1


async def test_answers_of_any_size_arrive_complete_and_in_order() -> None:
    """Small ones leave with the read, large ones over the writer; no byte changes its place."""
    sizes = [0, 10, 100_000, 3, 700_000, 20, 5_000_000, 1, 2_000_000, 0, 300_000]

    def body(number: int) -> bytes:
        return hashlib.sha256(b"%d" % number).digest() * (sizes[number] // 32 + 1)

    def serve(command: Command, connection: Connection) -> Command:
        return answer(command, body=body(int(command.fields["n"])))

    world = real_world("test")
    server = Server(world, ("127.0.0.1", 0), Handlers(inline={ECHO: serve}))
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(server.run)
        stream = await world.network.connect(host, port)
        frames = []
        for number in range(len(sizes)):
            command = request(ECHO, {"n": str(number)})
            command.opaque = number
            frames.append(encode(command))
        async with trio.open_nursery() as senders:
            senders.start_soon(stream.send_all, b"".join(frames) * 3)
            reader = FrameReader()
            answers: list[Command] = []
            while len(answers) < 3 * len(sizes):
                answers += reader.feed(bytes(await stream.receive_some(65_536)))
        for place, received_answer in enumerate(answers):
            number = place % len(sizes)
            assert received_answer.opaque == number
            assert received_answer.body == body(number)
        await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def test_a_stream_takes_what_it_has_room_for() -> None:
    world = real_world("test")
    listener = await world.network.listen("127.0.0.1", 0)
    client = await world.network.connect(*listener.address)
    served = await listener.accept()
    parts = [bytes([number]) * 5_000 for number in range(256)] * 8
    data = b"".join(parts)
    sent = world.network.try_send(served, parts)
    assert 0 < sent < len(data), "loopback buffers are smaller than ten megabytes"
    assert world.network.try_send(served, parts) < len(data)
    received = bytearray()
    while len(received) < sent:
        received += await client.receive_some(1 << 20)
    assert received[:sent] == data[:sent]
    await trio.aclose_forcefully(client)
    await trio.aclose_forcefully(served)
    await listener.aclose()
    assert world.network.try_send(served, [b"x"]) == 0


async def test_received_bytes_are_returned_at_once() -> None:
    """Bytes, the end, a reset, and a stream that is closed under its reader."""
    world = real_world("test")
    network = world.network
    listener = await network.listen("127.0.0.1", 0)

    async def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
        client = await network.connect(*listener.address)
        served = await listener.accept()
        assert isinstance(client, trio.SocketStream)
        assert isinstance(served, trio.SocketStream)
        return client, served

    client, served = await pair()
    assert network.try_receive(served, 10) == b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, b"hello")
        assert await network.receive(served, 3) == b"hel"
    await trio.lowlevel.wait_readable(served.socket)
    assert network.try_receive(served, 10) == b"lo"
    await client.send_eof()
    assert await network.receive(served, 10) == b""
    assert network.try_receive(served, 10) == b""
    await trio.aclose_forcefully(client)
    await trio.aclose_forcefully(served)

    client, served = await pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(client)
    with pytest.raises(trio.BrokenResourceError):
        await network.receive(served, 10)
    await trio.aclose_forcefully(served)
    with pytest.raises(trio.ClosedResourceError):
        await network.receive(served, 10)
    assert network.try_receive(served, 10) == b""

    client, served = await pair()
    with trio.move_on_after(0.01) as scope:
        await network.receive(served, 10)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def reader() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await network.receive(served, 10)

        await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(served)
    await trio.aclose_forcefully(client)
    await listener.aclose()


async def test_peers_gone_before_accept_do_no_harm() -> None:
    """A port scan resets its connections at once; then not even their address can be had."""

    def serve(command: Command, connection: Connection) -> Command:
        return answer(command, body=b"here")

    world = real_world("test")
    server = Server(world, ("127.0.0.1", 0), Handlers(inline={ECHO: serve}))
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.run)
        for _ in range(20):
            scanner = socket.create_connection(address)
            scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            scanner.close()
        stream = await world.network.connect(*address)
        connection = Connection(world, stream)
        nursery.start_soon(connection.run)
        assert (await connection.request(request(ECHO))).body == b"here"
        nursery.cancel_scope.cancel()


class _Between:
    """A network on which something happens between a connection and its first use."""

    def __init__(self, network: Any, happen: Any) -> None:
        self._network, self._happen = network, happen
        self.streams: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def connect(self, host: str, port: int) -> Any:
        stream = await self._network.connect(host, port)
        self.streams.append(stream)
        await self._happen()
        return stream


async def test_peer_gone_when_reached_was_not_reached() -> None:
    """A node that is killed then resets what it had accepted; the socket is not left open."""
    world = real_world("test")
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def reset() -> None:
            accepted, _ = server.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            with pytest.raises((OSError, trio.BrokenResourceError)):
                await network.streams[-1].receive_some(1)

        network = _Between(world.network, reset)
        with pytest.raises(NotConnected, match="closed the connection at once"):
            await dial(replace(world, network=network), server.getsockname())
    assert network.streams[0].socket.fileno() == -1


async def test_connection_after_the_end_is_closed() -> None:
    world = real_world("test")
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def end() -> None:
            links.is_closed = True

        network = _Between(world.network, end)
        links = Connections(replace(world, network=network))
        async with trio.open_nursery() as nursery:
            links.start(nursery)
            with pytest.raises(NotConnected):
                await links.link(server.getsockname())
    assert network.streams[0].socket.fileno() == -1
