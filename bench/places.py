"""The same cluster as processes and in containers: the time of a start, and of a fault's effect.

A fault has struck once its node answers no more: a client sends a request every millisecond, and
the time of the last answer counts. No figure is finer than that; 0 is a fault that struck at once.
In simulation faults strike at the very nanosecond.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from bench.testbed import testbed
from rocketbed.chaos.backends.docker.backend import DockerHost
from rocketbed.chaos.backends.process.backend import ProcessBackend
from rocketbed.chaos.backends.process.network.choice import Net
from rocketbed.chaos.backends.process.network.switch.network import missing_for_switch
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.plan.plan import Plan, Shape
from rocketbed.chaos.run.links import LinkState
from rocketbed.chaos.run.members import Members
from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.host.docker.client import Daemon, DockerError
from rocketbed.host.docker.image import ready_image
from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import RequestCode, request

Row = tuple[str, float, str]
TIMES = 5
ASK_S = 0.001
SILENT_S = 0.25
"""Silence after which a node counts as hit."""
SECONDS = 4.0
IN_FLIGHT = 64
BODY = bytes(1024)
TOPIC = "bench"
PLAN = Plan(name="bench", seed=1, shape=Shape(brokers=3, nameservers=1, repl="sync"))
CUT = LinkState(cut=True)


def places() -> Iterator[Row]:
    """Yield rows of processes and, if there is a daemon, of containers."""
    missing = missing_for_switch()
    nets: list[Net] = ["plain"] if missing else ["plain", "switch"]
    for net in nets:
        yield from trio.run(_measure, "process", ProcessHost(), net)
    try:
        with Daemon.connect() as daemon:
            host = DockerHost(daemon, ready_image(daemon))
            for net in nets:
                yield from trio.run(_measure, "docker", host, net)
    except DockerError as error:
        print(f"docker: left out, {error}", file=sys.stderr)


async def _measure(name: str, host: ProcessHost, net: Net) -> list[Row]:
    label = f"{name}, {net}"
    rows: list[Row] = []
    async with _cluster(host, net) as (backend, members, began):
        rows.append((f"{label}: three nodes to first acknowledged send", began, "s"))
        rows.append((f"{label}: sends, {IN_FLIGHT} in flight", await _rate(backend), "messages/s"))
        node = members.followers(next(iter(PLAN.shape.group_nodes())))[0]
        for fault in ("pause", "cut", "kill"):
            if fault == "cut" and backend.lacks("net.cut"):
                continue
            times = [await _strike(backend, members, node, fault) for _ in range(TIMES)]
            rows.append((f"{label}: {fault}, median", 1000 * statistics.median(times), "ms"))
            rows.append((f"  longest of {TIMES}", 1000 * max(times), "ms"))
    return rows


@asynccontextmanager
async def _cluster(
    host: ProcessHost, net: Net
) -> AsyncIterator[tuple[ProcessBackend, Members, float]]:
    """Yield a cluster that has acknowledged a message, and the seconds that this took."""
    began = time.monotonic()
    async with testbed(host, net, PLAN) as backend:
        members = Members(PLAN.shape, backend)
        await _start(backend, members)
        yield backend, members, time.monotonic() - began


async def _start(backend: ProcessBackend, members: Members) -> None:
    async with trio.open_nursery() as nursery:
        for name in PLAN.shape.nameserver_names:
            nursery.start_soon(backend.start, name, {})
        for node in members.nodes:
            nursery.start_soon(members.start, node)
    async with Admin(backend.world, nameservers=backend.nameservers()) as admin:
        while True:
            with contextlib.suppress(ClientError, RemotingError):
                await admin.create_topic(TOPIC, queues=4)
                break
            await trio.sleep(0.01)
    async with Producer(backend.world, nameservers=backend.nameservers()) as producer:
        while not isinstance(await _send(producer), Sent):
            await trio.sleep(0.01)


async def _send(producer: Producer) -> object:
    try:
        return await producer.send(Message(TOPIC, BODY))
    except (ClientError, RemotingError) as error:
        return error


async def _rate(backend: ProcessBackend) -> float:
    """Return acknowledged messages a second of one client."""
    counts: list[int] = []
    async with Producer(backend.world, nameservers=backend.nameservers()) as producer:

        async def work() -> None:
            count = 0
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                count += isinstance(await _send(producer), Sent)
            counts.append(count)

        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(work)
    return sum(counts) / SECONDS


async def _strike(backend: ProcessBackend, members: Members, node: str, fault: str) -> float:
    """Hit a node that answers; return the seconds until its last answer."""
    await members.wait_serving(node)
    answered: list[float] = []
    async with trio.open_nursery() as nursery:
        connection = await dial(backend.world, backend.address(node), timeout_s=5.0)
        nursery.start_soon(connection.run)
        nursery.start_soon(_ask, connection, answered)
        while len(answered) < 20:
            await trio.sleep(ASK_S)
        began = time.monotonic()
        heal = await _fault(backend, members, node, fault)
        while time.monotonic() - max(answered[-1], began) < SILENT_S:
            await trio.sleep(ASK_S)
        nursery.cancel_scope.cancel()
    await heal()
    return max(0.0, answered[-1] - began)


async def _ask(connection: Connection, answered: list[float]) -> None:
    with contextlib.suppress(RemotingError):
        while True:
            await connection.request(request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=5.0)
            answered.append(time.monotonic())
            await trio.sleep(ASK_S)


async def _fault(
    backend: ProcessBackend, members: Members, node: str, fault: str
) -> Callable[[], Awaitable[None]]:
    """Strike; return the function that heals the fault."""
    if fault == "pause":
        await backend.pause(node)
        return partial(backend.resume, node)
    if fault == "kill":
        await backend.kill(node)
        return partial(members.start, node)
    await _link(backend, node, CUT)
    return partial(_link, backend, node, LinkState())


async def _link(backend: ProcessBackend, node: str, state: LinkState) -> None:
    peers = [*(name for name in PLAN.shape.nodes if name != node), "harness"]
    for peer in peers:
        await backend.set_link(node, peer, state)
        await backend.set_link(peer, node, state)
