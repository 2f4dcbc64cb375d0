"""Choice of the nameserver that a client asks."""

from typing import Any, cast

import pytest
import trio
import trio.testing

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.client.connections import Connections
from rocketbed.client.errors import NoNameserver
from rocketbed.client.nameservers import Nameservers
from rocketbed.remoting.errors import RequestTimeout
from rocketbed.wire.bodies import ClusterInfo
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.world.api import Address, World

BROKERS = RequestCode.GET_BROKER_CLUSTER_INFO, "list of brokers", bytes


class Links:
    """Connections to nameservers, the first of which never answers."""

    def __init__(self) -> None:
        self.silent: Address | None = None
        self.closed: list[Address] = []

    async def link(self, address: Address, *, timeout_s: float) -> "Link":
        self.silent = self.silent or address
        return Link(is_silent=address == self.silent)

    def close(self, address: Address, why: str) -> None:
        self.closed.append(address)


class Link:
    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent

    async def request(self, command: Command, *, timeout_s: float) -> Command:
        if self._is_silent:
            await trio.sleep(timeout_s)
            raise RequestTimeout(f"no answer within {timeout_s:g} s")
        return answer(command, ResponseCode.SUCCESS, body=b"{}")


@pytest.mark.parametrize("limit_s", [0.1, 1.0])
def test_call_with_little_time_asks_a_second_nameserver(limit_s: float) -> None:
    """A read with retryTimeoutMs=1000 never asked the one that was well."""

    async def ask(world: World) -> Any:
        addresses = [("ns1", 9876), ("ns2", 9876), ("ns3", 9876)]
        nameservers = Nameservers(world, addresses, cast(Connections, Links()))
        with trio.fail_after(limit_s):
            return await nameservers.body(*BROKERS)

    with Simulation() as simulation:
        assert simulation.run_process(simulation.start("client", ask)) == b"{}"


def test_abandoned_call_moves_the_next_to_another_nameserver() -> None:
    async def ask(world: World) -> Any:
        addresses = [("ns1", 9876), ("ns2", 9876)]
        nameservers = Nameservers(world, addresses, cast(Connections, Links()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nameservers.body, *BROKERS)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with trio.fail_after(0.1):
            return await nameservers.body(*BROKERS)

    with Simulation() as simulation:
        assert simulation.run_process(simulation.start("client", ask)) == b"{}"


def test_single_silent_nameserver_is_named() -> None:
    """Its own limit ends together with that of the call, and only the call's was reported."""

    async def ask(world: World) -> list[Address]:
        nameservers = Nameservers(world, [("ns1", 9876)], cast(Connections, Links()))
        with pytest.raises(NoNameserver, match="no answer from ns1:9876 to request 106 within 3 s"):
            await nameservers.body(*BROKERS)
        return [*nameservers.unanswered]

    with Simulation() as simulation:
        silent = simulation.run_process(simulation.start("client", ask))
    assert silent == [("ns1", 9876)]


def test_node_without_nameservers_is_reported() -> None:
    """Its brokers do not ask any for routes."""

    async def ask(world: World) -> None:
        with pytest.raises(NoNameserver, match="no nameserver answered"):
            await Nameservers(world, [], cast(Connections, Links())).body(*BROKERS)

    with Simulation() as simulation:
        simulation.run_process(simulation.start("client", ask))


def test_call_ends_at_its_timeout() -> None:
    """A negative time-out ended the client with an error of trio's."""

    async def ask(world: World) -> bool:
        addresses = [("ns1", 9876), ("ns2", 9876)]
        nameservers = Nameservers(world, addresses, cast(Connections, Links()))
        with trio.CancelScope(deadline=trio.current_time() - 1.0) as scope:
            await nameservers.body(*BROKERS)
        return scope.cancelled_caught

    with Simulation() as simulation:
        assert simulation.run_process(simulation.start("client", ask))


class Nonsense(Links):
    """Nameservers: the first one's answer is unreadable, the others know nothing."""

    async def link(self, address: Address, *, timeout_s: float) -> Any:
        self.silent = self.silent or address
        return Says(b"{banana" if address == self.silent else b"{}")


class Says:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def request(self, command: Command, *, timeout_s: float) -> Command:
        return answer(command, ResponseCode.SUCCESS, body=self._body)


def test_unreadable_answer_counts_as_silence() -> None:
    """A broken route failed the call, though another nameserver worked."""

    async def ask(world: World) -> Any:
        code, request_name, _ = BROKERS
        both = Nameservers(world, [("ns1", 9876), ("ns2", 9876)], cast(Connections, Nonsense()))
        clusters = [await both.body(code, request_name, ClusterInfo.decode) for _ in range(2)]
        alone = Nameservers(world, [("ns1", 9876)], cast(Connections, Nonsense()))
        with pytest.raises(NoNameserver, match="ns1:9876 gives an answer that cannot be read: "):
            await alone.body(code, request_name, ClusterInfo.decode)
        return [one.broker_addr_table for one in clusters]

    with Simulation() as simulation:
        assert simulation.run_process(simulation.start("client", ask)) == [{}, {}]
