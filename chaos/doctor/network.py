"""Self-tests of the network's faults: each sends, injects a fault, and checks what arrived.

They start a network of two machines of their own, so they may run side by side.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from rocketbed.chaos.backends.process.network import netns
from rocketbed.chaos.backends.process.network.base import Machines, Network
from rocketbed.chaos.backends.process.network.proxied import ProxyNetwork
from rocketbed.chaos.backends.process.network.switch.network import (
    SwitchNetwork,
    missing_for_switch,
)
from rocketbed.chaos.doctor.probes import Broken, Missing
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.api import Stream

MACHINES: Final = Machines(("b1", "b2"), seed="probe")
DEADLINE_S: Final = 10.0
ANSWER_S: Final = 3.0
DELAY_S: Final = 0.02
MUTE_S: Final = 0.05
"""Loopback delivers a byte in less than a hundredth of this."""
TRIES: Final = 20
DATAGRAMS: Final = 200


def probe_proxy() -> str:
    """Delay, cut and heal through the proxy."""
    return trio.run(_delays_and_cuts, ProxyNetwork(MACHINES))


def probe_switch() -> str:
    return _with_switch(_delays_and_cuts)


def probe_loss() -> str:
    """Lose half of some datagrams in the switch."""
    return _with_switch(_loses)


def probe_reset() -> str:
    """Reset both ends of a connection; through the switch, or the proxy without root."""
    if missing_for_switch() is None:
        return _with_switch(_resets)
    return trio.run(_resets, ProxyNetwork(MACHINES))


def _with_switch(probe: Callable[[SwitchNetwork], Awaitable[str]]) -> str:
    why = missing_for_switch()
    if why is not None:
        raise Missing(why)
    with Ledger.begin(guard=False) as run:
        try:
            return trio.run(probe, SwitchNetwork(MACHINES, run=run))
        except* (OSError, HostError) as group:
            reason = str(group.exceptions[0])
        raise Broken(reason)


@asynccontextmanager
async def _connection(network: Network) -> AsyncIterator[tuple[Stream, Stream]]:
    """Connect b2 to b1. Yields the client's end, the server's."""
    host, port = network.settings("b1")["bindAddress"], network.address("b1")[1]
    listener = await network.world("b1").network.listen(host, port)
    while True:
        try:
            client = await network.world("b2").network.connect(*network.address("b1"))
            break
        except ConnectionRefusedError:  # a proxy looks for new servers every 20 ms
            await trio.sleep(0.005)
    server = await listener.accept()
    try:
        yield client, server
    finally:
        with trio.CancelScope(shield=True):
            for end in (client, server, listener):
                await end.aclose()


async def _delays_and_cuts(network: Network) -> str:
    with trio.fail_after(DEADLINE_S):
        async with network, _connection(network) as (client, server):
            plain = min([await _round_trip(client, server) for _ in range(TRIES)])
            await network.set_link("b2", "b1", LinkState(delay_s=DELAY_S))
            slow = min([await _round_trip(client, server) for _ in range(3)])
            await network.set_link("b2", "b1", LinkState(cut=True))
            await client.send_all(b"held")
            leaked = await _hears(server, MUTE_S)
            await network.set_link("b2", "b1", LinkState())
            healed = await _hears(server, ANSWER_S)
    if not DELAY_S <= slow - plain < 2 * DELAY_S:
        raise Broken(f"{1000 * DELAY_S:g} ms more became {1000 * (slow - plain):.1f} ms")
    if leaked or healed != b"held":
        raise Broken(f"during a cut {leaked!r} arrived, afterwards {healed!r}")
    return f"round trip {1000 * plain:.2f} ms; delay and cut work"


async def _loses(network: SwitchNetwork) -> str:
    with trio.fail_after(DEADLINE_S):
        async with network:
            host = network.address("b1")[0]
            with netns.inside(network.namespace("b1")):
                receiver = trio.socket.socket(type=socket.SOCK_DGRAM)
            with netns.inside(network.namespace("b2")):
                sender = trio.socket.socket(type=socket.SOCK_DGRAM)
            with receiver, sender:
                await receiver.bind((host, 0))
                await network.set_link("b2", "b1", LinkState(loss=0.5))
                for _ in range(DATAGRAMS):
                    await sender.sendto(b"x", receiver.getsockname())
                await network.set_link("b2", "b1", LinkState())
                arrived = 0
                await sender.sendto(b"end", receiver.getsockname())
                while await receiver.recv(3) != b"end":
                    arrived += 1
    if not 0.3 < arrived / DATAGRAMS < 0.7:
        raise Broken(f"{arrived} of {DATAGRAMS} datagrams passed a loss of a half")
    return f"{DATAGRAMS - arrived} of {DATAGRAMS} datagrams were lost when a half was asked"


async def _resets(network: Network) -> str:
    with trio.fail_after(DEADLINE_S):
        async with network, _connection(network) as (client, server):
            await _round_trip(client, server)
            await network.reset("b1", "b2")
            resets = [await _is_reset(end) for end in (client, server)]
    if not all(resets):
        raise Broken(f"the client saw a reset: {resets[0]}, the server: {resets[1]}")
    return f"both ends see it ({network.name})"


async def _round_trip(first: Stream, second: Stream) -> float:
    began = trio.current_time()
    for source, target in ((first, second), (second, first)):
        await source.send_all(b"x")
        await target.receive_some(1)
    return trio.current_time() - began


async def _hears(stream: Stream, seconds: float) -> bytes:
    with trio.move_on_after(seconds):
        return bytes(await stream.receive_some(4))
    return b""


async def _is_reset(stream: Stream) -> bool:
    with trio.move_on_after(ANSWER_S):
        try:
            await stream.receive_some(1)
        except trio.BrokenResourceError:
            return True
    return False
