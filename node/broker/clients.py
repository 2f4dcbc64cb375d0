"""Connected producers and consumer groups, by heartbeat (wire.md 6.2; 34, 35, 38, 40, 46).

A client is a connection that sent its id. It is forgotten when it unregisters, when its connection
ends, or after two minutes of silence; the remaining members of its consumer groups are notified at
once, so that they rebalance the queues.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.subscriptions import is_tag_type, tag_codes
from rocketbed.node.broker.topics import Topics
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer, request
from rocketbed.wire.headers import ConsumerGroupRequest, HeartbeatResponse, UnregisterClientRequest
from rocketbed.world.api import World

EXPIRY_S: Final = 120.0
"""A client without heartbeat for this long is forgotten (wire.md 13)."""
SCAN_S: Final = 10.0
BROADCASTING: Final = "BROADCASTING"
CLIENT_ID_MAX: Final = 255


@dataclass(slots=True)
class Client:
    client_id: str
    language: str
    version: int
    last_heartbeat: float
    """On trio's clock."""


@dataclass(slots=True)
class ConsumerGroup:
    """The connected members of a consumer group and its subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic; the whole group has the subscriptions of its latest heartbeat."""
    tag_codes: dict[str, frozenset[int] | None] = field(default_factory=dict)
    """By topic, the codes that the broker filters by; None lets everything pass."""
    fingerprint: int = 0
    """Of the latest heartbeat that had one (heartbeat version 2)."""

    def subscribe(self, subscriptions: list[SubscriptionData]) -> bool:
        """Replace the subscriptions; True if topics were added or removed."""
        changed = False
        for item in subscriptions:
            old = self.subscriptions.get(item.topic)
            if old is None or item.sub_version > old.sub_version:
                changed |= old is None
                self.subscriptions[item.topic] = item
                self.tag_codes[item.topic] = tag_codes(item)
        topics = {item.topic for item in subscriptions}
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic], self.tag_codes[topic]
            changed = True
        return changed


class Clients:
    """The connected clients of a broker."""

    def __init__(self, world: World, topics: Topics, groups: Groups) -> None:
        self._world = world
        self._topics = topics
        self._groups = groups
        self.consumers: dict[str, ConsumerGroup] = {}
        """By group name; a group without members is not here."""
        self.producers: dict[str, dict[Connection, Client]] = {}
        """By producer group."""
        self.on_scan: list[Callable[[], None]] = []
        """Called at each search for silent clients."""

    # --- requests

    def heartbeat(self, command: Command, connection: Connection) -> Command:
        """34: remember the client and its groups. Raises `BodyError`."""
        data = HeartbeatData.decode(command.body)
        if not data.client_id or len(data.client_id) > CLIENT_ID_MAX:
            return answer(
                command, ResponseCode.SYSTEM_ERROR, f"client id of {len(data.client_id)} characters"
            )
        client = Client(data.client_id, command.language, command.version, trio.current_time())
        is_v2 = data.heartbeat_fingerprint != 0
        changed = not is_v2
        for consumer in data.consumer_data_set:
            group = self.consumers.get(consumer.group_name)
            if is_v2 and group is not None:
                changed |= group.fingerprint not in (0, data.heartbeat_fingerprint)
            self._register_consumer(consumer, client, connection, data)
        for producer in data.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[connection] = client
        fields = HeartbeatResponse(supportsV2=True, subscriptionChanged=changed).encode()
        if command.language == "PYTHON":
            fields["rbMsgpack"] = "1"
        return answer(command, ResponseCode.SUCCESS, None, fields)

    def unregister(self, command: Command, connection: Connection) -> Command:
        """35: forget one group of a client. Raises `HeaderError`."""
        header = UnregisterClientRequest.decode(command.fields)
        if header.producerGroup:
            self._remove_producer(header.producerGroup, connection)
        if header.consumerGroup:
            self._remove_consumer(header.consumerGroup, connection)
        return answer(command, ResponseCode.SUCCESS, None, {})

    def consumer_list(self, command: Command, connection: Connection) -> Command:
        """38: ids of a consumer group's members. Raises `HeaderError`."""
        name = ConsumerGroupRequest.decode(command.fields).consumerGroup
        group = self.consumers.get(name)
        if group is None:
            remark = f"no consumer for this group, {name}"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        ids = list(dict.fromkeys(client.client_id for client in group.members.values()))
        body = ConsumerIdList(consumer_id_list=ids).encode()
        return answer(command, ResponseCode.SUCCESS, None, {}, body)

    def check_client(self, command: Command, connection: Connection) -> Command:
        """46: check that the broker supports the client's filter. Raises `BodyError`."""
        subscription = CheckClientBody.decode(command.body).subscription_data
        if subscription is not None and not is_tag_type(subscription.expression_type):
            return answer(
                command,
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by"
                f" {subscription.expression_type}",
            )
        return answer(command)

    # --- end of a connection

    def connection_closed(self, connection: Connection) -> None:
        """Forget everything about a connection."""
        for name in [name for name, members in self.producers.items() if connection in members]:
            self._remove_producer(name, connection)
        for name, group in list(self.consumers.items()):
            if connection in group.members:
                self._remove_consumer(name, connection)

    async def run(self) -> None:
        """Forget clients that went silent, until cancelled."""
        while True:
            await trio.sleep(SCAN_S)
            for callback in self.on_scan:
                callback()
            deadline = trio.current_time() - EXPIRY_S
            tables = [*self.producers.values(), *(g.members for g in self.consumers.values())]
            silent = {
                connection: None
                for members in tables
                for connection, client in members.items()
                if client.last_heartbeat < deadline
            }
            for connection in silent:
                self._world.log.info("clients.expired", peer=connection.remote_text)
                self.connection_closed(connection)

    # --- inside

    def _register_consumer(
        self,
        consumer: ConsumerData,
        client: Client,
        connection: Connection,
        data: HeartbeatData,
    ) -> None:
        config = self._groups.find_or_create(consumer.group_name)
        if config is None:
            return
        self._topics.create_retry(consumer.group_name, config.retry_queue_nums)
        group = self.consumers.setdefault(consumer.group_name, ConsumerGroup(consumer.group_name))
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        group.fingerprint = data.heartbeat_fingerprint
        changed = connection not in group.members
        group.members[connection] = client
        if not data.without_sub:
            changed |= group.subscribe(consumer.subscription_data_set)
        if changed:
            self._notify_members(group)

    def _remove_producer(self, name: str, connection: Connection) -> None:
        members = self.producers.get(name, {})
        members.pop(connection, None)
        if not members:
            self.producers.pop(name, None)

    def _remove_consumer(self, name: str, connection: Connection) -> None:
        group = self.consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        if not group.members:
            del self.consumers[name]
        self._notify_members(group)

    def _notify_members(self, group: ConsumerGroup) -> None:
        """Send 40 to every member: rebalance the queues."""
        config = self._groups.get(group.name)
        is_notified = config is None or config.notify_consumer_ids_changed_enable
        if not is_notified or group.message_model == BROADCASTING:
            return
        fields = ConsumerGroupRequest(consumerGroup=group.name).encode()
        for connection in group.members:
            connection.notify(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))
