"""Base of producers, consumers and administrators: connections, routes, heartbeats.

A client is entered with `async with`; its tasks live until the block ends. An error of the block is
raised as it is, not in an exception group, since the client's tasks are internal.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self

import trio

from rocketbed.client.connections import Connections, Link
from rocketbed.client.errors import ClientError, writing
from rocketbed.client.ids import UniqueKeys, client_id
from rocketbed.client.nameservers import Nameservers, parse_nameservers
from rocketbed.client.routes import Routes
from rocketbed.remoting.client import parse_address
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError, RequestTimeout
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from rocketbed.wire.command import Command, RequestCode, request
from rocketbed.wire.errors import ProtocolError, RocketbedError
from rocketbed.wire.headers import UnregisterClientRequest
from rocketbed.wire.headers_admin import BrokerMovedNotice
from rocketbed.world.api import Address, World

HEARTBEAT_S: Final = 30.0
"""Pause between heartbeats to every connected broker, seconds (wire.md 6.1)."""
HEARTBEAT_TIMEOUT_S: Final = 3.0
PROBE_S: Final = 1.0
"""Time, seconds, in which a broker that did not answer a request must answer a heartbeat."""
NO_ADDRESS: Final = "127.0.0.1"
"""Client's address in message ids before the first connection."""
GOODBYE_S: Final = 0.5
"""Longest wait of a closing client for its goodbye to brokers, seconds."""

Groups = Callable[[], tuple[list[ProducerData], list[ConsumerData]]]


def _no_groups() -> tuple[list[ProducerData], list[ConsumerData]]:
    return [], []


class Session:
    """Common part of a client. An async context manager."""

    def __init__(
        self,
        world: World | None,
        nameservers: str | Sequence[str],
        *,
        groups: Groups = _no_groups,
        handlers: Handlers | None = None,
    ) -> None:
        """`world` None is the real one; `groups` returns the content of heartbeats.

        `handlers`: answers to brokers' requests.
        """
        self.world = real() if world is None else world
        self.began_ms = self.world.clock.wall_ms()
        """Time at which the client was created; Unix, milliseconds."""
        self.connections = Connections(self.world, handlers, on_open=self._opened)
        own = Handlers(inline={RequestCode.RB_BROKER_MOVED: self._broker_moved})
        self._ns_connections = Connections(self.world, own)
        addresses = parse_nameservers(nameservers)
        self.nameservers = Nameservers(self.world, addresses, self._ns_connections)
        self.routes = Routes(self.world, self.nameservers, self._begin)
        self._groups = groups
        self._client_id = ""
        self._being_told: set[Address] = set()
        """Brokers to which a heartbeat is about to be sent."""
        self._keys: UniqueKeys | None = None
        self._keys_host = NO_ADDRESS
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self.nursery: trio.Nursery | None = None
        """Nursery of the client's own tasks."""

    @property
    def client_id(self) -> str:
        """Client's id for brokers."""
        if not self._client_id:
            self._client_id = client_id(self.world, self._local_host())
        return self._client_id

    def unique_key(self) -> str:
        """Return the id of a new message."""
        host = self._local_host()
        # Ids made before the first connection cannot contain the client's address.
        if self._keys is None or self._keys_host == NO_ADDRESS != host:
            self._keys, self._keys_host = UniqueKeys(self.world, host), host
        return self._keys.next()

    def _local_host(self) -> str:
        own = self.connections.local_host or self._ns_connections.local_host
        return own or NO_ADDRESS

    # --- life

    def check_entered(self) -> None:
        """Raise `ClientError` if the client was not entered."""
        if self._manager is None:
            _check_loop()
            raise ClientError("the client is not open: use it in `async with`")

    async def __aenter__(self) -> Self:
        if self._manager is not None:
            raise ClientError("a client can be entered only once; create a new one")
        _check_loop()
        self._manager = trio.open_nursery()
        self.nursery = await self._manager.__aenter__()
        self.connections.start(self.nursery)
        self._ns_connections.start(self.nursery)
        self.nursery.start_soon(self._heartbeat_forever)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._manager is not None
        assert self.nursery is not None
        if _is_cancelled(error):
            self._close()
            await self._manager.__aexit__(kind, error, traceback)
            return
        try:
            await self._say_goodbye()
        finally:
            self._close()
            self.nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)

    @property
    def is_closed(self) -> bool:
        """True once no requests can be sent."""
        return self.connections.is_closed

    def _close(self) -> None:
        self.connections.is_closed = self._ns_connections.is_closed = True

    async def last_words(
        self, error: BaseException | None, say: Callable[[], Awaitable[None]], limit_s: float
    ) -> None:
        """Give a client that ends by `error` `limit_s` seconds for its last requests, made by
        `say`. Raises what `say` raises.

        A cancellation, before or meanwhile, also ends the connections; others are opened for `say`.
        """
        if not _is_cancelled(error) and trio.current_effective_deadline() > trio.current_time():
            try:
                with trio.move_on_after(limit_s):
                    await say()
                return
            except BaseException as exc:
                if not _is_cancelled(exc):
                    raise
                await self._say_anew(say, limit_s)
                raise
        await self._say_anew(say, limit_s)

    async def _say_anew(self, say: Callable[[], Awaitable[None]], limit_s: float) -> None:
        for link in self.connections.open_links():
            self.connections.close(link.address)
        with trio.move_on_after(limit_s, shield=True):
            async with trio.open_nursery() as nursery:
                self.connections.start(nursery)
                await say()
                nursery.cancel_scope.cancel()

    async def _say_goodbye(self) -> None:
        producers, consumers = self._groups()
        requests = [
            UnregisterClientRequest(clientID=self.client_id, producerGroup=item.group_name)
            for item in producers
        ] + [
            UnregisterClientRequest(clientID=self.client_id, consumerGroup=item.group_name)
            for item in consumers
        ]
        with trio.move_on_after(GOODBYE_S, shield=True):
            async with trio.open_nursery() as nursery:
                for link in self.connections.open_links():
                    for header in requests:
                        command = request(RequestCode.UNREGISTER_CLIENT, header.encode())
                        nursery.start_soon(_quietly, link, command)

    def _begin(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        assert self.nursery is not None
        if not self.is_closed:
            self.nursery.start_soon(task, *arguments)

    # --- asking brokers

    async def ask(self, address: Address, command: Command, *, timeout_s: float) -> Command:
        """Send a request to a broker. Raises `RemotingError`, `BadMessage`.

        When no answer comes, the connection is probed, and closed if it is dead.
        """
        try:
            with writing():
                return await self.connections.request(address, command, timeout_s=timeout_s)
        except RequestTimeout:
            self.suspect(address)
            raise

    def suspect(self, address: Address) -> None:
        """Probe a connection that did not answer in time."""
        link = self.connections.existing(address)
        if link is not None and self.nursery is not None and not self.is_closed:
            self.nursery.start_soon(self._probe, link)

    async def _probe(self, link: Link) -> None:
        try:
            await link.request(self._heartbeat(), timeout_s=PROBE_S)
        except RemotingError as exc:
            self.world.log.info("client.connection_given_up", error=str(exc))
            link.connection.close(str(exc))

    # --- heartbeats

    async def heartbeat(self, address: Address) -> None:
        """Send a heartbeat with the client's groups to a broker, and wait for its answer. Raises
        `RemotingError`."""
        link = await self.connections.link(address)
        await link.request(self._heartbeat(), timeout_s=HEARTBEAT_TIMEOUT_S)

    def tell(self, address: Address) -> None:
        """Send a heartbeat to a broker without waiting for its answer; an unreachable broker is
        dialled by one task at a time."""
        if address not in self._being_told:
            self._being_told.add(address)
            self._begin(self._tell, address)

    async def _tell(self, address: Address) -> None:
        try:
            link = await self.connections.link(address)
        except RemotingError as exc:
            self.world.log.info("client.heartbeat_lost", error=str(exc))
            return
        finally:
            self._being_told.discard(address)
        await _quietly(link, self._heartbeat())

    def _heartbeat(self) -> Command:
        producers, consumers = self._groups()
        body = HeartbeatData(
            client_id=self.client_id, producer_data_set=producers, consumer_data_set=consumers
        )
        return request(RequestCode.HEART_BEAT, {}, body.encode())

    def _broker_moved(self, command: Command, _: Connection) -> None:
        """Close requests at the former master, which would wait in vain or for an answer that it
        may not give."""
        try:
            notice = BrokerMovedNotice.decode(command.raw_fields)
            former, address = parse_address(notice.former), parse_address(notice.address)
        except (ProtocolError, ValueError) as exc:
            self.world.log.warning("client.notice_unreadable", error=str(exc))
            return
        self.routes.move(notice.brokerName, address)
        self.connections.close(former)

    def _opened(self, link: Link) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(_quietly, link, self._heartbeat())

    async def _heartbeat_forever(self) -> None:
        while True:
            await trio.sleep(HEARTBEAT_S)
            for link in self.connections.open_links():
                try:
                    await link.request(self._heartbeat(), timeout_s=HEARTBEAT_TIMEOUT_S)
                except RemotingError as exc:
                    self.world.log.info("client.heartbeat_lost", error=str(exc))
                    link.connection.close(str(exc))


def real() -> World:
    """Return the real world, for programs that pass none."""
    from rocketbed.world.real import real_world

    return real_world("client")


async def _quietly(link: Link, command: Command) -> None:
    try:
        await link.request(command, timeout_s=HEARTBEAT_TIMEOUT_S)
    except RocketbedError:
        return


def _check_loop() -> None:
    if not trio.lowlevel.in_trio_task():
        raise ClientError(
            "this client runs on trio: import it from rocketbed.aio for asyncio, or from"
            " rocketbed.blocking for programs without an event loop"
        )


def _is_cancelled(error: BaseException | None) -> bool:
    """True if a block ends because it was cancelled, which the nursery has to see."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)
