"""A node and clients that join, leave and fall silent: members of groups, and forbidden topics."""

from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
)
from rocketbed.wire.bodies_admin import ConsumerConnection, GroupList, ProducerConnection
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.headers import UnregisterClientRequest
from rocketbed.wire.headers_admin import DeleteGroupRequest
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.broker import SETTINGS, Peer

Code, Answer = RequestCode, ResponseCode
STEPS: Final = 40
NAMES: Final = ("a", "b", "c")
TOPICS: Final = ("T", "U")
EXPIRY_S: Final = 120.0
SCAN_S: Final = 10.0
"""A client that is silent for the expiry time is forgotten at the next scan."""
READ, WRITE = 4, 2
FORBIDDEN: Final = {"kept": {"U": READ}, "both": {"T": READ | WRITE, "U": WRITE}}
"""Permissions that a group lacks, by group and topic."""
OFF: Final = {"autoCreateSubscriptionGroup": "false", "autoCreateTopicEnable": "false"}
UNKNOWN: Final = "unknown"
"""A group that does not exist."""


def run_members(seed: int) -> str:
    return run_alone(_serve, seed, seed=f"members/{seed}", prepare=_forbid).digest


def _forbid(disk: SimDisk) -> None:
    """Write the group table of a broker that forbids groups some of their topics."""
    groups = {name: SubscriptionGroupConfig(group_name=name) for name in FORBIDDEN}
    table = SubscriptionGroupTable(subscription_group_table=groups, forbidden_table=dict(FORBIDDEN))
    disk.makedirs("/store/config")
    disk.replace_contents("/store/config/subscriptionGroup.json", table.encode())


async def _serve(world: World, seed: int) -> None:
    options = [*SETTINGS, *(f"{key}={value}" for key, value in OFF.items())]
    config, _ = make_config(settings_from_options(options))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_node, world, config))
        await Members(world, nursery, Random(f"members/{seed}")).run()
        nursery.cancel_scope.cancel()


class Members:
    """Clients, and what the node must know of them."""

    def __init__(self, world: World, nursery: trio.Nursery, random: Random) -> None:
        self._world, self._nursery, self._random = world, nursery, random
        self._peers: dict[str, Peer] = {}
        self._consumers: dict[str, None] = {}
        """Members of g."""
        self._producers: dict[str, None] = {}
        """Members of p."""
        self._newest: ConsumerData | None = None
        """Newest data of the consumer group."""
        self._queried: list[str] = []
        """Clients that were asked for their running info."""

    async def run(self) -> None:
        self._operator = await Peer.dialled(self._world, self._nursery)
        for topic in TOPICS:
            await self._operator.create(topic=topic)
        await self._operator.put_group(group_name="g")
        for _ in range(STEPS):
            steps = (self._consume, self._produce, self._leave, self._hang_up, self._query_running)
            await self._random.choice(steps)()
            await self._compare()
        await self._check_settings()
        await self._check_forbidden_topics()
        await self._check_silence()

    async def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            peer = self._peers[name] = await Peer.dialled(self._world, self._nursery)
            peer.handlers.inline[Code.GET_CONSUMER_RUNNING_INFO] = partial(self._running, name)
        return self._peers[name]

    def _running(self, name: str, command: Command, _connection: Connection) -> Command:
        self._queried.append(name)
        return answer(command, body=b'{"of":"%s"}' % name.encode())

    async def _heartbeat(self, name: str, *consumers: ConsumerData, produces: bool = False) -> None:
        producers = [ProducerData(group_name="p")] * produces
        data = HeartbeatData(
            client_id=name, consumer_data_set=list(consumers), producer_data_set=producers
        )
        await (await self._peer(name)).ask(Code.HEART_BEAT, {}, 0, data.encode())

    # --- actions

    async def _consume(self) -> None:
        """Send a heartbeat; members hear of a new one, unless all of them get all messages."""
        name = self._random.choice(NAMES)
        await self._peer(name)
        topics = self._random.sample(TOPICS, self._random.choice((1, 2)))
        self._newest = ConsumerData(
            group_name="g",
            consume_type=self._random.choice(("CONSUME_PASSIVELY", "CONSUME_ACTIVELY")),
            message_model=self._random.choice(("CLUSTERING", "BROADCASTING")),
            consume_from_where=self._random.choice(
                ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET")
            ),
            subscription_data_set=[SubscriptionData(topic=topic) for topic in topics],
        )
        before = {member: peer.notices for member, peer in self._peers.items()}
        is_new = name not in self._consumers
        await self._heartbeat(name, self._newest, ConsumerData(group_name=UNKNOWN))
        self._consumers[name] = None
        await trio.sleep(0.3)
        notified = {member for member in before if self._peers[member].notices > before[member]}
        if self._newest.message_model == "BROADCASTING":
            assert not notified, f"notices: {notified} of {name} in a broadcast"
        elif is_new:
            assert notified >= self._consumers.keys(), f"notices: only {notified} of {name}"

    async def _produce(self) -> None:
        name = self._random.choice(NAMES)
        await self._heartbeat(name, produces=True)
        self._producers[name] = None

    async def _leave(self) -> None:
        name, kind = self._random.choice(NAMES), self._random.choice(("producer", "consumer"))
        group = "p" if kind == "producer" else "g"
        header = UnregisterClientRequest(clientID=name, **{f"{kind}Group": group})
        await (await self._peer(name)).ask(Code.UNREGISTER_CLIENT, header.encode(), 0)
        (self._producers if kind == "producer" else self._consumers).pop(name, None)

    async def _hang_up(self) -> None:
        if self._peers:
            name = self._random.choice(sorted(self._peers))
            self._peers.pop(name).close()
            self._producers.pop(name, None)
            self._consumers.pop(name, None)
            await trio.sleep(0.2)

    async def _query_running(self) -> None:
        """Ask for the running info of a client, which its own connection answers."""
        name = self._random.choice(NAMES)
        queried = list(self._queried)
        is_member = name in self._consumers
        code = Answer.SUCCESS if is_member else Answer.CONSUMER_NOT_ONLINE
        fields = {"consumerGroup": "g", "clientId": name}
        reply = await self._operator.ask(Code.GET_CONSUMER_RUNNING_INFO, fields, code)
        if is_member:
            assert reply.body == b'{"of":"%s"}' % name.encode(), f"running: {reply.body!r}"
            queried.append(name)
        assert self._queried == queried, f"running: {self._queried} were asked, not {name}"

    # --- comparisons

    async def _compare(self) -> None:
        """Compare members, subscriptions and properties of the groups."""
        ask = self._operator.ask
        code = Answer.SUCCESS if self._consumers else Answer.CONSUMER_NOT_ONLINE
        reply = await ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}, code)
        topics = set[str]()
        if self._consumers:
            body, data = ConsumerConnection.decode(reply.body), self._newest
            assert data is not None
            clients = sorted(row.client_id for row in body.connection_set)
            assert clients == sorted(self._consumers), f"consumers: {clients}"
            topics = {subscription.topic for subscription in data.subscription_data_set}
            actual = (body.consume_type, body.message_model, body.consume_from_where,
                      set(body.subscription_table))  # fmt: skip
            expected = (data.consume_type, data.message_model, data.consume_from_where, topics)
            assert actual == expected, f"consumers: {actual}, expected {expected}"
        fields = {"consumerGroup": UNKNOWN}
        await ask(Code.GET_CONSUMER_CONNECTION_LIST, fields, Answer.CONSUMER_NOT_ONLINE)
        code = Answer.SUCCESS if self._producers else Answer.SYSTEM_ERROR
        reply = await ask(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}, code)
        if self._producers:
            rows = ProducerConnection.decode(reply.body).connection_set
            clients = sorted(row.client_id for row in rows)
            assert clients == sorted(self._producers), f"producers: {clients}"
        for topic in TOPICS:
            reply = await ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}, 0)
            groups = GroupList.decode(reply.body).group_list
            assert groups == ["g"] * (topic in topics), f"reads: {topic}: {groups}"
        reply = await ask(Code.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}, 0)
        subscribed = TopicList.decode(reply.body).topic_list
        assert sorted(subscribed) == sorted(topics), f"reads: {subscribed}, expected {topics}"

    # --- permissions and expiry

    async def _check_settings(self) -> None:
        """Refuse pulls by the settings of the broker and of the group."""
        peer, ask = await self._peer("a"), self._operator.ask
        plain: dict[str, Any] = {"consumerGroup": "g", "sysFlag": 0, "tags": None}
        for model, allows, code in (
            ("BROADCASTING", False, Answer.NO_PERMISSION),
            ("BROADCASTING", True, Answer.PULL_NOT_FOUND),
            ("CLUSTERING", False, Answer.PULL_NOT_FOUND),
        ):
            await self._operator.put_group(group_name="g", consume_broadcast_enable=allows)
            subscriptions = [SubscriptionData(topic="T")]
            data = ConsumerData(
                group_name="g", message_model=model, subscription_data_set=subscriptions
            )
            await self._heartbeat("a", data)
            await peer.pull(code, **plain)
        await ask(Code.UPDATE_BROKER_CONFIG, {}, 0, b"brokerPermission=2\n")
        await peer.pull(Answer.NO_PERMISSION, **plain)
        await ask(Code.UPDATE_BROKER_CONFIG, {}, 0, b"brokerPermission=6\n")
        await peer.pull(Answer.PULL_NOT_FOUND, **plain)

    async def _check_forbidden_topics(self) -> None:
        """Refuse pulls of forbidden topics, until the group is deleted and created anew."""
        peer = await self._peer("a")
        for recreates in (False, True):
            for group, topics in FORBIDDEN.items():
                if recreates:
                    header = DeleteGroupRequest(groupName=group, cleanOffset=True).encode()
                    await self._operator.ask(Code.DELETE_SUBSCRIPTIONGROUP, header, 0)
                    await self._operator.put_group(group_name=group)
                subscriptions = [SubscriptionData(topic=topic) for topic in TOPICS]
                data = ConsumerData(group_name=group, subscription_data_set=subscriptions)
                await self._heartbeat("a", data)
                for topic in TOPICS:
                    is_allowed = recreates or not topics.get(topic, 0) & READ
                    code = Answer.PULL_NOT_FOUND if is_allowed else Answer.NO_PERMISSION
                    plain: dict[str, Any] = {"consumerGroup": group, "sysFlag": 0, "tags": None}
                    await peer.pull(code, topic=topic, **plain)

    async def _check_silence(self) -> None:
        """Forget a client without heartbeats after two minutes, though it sends other requests."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        await trio.sleep(0.3)
        data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
        for name in ("a", "b"):
            await self._heartbeat(name, data)
        begin, silent = trio.current_time(), self._peers["a"]
        for _ in range(int(EXPIRY_S + 2 * SCAN_S) // 5):
            await trio.sleep(5)
            await silent.ask(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, 0)
            await self._heartbeat("b", data)
            code = Code.GET_CONSUMER_CONNECTION_LIST
            reply = await self._operator.ask(code, {"consumerGroup": "g"}, 0)
            members = ConsumerConnection.decode(reply.body).connection_set
            clients = {member.client_id for member in members}
            silent_s = trio.current_time() - begin
            assert "b" in clients, f"silence: {clients} after {silent_s} s"
            assert "a" in clients or silent_s > EXPIRY_S, f"silence: forgotten after {silent_s} s"
            is_late = silent_s > EXPIRY_S + SCAN_S + 1
            assert "a" not in clients or not is_late, f"silence: known after {silent_s} s"
