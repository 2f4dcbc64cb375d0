"""Cost of the network between machines of the testbed: packets a second, bytes a second, added
round trip.

Both ends are this process, so these are the figures for a load generator that shares two processors
with the switch. "Added" is the excess over a round trip on plain loopback.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import trio

from rocketbed.chaos.backends.process.network.base import Machines, Network, PlainNetwork
from rocketbed.chaos.backends.process.network.proxied import ProxyNetwork
from rocketbed.chaos.backends.process.network.switch.network import (
    SwitchNetwork,
    missing_for_switch,
)
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.api import Stream

Row = tuple[str, float, str]
MACHINES = Machines(("b1", "b2"))
ROUND_TRIPS = 5000
DELAYED_ROUND_TRIPS = 50
SECONDS = 3.0
PIECE = bytes(256 * 1024)
DELAY_S = 0.02


def between_machines() -> Iterator[Row]:
    """Yield rows of the proxy and, with root and TUN devices, of the switch."""
    plain = trio.run(_round_trip, PlainNetwork(MACHINES))
    yield "proxy, added round trip", 1e6 * (trio.run(_round_trip, _proxy()) - plain), "us"
    yield "proxy, one connection", trio.run(_rate, _proxy())[0] / 1e6, "MB/s"
    why = missing_for_switch()
    if why is not None:
        print(f"switch: left out, {why}", file=sys.stderr)
        return
    with Ledger.begin() as run:
        switched = trio.run(_round_trip, _switch(run, 1500))
        yield "switch, added round trip", 1e6 * (switched - plain), "us"
        delayed = trio.run(_round_trip, _switch(run, 1500), DELAY_S)
        yield "switch, 20 ms of delay are longer by", 1e6 * (delayed - switched - DELAY_S), "us"
        for mtu in (1500, 9000):
            rate, packets = trio.run(_rate, _switch(run, mtu))
            yield f"switch, one connection, MTU {mtu}", rate / 1e6, "MB/s"
            yield f"  packets, MTU {mtu}", packets, "packets/s"


def _proxy() -> Network:
    return ProxyNetwork(MACHINES)


def _switch(run: Ledger, mtu: int) -> Network:
    return SwitchNetwork(MACHINES, run=run, mtu=mtu)


@asynccontextmanager
async def _connection(network: Network) -> AsyncIterator[tuple[Stream, Stream]]:
    host, port = network.settings("b1")["bindAddress"], network.address("b1")[1]
    listener = await network.world("b1").network.listen(host, port)
    while True:
        try:
            client = await network.world("b2").network.connect(*network.address("b1"))
            break
        except ConnectionRefusedError:  # the proxy does not know the server yet
            await trio.sleep(0.005)
    server = await listener.accept()
    try:
        yield client, server
    finally:
        for resource in (client, server, listener):
            await resource.aclose()


async def _round_trip(network: Network, delay_s: float = 0.0) -> float:
    """Return the median, seconds."""
    async with network, _connection(network) as (client, server):
        if delay_s:
            await network.set_link("b2", "b1", LinkState(delay_s=delay_s))
        times = []
        for _ in range(DELAYED_ROUND_TRIPS if delay_s else ROUND_TRIPS):
            began = trio.current_time()
            for source, target in ((client, server), (server, client)):
                await source.send_all(b"x" * 100)
                await target.receive_some(100)
            times.append(trio.current_time() - began)
    return sorted(times)[len(times) // 2]


async def _rate(network: Network) -> tuple[float, float]:
    """Return bytes and, through the switch, packets a second."""
    received = 0

    async def drain() -> None:
        nonlocal received
        while True:
            received += len(await server.receive_some(len(PIECE)))

    async def flood() -> None:
        while True:
            await client.send_all(PIECE)

    async with network, _connection(network) as (client, server):
        before, began = await _packets(network), trio.current_time()
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain)
                nursery.start_soon(flood)
        took = trio.current_time() - began
        return received / took, (await _packets(network) - before) / took


async def _packets(network: Network) -> int:
    if not isinstance(network, SwitchNetwork):
        return 0
    return int((await network.switch.counters())["forwarded"])
