"""A nameserver: answers brokers and clients from its tables (wire.md 2.4, 3).

All handlers but those that write the key-value file are plain functions: the tables are small and
nothing waits. A broker leaves the routes when it says so, when it is silent for too long, or at
once when the connection it registered on ends.
"""

from typing import Protocol

import trio

from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.routing.config import KEYS, NameserverConfig
from rocketbed.routing.errors import ConfigNotFound, RoutingError, TopicNotRouted
from rocketbed.routing.keyvalue import ORDER_NAMESPACE, KeyValueTable
from rocketbed.routing.registration import read_registration
from rocketbed.routing.table import DEFAULT_TIMEOUT_S, MASTER_ID, Registrant, RoutingTable
from rocketbed.wire.bodies import (
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    KvTable,
    MemberGroupBody,
    TopicList,
    TopicRouteData,
)
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer, request
from rocketbed.wire.encoding.json_dialect import dumps_standard
from rocketbed.wire.headers_admin import (
    AddPermissionResponse,
    BrokerHeartbeatRequest,
    BrokerIdentityRequest,
    BrokerMovedNotice,
    BrokerNameRequest,
    ClusterRequest,
    DataVersionResponse,
    DeleteTopicInNameserverRequest,
    GetRouteRequest,
    KvKeyRequest,
    KvValueResponse,
    MemberGroupRequest,
    NamespaceRequest,
    PutKvRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicRequest,
    WipeResponse,
)
from rocketbed.world.api import Address, World

STANDARD_JSON_VERSION = 401
"""From this client version on, integer keys of a route are quoted (wire.md 3.6)."""
SPEAKS_MSGPACK = {"rbMsgpack": "1"}
"""Tells a rocketbed client that it may switch to msgpack headers (design.md 2)."""
_HINT = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class Companion(Protocol):
    """A further service on a nameserver's port: the controller of failover."""

    def handlers(self) -> Handlers:
        """Return handlers for its own codes."""
        ...

    def on_close(self, connection: Connection) -> None:
        """Handle the end of a connection of the port."""
        ...

    async def run(self) -> None:
        """Run until cancelled, or until it can no longer serve."""
        ...


class Nameserver:
    """A nameserver. `run` serves until cancelled."""

    def __init__(
        self, world: World, config: NameserverConfig, companion: Companion | None = None
    ) -> None:
        self._world = world
        self._config = config
        self._companion = companion
        self.table = RoutingTable()
        self._masters: dict[tuple[str, str], str] = {}
        """Cluster and broker name -> address that registered last as its master, alive or not."""
        self._watching: dict[Connection, None] = {}
        """Connections that get a notice when that changes."""
        self.key_values = KeyValueTable(world, config.kv_path)
        handlers = self._handlers()
        if companion is not None:
            handlers = handlers.joined(companion.handlers())
        self.server = Server(world, (config.host, config.port), handlers, on_close=self._on_close)

    async def run(self, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until a stop is requested; logs its address. Raises `OSError`, `RoutingError`."""
        self.key_values.load()
        async with trio.open_nursery() as nursery:
            address = await nursery.start(self.server.run)
            nursery.start_soon(self._scan)
            if self._companion is not None:
                nursery.start_soon(self._companion.run)
            self._world.log.info("routing.serving", address=f"{address[0]}:{address[1]}")
            task_status.started(address)
            await self._world.process.stop_requested.wait()
            nursery.cancel_scope.cancel()

    async def _scan(self) -> None:
        """Take silent brokers off the routes."""
        while True:
            await trio.sleep(self._config.scan_interval_ms / 1000)
            for cluster, address in self.table.expired(trio.current_time()):
                self._unregister(cluster, address, "silent for too long")

    def _on_close(self, connection: Connection) -> None:
        self._watching.pop(connection, None)
        for cluster, address in self.table.on_link(connection):
            self._unregister(cluster, address, "its connection ended")
        if self._companion is not None:
            self._companion.on_close(connection)

    def _unregister(self, cluster: str, address: str, why: str) -> None:
        name = self.table.unregister(cluster, address)
        if name is not None:
            self._world.log.info("routing.broker_gone", broker=name, address=address, why=why)

    def _handlers(self) -> Handlers:
        return Handlers(
            inline={
                RequestCode.REGISTER_BROKER: self._register,
                RequestCode.UNREGISTER_BROKER: self._unregister_broker,
                RequestCode.QUERY_DATA_VERSION: self._query_data_version,
                RequestCode.BROKER_HEARTBEAT: self._heartbeat,
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
                RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
                RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
                RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
                RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
                RequestCode.GET_UNIT_TOPIC_LIST: self._no_topics,
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._no_topics,
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._no_topics,
                RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
                RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
                RequestCode.GET_KV_CONFIG: self._get_kv,
                RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
                RequestCode.GET_NAMESRV_CONFIG: self._get_config,
                RequestCode.RB_READINESS: lambda command, _: answer(command),
                RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            },
            spawned={
                RequestCode.PUT_KV_CONFIG: self._put_kv,
                RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            },
        )

    # Brokers

    def _register(self, command: Command, connection: Connection) -> Command:
        header = RegisterBrokerRequest.decode(command.raw_fields)
        topics = read_registration(header, command.body)
        timeout_ms = header.heartbeatTimeoutMillis
        registrant = Registrant(
            cluster=header.clusterName,
            broker_name=header.brokerName,
            broker_id=header.brokerId,
            address=header.brokerAddr,
            ha_address=header.haServerAddr,
            timeout_s=timeout_ms / 1000 if timeout_ms else DEFAULT_TIMEOUT_S,
            acting_master=header.enableActingMaster,
            zone=header.zoneName,
        )
        is_new = (registrant.cluster, registrant.address) not in self.table.live
        result = self.table.register(registrant, topics, now_s=trio.current_time(), link=connection)
        if is_new:
            self._world.log.info(
                "routing.broker_registered",
                broker=registrant.broker_name,
                id=registrant.broker_id,
                address=registrant.address,
                topics=len(topics.topic_config_table),
            )
        self._note_master(registrant)
        fields = RegisterBrokerResponse(
            haServerAddr=result.ha_address, masterAddr=result.master_address
        ).encode()
        orders = self.key_values.namespace(ORDER_NAMESPACE)
        body = b""
        if orders and self._config.return_order_config:
            body = KvTable(table=orders).encode()
        return answer(command, fields=fields, body=body)

    def _note_master(self, registrant: Registrant) -> None:
        """Notify the watching connections if a broker name has another master than before."""
        broker, key = (
            self.table.brokers.get(registrant.broker_name),
            (registrant.cluster, registrant.broker_name),
        )
        address = broker.broker_addrs.get(MASTER_ID) if broker is not None else None
        if address is None or address == (former := self._masters.get(key)):
            return
        self._masters[key] = address
        if former is not None:
            self._world.log.info(
                "routing.master_moved", broker=registrant.broker_name, address=address
            )
            notice = BrokerMovedNotice(
                brokerName=registrant.broker_name, former=former, address=address
            )
            command = request(RequestCode.RB_BROKER_MOVED, notice.encode())
            for connection in list(self._watching):
                connection.notify(command)

    def _unregister_broker(self, command: Command, _: Connection) -> Command:
        header = BrokerIdentityRequest.decode(command.raw_fields)
        self._unregister(header.clusterName, header.brokerAddr, "it said so")
        return answer(command)

    def _query_data_version(self, command: Command, _: Connection) -> Command:
        header = BrokerIdentityRequest.decode(command.raw_fields)
        stored = self.table.data_version(header.clusterName, header.brokerAddr)
        self.table.touch(header.clusterName, header.brokerAddr, now_s=trio.current_time())
        changed = stored is None or stored != DataVersion.decode(command.body)
        fields = DataVersionResponse(changed=changed).encode()
        return answer(command, fields=fields, body=stored.encode() if stored else b"")

    def _heartbeat(self, command: Command, _: Connection) -> Command:
        header = BrokerHeartbeatRequest.decode(command.raw_fields)
        self.table.touch(header.clusterName, header.brokerAddr, now_s=trio.current_time())
        return answer(command)

    def _register_topic(self, command: Command, _: Connection) -> Command:
        header = TopicRequest.decode(command.raw_fields)
        self.table.put_queues(header.topic, TopicRouteData.decode(command.body).queue_datas)
        return answer(command)

    # Clients

    def _route(self, command: Command, connection: Connection) -> Command:
        header = GetRouteRequest.decode(command.raw_fields)
        if header.rbNotify:
            self._watching[connection] = None
        brokers, queues = self.table.route(header.topic, acting_master=self._config.acting_master)
        if not brokers:
            raise TopicNotRouted(
                f"No topic route info in name server for the topic: {header.topic}{_HINT}"
            )
        order = None
        if self._config.order_messages:
            order = self.key_values.namespace(ORDER_NAMESPACE).get(header.topic)
        route = TopicRouteData(broker_datas=brokers, queue_datas=queues, order_topic_conf=order)
        standard = command.version >= STANDARD_JSON_VERSION or header.acceptStandardJsonOnly
        body = dumps_standard(route.to_json()) if standard else route.encode()
        return answer(command, fields=SPEAKS_MSGPACK, body=body)

    def _cluster_info(self, command: Command, _: Connection) -> Command:
        info = ClusterInfo(
            broker_addr_table=self.table.brokers,
            cluster_addr_table={name: list(names) for name, names in self.table.clusters.items()},
        )
        return answer(command, body=info.encode())

    def _member_group(self, command: Command, _: Connection) -> Command:
        header = MemberGroupRequest.decode(command.raw_fields)
        broker = self.table.brokers.get(header.brokerName)
        group = BrokerMemberGroup(cluster=header.clusterName, broker_name=header.brokerName)
        if broker is not None and broker.cluster == header.clusterName:
            group.broker_addrs = dict(broker.broker_addrs)
        return answer(command, body=MemberGroupBody(broker_member_group=group).encode())

    def _all_topics(self, command: Command, _: Connection) -> Command:
        if not self._config.all_topic_list:
            return answer(command, ResponseCode.SYSTEM_ERROR, "disable")
        return answer(command, body=TopicList(topic_list=list(self.table.topics)).encode())

    def _topics_of_cluster(self, command: Command, _: Connection) -> Command:
        header = ClusterRequest.decode(command.raw_fields)
        return answer(
            command, body=TopicList(topic_list=self.table.topics_of(header.cluster)).encode()
        )

    def _system_topics(self, command: Command, _: Connection) -> Command:
        names = [*self.table.clusters, *self.table.brokers]
        addresses = [a for b in self.table.brokers.values() for a in b.broker_addrs.values()]
        topics = TopicList(topic_list=names, broker_addr=addresses[0] if addresses else None)
        return answer(command, body=topics.encode())

    def _no_topics(self, command: Command, _: Connection) -> Command:
        return answer(command, body=TopicList().encode())

    # Administration

    def _wipe(self, command: Command, _: Connection) -> Command:
        header = BrokerNameRequest.decode(command.raw_fields)
        count = self.table.wipe_write(header.brokerName)
        self._world.log.info("routing.write_wiped", broker=header.brokerName, topics=count)
        return answer(command, fields=WipeResponse(wipeTopicCount=count).encode())

    def _add_write(self, command: Command, _: Connection) -> Command:
        header = BrokerNameRequest.decode(command.raw_fields)
        count = self.table.add_write(header.brokerName)
        return answer(command, fields=AddPermissionResponse(addTopicCount=count).encode())

    def _delete_topic(self, command: Command, _: Connection) -> Command:
        header = DeleteTopicInNameserverRequest.decode(command.raw_fields)
        self.table.delete_topic(header.topic, header.clusterName)
        return answer(command)

    async def _put_kv(self, command: Command, _: Connection) -> Command:
        header = PutKvRequest.decode(command.raw_fields)
        await self.key_values.put(header.namespace, header.key, header.value)
        return answer(command)

    async def _delete_kv(self, command: Command, _: Connection) -> Command:
        header = KvKeyRequest.decode(command.raw_fields)
        await self.key_values.delete(header.namespace, header.key)
        return answer(command)

    def _get_kv(self, command: Command, _: Connection) -> Command:
        header = KvKeyRequest.decode(command.raw_fields)
        value = self.key_values.get(header.namespace, header.key)
        return answer(command, fields=KvValueResponse(value=value).encode())

    def _kv_list(self, command: Command, _: Connection) -> Command:
        header = NamespaceRequest.decode(command.raw_fields)
        table = self.key_values.namespace(header.namespace)
        if not table:
            raise ConfigNotFound(f"No config item, Namespace: {header.namespace}")
        return answer(command, body=KvTable(table=table).encode())

    def _get_config(self, command: Command, _: Connection) -> Command:
        lines = [
            f"{key}={_text(getattr(self._config, name))}\n" for key, name in sorted(KEYS.items())
        ]
        return answer(command, body="".join(lines).encode())

    def _update_config(self, command: Command, _: Connection) -> Command:
        raise RoutingError(
            "a rocketbed nameserver reads its settings at the start only: change the file or the"
            " --set options and start it again"
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
