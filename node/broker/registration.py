"""Registration at the nameservers: this node's address and its topics (wire.md 3.2, 3.3).

One task and one connection for each nameserver, since a nameserver takes a broker off the routes
when the connection of its registration ends. The whole topic table is sent each time, also when one
topic changed: a first registration with a single topic would hide all others (trap 3). A slave
learns its master from the answer, and asks every second whether it changed: a promoted slave would
otherwise stay unknown to the remaining slaves for up to 30 s.
"""

import zlib
from collections.abc import Callable
from dataclasses import replace

import trio

from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.remoting.client import dial, parse_address
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import (
    PERM_READ,
    PERM_WRITE,
    MemberGroupBody,
    RegisterBrokerBody,
    TopicConfigTable,
)
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.headers_admin import (
    MemberGroupRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from rocketbed.wire.message import CRC_MASK
from rocketbed.world.api import Address, World

RETRY_S = 0.5
"""Pause after a failed try; doubles up to `RETRY_MAX_S`."""
RETRY_MAX_S = 5.0
MASTER_ID = 0
WATCH_S = 1.0
"""Pause between a slave's questions for the master (a few bytes, code 901)."""

SetMaster = Callable[[Address | None, Address | None], None]


class Registration:
    """Service of a node: keeps it registered at every nameserver.

    A stop closes the connections, which takes the node off the routes at once.
    """

    def __init__(
        self, world: World, config: NodeConfig, topics: Topics, set_master: SetMaster
    ) -> None:
        """`set_master` gets the addresses of a slave's master: replication and remoting."""
        self._world = world
        self._config = config
        self._topics = topics
        self._set_master = set_master
        self._changed: dict[Address, trio.Event] = {at: trio.Event() for at in config.nameservers}
        self.registered: dict[Address, bool] = dict.fromkeys(config.nameservers, False)
        """True for each nameserver that has our registration."""
        self._masters: dict[Address, tuple[str, str]] = {}
        """Replication and remoting address of a slave's master, as each nameserver gave them
        last."""
        self._followed = ("", "")
        """Addresses that were last passed to `set_master`."""
        self.epoch: Callable[[], int] = lambda: 0
        """Epoch in a group with failover: routes use the broker of the highest one."""
        topics.on_change.append(lambda _: self.announce())

    def announce(self) -> None:
        """Register again, at once and everywhere."""
        for event in self._changed.values():
            event.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            for address in self._config.nameservers:
                nursery.start_soon(self._keep_registered, address)

    async def _keep_registered(self, address: Address) -> None:
        pause_s = RETRY_S
        while True:
            try:
                connection = await dial(self._world, address)
            except RemotingError as exc:
                self._log_failure(address, str(exc))
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.run)
                    if await self._serve(connection, address):
                        pause_s = RETRY_S
                    connection.close()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _log_failure(self, address: Address, error: str) -> None:
        self.registered[address] = False
        self._world.log.warning(
            "broker.not_registered", nameserver=f"{address[0]}:{address[1]}", error=error
        )

    async def _serve(self, connection: Connection, address: Address) -> bool:
        """Register on one connection until it ends; True if it worked at least once."""
        worked = False
        ended = trio.Event()
        connection.on_close.append(lambda _: ended.set())
        try:
            while not ended.is_set():
                self._changed[address] = trio.Event()
                answer = await connection.request(
                    self._registration(), timeout_s=self._config.register_timeout_ms / 1000
                )
                if answer.code != ResponseCode.SUCCESS:
                    self._log_failure(address, f"code {answer.code}: {answer.remark}")
                    return worked
                worked = True
                self._accept(address, answer)
                await self._wait_for_change(connection, address, ended)
        except RemotingError as exc:
            self._log_failure(address, str(exc))
        self.registered[address] = False
        return worked

    async def _wait_for_change(
        self, connection: Connection, address: Address, ended: trio.Event
    ) -> None:
        """Wait until the period is over, a topic or the master changed, or the connection ended."""

        async def cancel_after(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        async def cancel_for_master() -> None:
            await self._watch_master(connection, address)
            nursery.cancel_scope.cancel()

        with trio.move_on_after(self._config.register_period_ms / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_after, ended)
                nursery.start_soon(cancel_after, self._changed[address])
                if self._config.is_slave and not self._config.replica:
                    nursery.start_soon(cancel_for_master)

    async def _watch_master(self, connection: Connection, address: Address) -> None:
        """Return when this nameserver names another master than before.

        A nameserver that does not know the request (4.x) gets our registration again instead, every
        second until it names a master.
        """
        config = self._config
        header = MemberGroupRequest(clusterName=config.cluster_name, brokerName=config.broker_name)
        while True:
            await trio.sleep(WATCH_S)
            named = self._masters.get(address, ("", ""))[1]
            try:
                answer = await connection.request(
                    request(RequestCode.GET_BROKER_MEMBER_GROUP, header.encode())
                )
                if answer.code != ResponseCode.SUCCESS:
                    if not named:
                        return
                    await trio.sleep_forever()
                group = MemberGroupBody.decode(answer.body).broker_member_group
            except (RemotingError, ProtocolError):
                continue
            if group.broker_addrs.get(MASTER_ID, named) != named:
                return

    def _registration(self) -> Command:
        """Return the request 103 with the whole table."""
        config = self._config
        body = RegisterBrokerBody(topic_config_serialize_wrapper=self._routed_topics()).encode()
        header = RegisterBrokerRequest(
            brokerName=config.broker_name,
            brokerAddr=config.address,
            clusterName=config.cluster_name,
            haServerAddr=config.ha_address,
            brokerId=config.broker_id,
            enableActingMaster=False,
            compressed=False,
            bodyCrc32=zlib.crc32(body) & CRC_MASK,
        )
        return request(RequestCode.REGISTER_BROKER, header.encode(), body)

    def _routed_topics(self) -> TopicConfigTable:
        """Return the table with permissions reduced to the broker's own (wire.md 3.3)."""
        table = self._topics.body()
        table.data_version = replace(table.data_version, state_version=self.epoch())
        mask = self._config.broker_permission
        if mask & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE:
            table.topic_config_table = {
                name: replace(topic, perm=topic.perm & mask)
                for name, topic in table.topic_config_table.items()
            }
        return table

    def _accept(self, address: Address, answer: Command) -> None:
        if not self.registered[address]:
            self._world.log.info("broker.registered", nameserver=f"{address[0]}:{address[1]}")
        self.registered[address] = True
        response = RegisterBrokerResponse.decode(answer.raw_fields)
        if (
            not self._config.is_slave
            or self._config.replica
            or not response.haServerAddr
            or not response.masterAddr
        ):
            return
        named = (response.haServerAddr, response.masterAddr)
        if self._masters.get(address) == named:
            return  # or a nameserver that is out of date would win over another every 30 s
        self._masters[address] = named
        self._follow(named)

    def try_another(self) -> None:
        """Follow the master of another nameserver, since the node that we follow says that it is a
        slave.

        The nameserver that named it may be down, and never correct itself.
        """
        masters = list(dict.fromkeys(self._masters.values()))
        if len(masters) > 1:
            self._follow(masters[(masters.index(self._followed) + 1) % len(masters)])

    def _follow(self, named: tuple[str, str]) -> None:
        self._followed = named
        replication, remoting = named
        try:
            master = parse_address(replication), parse_address(remoting)
        except ValueError as exc:
            self._world.log.warning("broker.master_address_unreadable", error=str(exc))
            return
        self._world.log.info("broker.master_found", address=remoting)
        self._set_master(*master)
