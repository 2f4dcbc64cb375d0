"""Machines with a TCP proxy between: each fault is made and seen from both ends."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.process.network.base import Machines
from rocketbed.chaos.backends.process.network.proxied import ProxyNetwork
from rocketbed.chaos.run.links import LinkState
from rocketbed.world.api import Stream
from rocketbed.world.real import real_world
from tests.support.network import (
    check_replication,
    connected,
    dial,
    is_mute,
    receive,
    round_trip,
    serve,
    shortest,
    speak_on,
)

DEADLINE_S = 120
NODES_DEADLINE_S = 120
CUT = LinkState(cut=True)
FREE = LinkState()


@asynccontextmanager
async def proxied() -> AsyncIterator[ProxyNetwork]:
    with trio.fail_after(DEADLINE_S):
        async with ProxyNetwork(Machines(["b1", "b2"], ["ns1"], ["producer-1"])) as network:
            yield network


async def one_way(sender: Stream, receiver: Stream) -> float:
    began = trio.current_time()
    await sender.send_all(b"x")
    assert await receive(receiver, 1) == b"x"
    return trio.current_time() - began


async def test_machines_are_identified_by_their_dialing_address() -> None:
    async with proxied() as network, connected(network, "producer-1", "b1") as (client, server):
        looker = real_world("looker").network
        assert looker.peer_address(client) == network.address("b1")
        assert looker.peer_address(server)[0] == network._addresses["producer-1"]
        await round_trip(client, server)


async def test_a_delay_lies_on_its_direction_only() -> None:
    async with proxied() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", LinkState(delay_s=0.03))
        assert await shortest(client, server, below=0.06) >= 0.03
        while await one_way(server, client) >= 0.03:
            pass  # other work took the machine
        await network.set_link("b2", "b1", FREE)
        await shortest(client, server, below=0.03)


async def test_jitter_and_loss_keep_the_order() -> None:
    async with proxied() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", LinkState(jitter_s=0.003, loss=0.01))
        numbers = b"".join(struct.pack(">I", number) for number in range(20_000))

        async def send() -> None:
            for at in range(0, len(numbers), 400):
                await client.send_all(numbers[at : at + 400])
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert await receive(server, len(numbers)) == numbers


async def test_listener_closed_during_a_dial_does_no_harm() -> None:
    async with proxied() as network:
        for _ in range(100):
            await network.set_link("b1", "b2", CUT)  # b2 has no server: only now is it listened for
            with socket.socket() as caller:
                caller.setblocking(False)
                with suppress(BlockingIOError):
                    caller.connect(network.address("b2"))
                await network.set_link("b1", "b2", FREE)
        async with connected(network) as (client, server):
            await round_trip(client, server)


async def test_cut_direction_holds_bytes_and_heals_in_order() -> None:
    async with proxied() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", CUT)
        for word in (b"one ", b"two ", b"three"):
            await client.send_all(word)
        assert await is_mute(lambda: server.receive_some(1))
        await server.send_all(b"the other way is open")
        assert await receive(client, 21) == b"the other way is open"
        await client.send_eof()
        await network.set_link("b2", "b1", FREE)
        assert await receive(server, 100) == b"one two three"


async def test_new_connection_waits_for_the_cut_to_end() -> None:
    async with proxied() as network:
        listener = await serve(network, "b1")
        await network.set_link("b1", "b2", CUT)
        given_up = await dial(network, "b2", "b1")
        await given_up.send_all(b"too early")
        await given_up.aclose()
        patient = await dial(network, "b2", "b1")
        await patient.send_all(b"patient")
        assert await is_mute(listener.accept)
        elsewhere = await dial(network, "producer-1", "b1")
        await elsewhere.send_all(b"others")
        async with await listener.accept() as first:
            assert await receive(first, 6) == b"others"
        await network.set_link("b1", "b2", FREE)
        async with await listener.accept() as second:
            assert await receive(second, 7) == b"patient"
        assert await is_mute(listener.accept)
        for stream in (patient, elsewhere, listener):
            await stream.aclose()


async def test_missing_server_refuses_unless_unreachable() -> None:
    async with proxied() as network:
        caller = network.world("b2").network
        with pytest.raises(ConnectionRefusedError):
            await caller.connect(*network.address("b1"))
        await network.set_link("b2", "b1", CUT)
        client = await caller.connect(*network.address("b1"))
        assert await is_mute(lambda: client.receive_some(1))
        await network.set_link("b2", "b1", FREE)
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some(1)
        await client.aclose()
        with pytest.raises(ConnectionRefusedError):
            await caller.connect(*network.address("b1"))


async def test_ends_reach_the_other_side() -> None:
    async with proxied() as network:
        async with connected(network) as (client, server):
            await client.send_eof()
            assert await server.receive_some(1) == b""
            await server.send_all(b"still here")
            assert await receive(client, 10) == b"still here"
        async with connected(network) as (client, server):
            await client.send_all(b"never read")
            await trio.lowlevel.wait_readable(server.socket)  # type: ignore[attr-defined]
            await server.aclose()
            with pytest.raises(trio.BrokenResourceError):
                await client.receive_some(1)
        async with connected(network) as (client, server):
            await server.aclose()
            with pytest.raises(trio.BrokenResourceError):
                await speak_on(client)


async def test_a_reset_is_one_at_both_ends() -> None:
    async with proxied() as network, connected(network) as (client, server):
        await round_trip(client, server)
        await network.reset("b1", "producer-1")
        await round_trip(client, server)
        await network.reset("b1", "b2")
        for end in (client, server):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some(1)


async def test_rate_limits_all_connections_of_a_link() -> None:
    size, rate = 150_000, 1_000_000
    async with proxied() as network:
        took = await seconds_at(network, rate, size)
        while took >= 6 * size / rate:  # other work took the machine
            took = await seconds_at(network, rate, size)


async def seconds_at(network: ProxyNetwork, rate: int, size: int) -> float:
    """Return the seconds that a link of this rate took for `size` bytes, of two connections; check
    that it is not too short."""
    async with connected(network) as (client, server):
        second_client = await dial(network, "b2", "b1")
        await network.set_link("b2", "b1", LinkState(rate=rate))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, bytes(size))
            nursery.start_soon(second_client.send_all, bytes(size))
            await receive(server, size)
        await network.set_link("b2", "b1", LinkState())
        took = trio.current_time() - began
        await second_client.aclose()
    assert size / rate <= took
    return took


async def test_a_sender_into_a_cut_has_to_wait() -> None:
    async with proxied() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", CUT)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await client.send_all(bytes(65536))
                sent += 65536

        assert await is_mute(flood)
        assert sent < 8 << 20
        await network.set_link("b2", "b1", FREE)
        assert len(await receive(server, sent)) == sent


async def test_power_cut_is_noticed_when_the_machine_returns() -> None:
    async with proxied() as network:
        listener = await serve(network, "b1")
        client = await dial(network, "b2", "b1")
        server = await listener.accept()
        await round_trip(client, server)
        await network.silence("b1")
        await server.aclose()
        await listener.aclose()
        await client.send_all(b"are you there?")
        assert await is_mute(lambda: client.receive_some(1))
        late = await dial(network, "b2", "b1")
        assert await is_mute(lambda: late.receive_some(1))
        await network.restore("b1")
        for stream in (client, late):
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
            await stream.aclose()
        async with connected(network) as (client, server):
            await round_trip(client, server)


async def test_silent_peer_stays_half_open_after_a_power_cut() -> None:
    async with proxied() as network, connected(network) as (client, server):
        await network.silence("b2")
        await client.aclose()
        await network.restore("b2")
        assert await is_mute(lambda: server.receive_some(1))
        await server.send_all(b"are you there?")
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some(1)


async def test_two_networks_do_not_meet() -> None:
    async with proxied() as first, proxied() as second:
        assert first.address("b1") != second.address("b1")
        async with connected(first) as (client, server), connected(second) as (client_2, server_2):
            await round_trip(client, server)
            await round_trip(client_2, server_2)


@pytest.mark.process
async def test_nodes_replicate_across_it(tmp_path: Path) -> None:
    with trio.fail_after(NODES_DEADLINE_S):
        network = ProxyNetwork(Machines(["b1", "b2"], ["ns1"], ["producer-1"]))
        await check_replication(network, tmp_path)


def test_it_says_what_it_cannot_do() -> None:
    network = ProxyNetwork(Machines(["b1"], ["ns1"]))
    assert [network.lacks(one) for one in ("net.cut", "net.delay", "net.reset", "")] == [None] * 4
    assert "switch" in str(network.lacks("net.loss"))
