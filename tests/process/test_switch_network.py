"""Machines in network namespaces with our packet switch between: real TCP under each fault.

Needs root and /dev/net/tun.
"""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.process.network.base import Machines
from rocketbed.chaos.backends.process.network.switch.network import SwitchNetwork
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.errors import HostError
from rocketbed.host.janitor import record as janitor
from rocketbed.host.janitor.cleaners import NETWORK_NAMESPACES
from rocketbed.host.janitor.record import Ledger
from rocketbed.host.parent_death import tied_command
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
)

pytestmark = pytest.mark.slow

DEADLINE_S = 60
CUT = LinkState(cut=True)
FREE = LinkState()
NUMBERS = b"".join(struct.pack(">I", number) for number in range(100_000))


@asynccontextmanager
async def switched() -> AsyncIterator[SwitchNetwork]:
    with Ledger.begin() as run, trio.fail_after(DEADLINE_S):
        machines = Machines(["b1", "b2"], ["ns1"], ["producer-1"], seed="test")
        async with SwitchNetwork(machines, run=run) as network:
            yield network


async def transfer(source: Stream, target: Stream, data: bytes = NUMBERS) -> float:
    """Send and compare; how long it took."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.send_all, data)
        assert await receive(target, len(data)) == data
    return trio.current_time() - began


def wait_gone(*paths: Path) -> None:
    until = time.monotonic() + DEADLINE_S
    for path in paths:
        while path.exists():
            assert time.monotonic() < until, f"{path} is still there"
            time.sleep(0.01)


@pytest.mark.ci
async def test_machines_see_each_others_addresses_and_nothing_else() -> None:
    async with switched() as network:
        async with connected(network, "producer-1", "b1") as (client, server):
            looker = real_world("looker").network
            assert looker.peer_address(client) == network.address("b1") == ("10.98.0.1", 10911)
            assert looker.peer_address(server)[0] == "10.98.0.4"
            await round_trip(client, server)
        outside = await real_world("outside").network.listen("127.0.0.1", 0)
        world = network.world("b1")
        with pytest.raises(ConnectionRefusedError):
            await world.network.connect(*outside.address)
        with pytest.raises(OSError, match="unreachable"):
            await world.network.connect("192.0.2.1", 80)
        with pytest.raises(ConnectionRefusedError):
            await world.network.connect(*network.address("b2"))
        await outside.aclose()


@pytest.mark.ci
async def test_a_delay_lies_on_its_direction_only() -> None:
    async with switched() as network, connected(network) as (client, server):
        plain = min([await round_trip(client, server) for _ in range(50)])
        await network.set_link("b2", "b1", LinkState(delay_s=0.05))
        assert await shortest(client, server, below=plain + 0.06) >= plain + 0.049
        await network.set_link("b1", "b2", LinkState(delay_s=0.02))
        assert await shortest(client, server, below=plain + 0.08) >= plain + 0.069
        for pair in (("b2", "b1"), ("b1", "b2")):
            await network.set_link(*pair, FREE)
        await shortest(client, server, below=0.02)


async def test_cut_direction_holds_bytes_and_heals_in_order() -> None:
    async with switched() as network, connected(network) as (client, server):
        await round_trip(client, server)
        await network.set_link("b2", "b1", CUT)
        for word in (b"one ", b"two ", b"three"):
            await client.send_all(word)
        assert await is_mute(lambda: server.receive_some(1))
        await server.send_all(b"the other way is open")
        assert await receive(client, 21) == b"the other way is open"
        await network.set_link("b2", "b1", FREE)
        assert await receive(server, 13) == b"one two three"


async def test_a_handshake_waits_for_the_cut_to_end() -> None:
    async with switched() as network:
        listener = await serve(network, "b1")
        await network.set_link("b2", "b1", CUT)
        assert await is_mute(lambda: dial(network, "b2", "b1"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_dial_and_send, network)
            assert await is_mute(listener.accept)
            await network.set_link("b2", "b1", FREE)
            async with await listener.accept() as server:
                assert await receive(server, 7) == b"patient"
        await listener.aclose()


async def _dial_and_send(network: SwitchNetwork) -> None:
    async with await dial(network, "b2", "b1") as client:
        await client.send_all(b"patient")


async def test_a_reset_is_one_at_both_ends() -> None:
    async with switched() as network, connected(network) as (client, server):
        second_client = await dial(network, "producer-1", "b1")
        await transfer(client, server)
        await network.reset("b1", "ns1")
        await round_trip(client, server)
        await network.reset("b1", "b2")
        for end in (client, server):
            with pytest.raises(trio.BrokenResourceError) as caught:
                await end.receive_some(1)
            assert isinstance(caught.value.__cause__, ConnectionResetError)
        await second_client.send_all(b"not meant")
        await second_client.aclose()


async def test_a_reset_hits_a_connection_in_full_flow() -> None:
    async with switched() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", LinkState(delay_s=0.005))
        broken = []

        async def flood() -> None:
            try:
                while True:
                    await client.send_all(bytes(65536))
            except trio.BrokenResourceError:
                broken.append("client")

        async def drain() -> None:
            try:
                while await server.receive_some(65536):
                    flowing.set()
            except trio.BrokenResourceError:
                broken.append("server")

        flowing = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            nursery.start_soon(drain)
            await flowing.wait()
            await network.reset("b1", "b2")
        assert sorted(broken) == ["client", "server"]


async def test_a_reset_passes_a_cut() -> None:
    async with switched() as network, connected(network) as (client, server):
        for pair in (("b1", "b2"), ("b2", "b1")):
            await network.set_link(*pair, CUT)
        await client.send_all(b"never seen")
        await network.reset("b2", "b1")
        for end in (client, server):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some(1)


async def test_tcp_gets_over_lost_and_late_packets() -> None:
    rule = LinkState(loss=0.05, jitter_s=0.001)
    async with switched() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", rule)
        await transfer(client, server)
        counted = (await network.switch.counters())["dropped"]
        assert set(counted) == {"b2->b1"}
        assert counted["b2->b1"] > 5


async def test_a_rate_holds() -> None:
    rate, size = 1_000_000, 400_000
    async with switched() as network, connected(network) as (client, server):
        await network.set_link("b2", "b1", LinkState(rate=rate))
        took = inf
        while took >= 5 * size / rate:
            took = await transfer(client, server, NUMBERS[:size])
            assert took >= size / rate * 0.95


async def test_power_cut_is_noticed_when_the_machine_returns() -> None:
    async with switched() as network:
        listener = await serve(network, "b1")
        client = await dial(network, "b2", "b1")
        server = await listener.accept()
        await round_trip(client, server)
        await network.silence("b1")
        await server.aclose()
        await listener.aclose()
        assert await is_mute(lambda: client.receive_some(1))
        assert await is_mute(lambda: dial(network, "b2", "b1"))
        await network.restore("b1")
        assert await is_mute(lambda: client.receive_some(1))
        await client.send_all(b"do you remember me?")
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some(1)
        await client.aclose()
        async with connected(network) as (client, server):
            await round_trip(client, server)


async def test_rules_outlast_a_power_cut() -> None:
    async with switched() as network:
        await network.set_link("b2", "b1", LinkState(delay_s=0.05))
        await network.silence("b1")
        await network.restore("b1")
        async with connected(network) as (client, server):
            assert min([await round_trip(client, server) for _ in range(3)]) >= 0.049


async def test_every_order_is_logged() -> None:
    async with switched() as network:
        await network.set_link("b1", "b2", LinkState(loss=0.25))
        assert '"loss": 0.25' in network.switch.log.read_text()


async def test_an_order_that_makes_no_sense_is_refused() -> None:
    async with switched() as network:
        with pytest.raises(HostError, match="link: KeyError"):
            await network.set_link("b1", "nobody", LinkState())
        os.kill(network.switch._process.pid, signal.SIGKILL)
        with pytest.raises(HostError, match="has exited"):
            await network.switch.counters()


async def test_program_runs_on_its_machine_and_dies_with_us() -> None:
    async with switched() as network:
        command = network.command("b1", ["readlink", "/proc/self/ns/net"])
        completed = await trio.run_process(command, capture_stdout=True)
        assert completed.stdout.decode().strip() != os.readlink("/proc/self/ns/net")
        settings = network.settings("ns1")
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = network.command("ns1", tied_command("nameserver", *options))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.run_process, command, check=False))
            async with await dial(network, "b1", "ns1"):
                nursery.cancel_scope.cancel()


def test_nothing_is_left_when_the_harness_is_killed() -> None:
    program = """
import sys, trio
from rocketbed.host.janitor.record import Ledger
from rocketbed.chaos.backends.process.network.base import Machines
from rocketbed.chaos.backends.process.network.switch.network import SwitchNetwork

async def main(run):
    async with SwitchNetwork(Machines(["b1"]), run=run) as network:
        print(network.namespace("b1"), network.switch._process.pid, flush=True)
        await trio.sleep_forever()

with Ledger.begin() as run:
    trio.run(main, run)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as harness:
        assert harness.stdout is not None
        name, pid = harness.stdout.readline().split()
        path = NETWORK_NAMESPACES / name
        run = janitor.runs_directory() / name.removeprefix("rb-").removesuffix("-b1")
        assert path.exists()
        assert run.is_dir()
        harness.kill()
    wait_gone(path, Path(f"/proc/{pid}"), run)


@pytest.mark.process
async def test_nodes_replicate_across_it(tmp_path: Path) -> None:
    with Ledger.begin() as run, trio.fail_after(DEADLINE_S):
        network = SwitchNetwork(Machines(["b1", "b2"], ["ns1"], ["producer-1"]), run=run)
        await check_replication(network, tmp_path)
