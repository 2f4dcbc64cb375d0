"""Wiring: a world and a configuration become a running node.

Order of a start: tables, store (lock and recovery), tables again under the lock, broker, ports,
services. A stop reverses that and leaves the directory clean; a store that failed ends
everything at once and leaves `abort` in place.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import trio

from rocketbed.node.broker.broker import Broker, Tables
from rocketbed.node.broker.registration import Registration
from rocketbed.node.config.changes import own_copy
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.connections import connection_limits, warn_of_few
from rocketbed.node.failover import Failover, Replica
from rocketbed.node.readiness import Readiness
from rocketbed.node.replication import Replication
from rocketbed.node.store.errors import StoreError
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.server import Server
from rocketbed.replication.identity import ReplicaFile
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.codes import RequestCode
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import World


class NodeError(RocketbedError):
    """A node that cannot start; the message says what to change."""


class Service(Protocol):
    """Something that runs beside the broker: replication, registration."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; `task_status.started()` once other services can rely on it."""
        ...


class Node:
    """The parts of a running node, for its services and for tests."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        tables: Tables,
        replica: Replica | None = None,
    ):
        """`replica` has begun its incarnation; None outside of groups with failover."""
        self.world = world
        self.config = config
        self.store = store
        self.tables = tables
        waits_for_slaves = config.broker_role == "SYNC_MASTER" and config.in_sync_replicas > 1
        if replica is not None:
            waits_for_slaves = True
        self.confirmed: Watermark | None = Watermark() if waits_for_slaves else None
        """Offset up to which enough copies hold the log for an answer; replication raises it. None:
        answers do not wait."""
        self.broker = Broker(world, config, store, tables, confirmed=self.confirmed)
        host = config.bind_address
        visible = replica.confirmed if replica is not None else None
        self.replication = Replication(
            world, config, store, tables, confirmed=self.confirmed, visible=visible
        )
        self.broker.attach_replication(
            self.replication.runtime_info, lambda: self.replication.is_following
        )
        self.replication.on_cut.append(self.broker.after_cut)
        self.registration = Registration(world, config, tables.topics, self.replication.set_master)
        if self.replication.slave is not None:
            self.replication.slave.on_mistaken = self.registration.try_another
        ready = Readiness(world, config, store, self.replication, self.registration)
        self.broker.handlers.inline[RequestCode.RB_READINESS] = ready.handle
        self.broker.info.not_ready = ready.reason
        self.failover: Failover | None = None
        """Member of a group with failover, else None."""
        if replica is not None and self.confirmed is not None:
            self.failover = Failover(world, config, store, replica, acknowledged=self.confirmed)
            self.failover.attach(self.broker, self.replication, self.registration)
            ready.failover_trouble = self.failover.trouble
        self.servers = [
            Server(
                world,
                (host, config.listen_port),
                self.broker.handlers,
                on_close=self.broker.connection_closed,
                limit=connection_limits(world, config).clients,
            )
        ]
        """The main port, then the one two below it (wire.md 1.10)."""
        if config.listen_port > 2:
            self.servers.append(
                Server(
                    world,
                    (host, config.listen_port - 2),
                    self.broker.fast_handlers,
                    on_close=self.broker.connection_closed,
                    limit=connection_limits(world, config).fast,
                )
            )


def make_services(node: Node) -> Sequence[Service]:
    """Return the services that the configuration asks for, in the order of their start after the
    ports."""
    if node.failover is not None:
        return (node.replication, node.failover, node.registration)
    return (node.replication, node.registration)


async def run_node(
    world: World,
    config: NodeConfig,
    *,
    task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node until `world.process.stop_requested`; logs when it serves.

    Raises `RocketbedError`: `NodeError`, `ConfigFileError` or the store's errors. After
    `StoreFailed` the process must end: the directory is left for recovery.
    """
    began = trio.current_time()
    config = await _with_store_host(world, own_copy(config))
    tables = Tables(world, config)
    tables.load()
    replica = Replica(world, config) if config.replica else None
    confirmed = None if replica is None else replica.confirmed
    store = await MessageStore.open(world, config.store, tables.topics, confirmed)
    failure: RocketbedError | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            try:
                tables.load()
                for remark in tables.topics.remarks(store.queue_keys()):
                    world.log.warning("topics.remark", finding=remark)
                tables.topics.adopt(store.queue_keys())
                tables.modes.warn_of_pop()
                if not config.is_slave:
                    tables.offsets.bring_down(store.queue_max)
                await tables.save()
                if replica is not None:
                    await replica.begin(store)
                else:
                    await ReplicaFile(world, config.store.root).leave()
                node = Node(world, config, store, tables, replica)
                if node.broker.table_log is not None:
                    node.broker.table_log.replay()
                await _serve(node, began, task_status)
                await node.broker.stop()
            except* RocketbedError as group:
                failure = _first(group)
            if isinstance(failure, StoreError):
                # An error of a single unreadable record is not a failure of the store itself.
                nursery.cancel_scope.cancel()
            else:
                await store.close()
                if replica is not None and failure is None:
                    await replica.identity.stopped()
    except* StoreError as group:
        failure = _first(group)
    if failure is not None:
        raise failure


async def check_node(world: World, config: NodeConfig) -> list[str]:
    """Return, as sentences, what a start would find and do; changes nothing.

    Raises what a start would raise for its tables and its store.
    """
    config = await _with_store_host(world, config)
    tables = Tables(world, config)
    tables.load()
    return await MessageStore.check(world, config.store, tables.topics)


async def _with_store_host(world: World, config: NodeConfig) -> NodeConfig:
    """Return the settings with an IP address for the records, which hold no name; clients resolve
    `brokerIP1` themselves. Raises `NodeError` for a name without an address."""
    try:
        ipaddress.ip_address(config.ip1)
    except ValueError:
        try:
            addresses = await world.network.resolve(config.ip1)
        except OSError as exc:
            raise NodeError(f"brokerIP1={config.ip1}: this name has no address: {exc}") from exc
        # As Java does, which returns IPv4 addresses first.
        host = min(addresses, key=lambda address: ":" in address)
        return replace(config, store=replace(config.store, store_host=host))
    return config


async def _serve(node: Node, began: float, task_status: trio.TaskStatus[Node]) -> None:
    """Keep the ports open until the stop. Raises `NodeError` when a port is taken, `StoreError` as
    soon as the store has failed."""
    world, config = node.world, node.config
    warn_of_few(world, config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.store.wait_failed)
        nursery.start_soon(node.broker.run)
        for server in node.servers:
            try:
                await nursery.start(server.run)
            except OSError as exc:
                nursery.cancel_scope.cancel()
                raise NodeError(
                    f"{exc.strerror or exc} (listenPort, and the port two below it)"
                ) from exc
        for service in make_services(node):
            await nursery.start(service.run)
        world.log.info(
            "node.serving",
            name=config.broker_name,
            id=config.broker_id,
            role=config.broker_role,
            port=node.servers[0].address[1],
            seconds=round(trio.current_time() - began, 3),
        )
        task_status.started(node)
        await world.process.stop_requested.wait()
        world.log.info("node.stopping", name=config.broker_name)
        world.mark("node.stopping")
        if node.failover is not None:
            await node.failover.stop()
        nursery.cancel_scope.cancel()


def _first(group: BaseExceptionGroup[RocketbedError]) -> RocketbedError:
    """Return the first error of a group, however deep."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
