"""One node and clients that come, leave, say other things of themselves and fall silent: who is
told to be a member of what, and what a group may do that its operator has forbidden."""

import struct
from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigList,
    TopicList,
)
from rocketbed.wire.bodies_admin import (
    ConsumerConnection,
    GroupList,
    ProducerConnection,
    RequestMode,
)
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
"""A client that says nothing for so long is forgotten, at the next look."""
READ, WRITE = 4, 2
FORBIDDEN: Final = {"kept": {"U": READ}, "both": {"T": READ | WRITE, "U": WRITE}}
"""By group and topic the permissions that it has not."""
OFF: Final = {"autoCreateSubscriptionGroup": "false", "autoCreateTopicEnable": "false"}


def run_members(seed: int) -> str:
    return run_alone(_serve, seed, seed=f"members/{seed}", prepare=_forbids).digest


def _forbids(disk: SimDisk) -> None:
    """The file of a broker whose operator has forbidden groups some of their topics."""
    groups = {name: SubscriptionGroupConfig(group_name=name) for name in FORBIDDEN}
    table = SubscriptionGroupTable(subscription_group_table=groups, forbidden_table=dict(FORBIDDEN))
    disk.makedirs("/store/config")
    disk.replace_contents("/store/config/subscriptionGroup.json", table.encode())


async def _serve(world: World, seed: int) -> None:
    options = [*SETTINGS, *(f"{key}={value}" for key, value in OFF.items())]
    config, _ = make_config(settings_from_options(options))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_node, world, config))
        members = Members(world, nursery, Random(f"members/{seed}"))
        await members.run()
        nursery.cancel_scope.cancel()


class Members:
    """The clients, and what the node is to know of them."""

    def __init__(self, world: World, nursery: trio.Nursery, random: Random) -> None:
        self._world, self._nursery, self._random = world, nursery, random
        self._peers: dict[str, Peer] = {}
        self._consumers: dict[str, float] = {}
        """Members of g, and when each was heard last."""
        self._producers: dict[str, float] = {}
        """The same of p."""
        self._said: ConsumerData | None = None
        """The newest of the group."""
        self._asked: list[str] = []
        """Who was asked what it is doing."""

    async def run(self) -> None:
        self._operator = await Peer.dialled(self._world, self._nursery)
        await self._lists()
        await self._modes()
        for _ in range(STEPS):
            steps = (self._consume, self._produce, self._leave, self._hang_up, self._ask_running)
            await self._random.choice(steps)()
            await self._compare()
        await self._forbidden()
        await self._forbidden_topics()
        await self._silence()

    async def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            peer = self._peers[name] = await Peer.dialled(self._world, self._nursery)
            peer.handlers.inline[Code.GET_CONSUMER_RUNNING_INFO] = partial(self._says, name)
        return self._peers[name]

    def _says(self, name: str, command: Command, _connection: Connection) -> Command:
        self._asked.append(name)
        return answer(command, body=b'{"of":"%s"}' % name.encode())

    # --- what an operator makes, several at once

    async def _lists(self) -> None:
        """All of a list, or none."""
        ask = self._operator.ask
        topics = [TopicConfig(topic_name=name) for name in TOPICS]
        bad = [*topics, TopicConfig(topic_name="a b")]
        for wanted, code in ((bad, Answer.INVALID_PARAMETER), (topics, Answer.SUCCESS)):
            body = TopicConfigList(topic_config_list=wanted).encode()
            await ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, code, body)
            is_there = 0 if code == Answer.SUCCESS else Answer.TOPIC_NOT_EXIST
            for name in TOPICS:
                await ask(Code.GET_TOPIC_CONFIG, {"topic": name}, is_there)
        await ask(Code.GET_TOPIC_CONFIG, {"topic": "a b"}, Answer.TOPIC_NOT_EXIST)
        groups = [SubscriptionGroupConfig(group_name=name) for name in ("g", "other")]
        body = SubscriptionGroupList(group_config_list=groups).encode()
        await ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, 0, body)
        for name in ("g", "other"):
            await ask(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}, 0)
        wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({"group_name": ""}, "needs a name"),
            ({"group_name": "h", "retry_queue_nums": 1 << 20}, "queues at most"),
        )
        for changes, says in wrong:
            body = SubscriptionGroupConfig(**changes).encode()
            make = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            found = await ask(make, {}, Answer.SYSTEM_ERROR, body)
            assert says in (found.remark or ""), f"groups: {found.remark!r} for {says!r}"
        body = (await ask(Code.GET_TIMER_CHECK_POINT, {}, 0)).body
        now_ms, *rest = struct.unpack(">7q", body)
        late_ms = self._world.clock.wall_ms() - now_ms
        assert 0 <= late_ms < 1100 and now_ms % 1000 == 0, f"timer: {now_ms}"
        assert rest == [0] * 6, f"timer: {rest}, where nothing waits"

    async def _modes(self) -> None:
        for changes, code in (
            ({"topic": "%RETRY%g"}, Answer.NO_PERMISSION), ({"topic": "V"}, Answer.TOPIC_NOT_EXIST),
            ({"consumer_group": "none"}, Answer.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"mode": "POP"}, Answer.REQUEST_CODE_NOT_SUPPORTED),
            ({"mode": "PUSH"}, Answer.INVALID_PARAMETER),
        ):  # fmt: skip
            mode = RequestMode(**{"topic": "T", "consumer_group": "g", **changes})  # type: ignore[arg-type]
            await self._operator.ask(Code.SET_MESSAGE_REQUEST_MODE, {}, code, mode.encode())
        body = (await self._operator.ask(Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, 0)).body
        assert b"{}" in body, f"modes: {body!r} of refused ones"

    # --- what clients say

    async def _consume(self) -> None:
        name = self._random.choice(NAMES)
        peer = await self._peer(name)
        topics = self._random.sample(TOPICS, self._random.choice((1, 2)))
        self._said = ConsumerData(
            group_name="g",
            consume_type=self._random.choice(("CONSUME_PASSIVELY", "CONSUME_ACTIVELY")),
            message_model=self._random.choice(("CLUSTERING", "BROADCASTING")),
            consume_from_where=self._random.choice(
                ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET")
            ),
            subscription_data_set=[SubscriptionData(topic=topic) for topic in topics],
        )
        unknown = ConsumerData(group_name="nobody made it")
        before = {one: other.notices for one, other in self._peers.items()}
        is_new = name not in self._consumers
        data = HeartbeatData(client_id=name, consumer_data_set=[self._said, unknown])
        await peer.ask(Code.HEART_BEAT, {}, 0, data.encode())
        self._consumers[name] = trio.current_time()
        await trio.sleep(0.3)
        if self._said.message_model == "BROADCASTING":  # each has all, whoever comes
            told = [one for one, count in before.items() if self._peers[one].notices > count]
            assert not told, f"notices: {told} of {name}, who hears all"
        elif is_new:
            told = [one for one in self._consumers if self._peers[one].notices > before.get(one, 0)]
            assert len(told) == len(self._consumers), f"notices: {told} of {name}, a new one"

    async def _produce(self) -> None:
        name = self._random.choice(NAMES)
        data = HeartbeatData(client_id=name, producer_data_set=[ProducerData(group_name="p")])
        await (await self._peer(name)).ask(Code.HEART_BEAT, {}, 0, data.encode())
        self._producers[name] = trio.current_time()

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

    async def _ask_running(self) -> None:
        """A member is asked by its own connection; of another nothing is known."""
        name = self._random.choice(NAMES)
        before = list(self._asked)
        code = Answer.SUCCESS if name in self._consumers else Answer.CONSUMER_NOT_ONLINE
        fields = {"consumerGroup": "g", "clientId": name}
        found = await self._operator.ask(Code.GET_CONSUMER_RUNNING_INFO, fields, code)
        if code == Answer.SUCCESS:
            assert found.body == b'{"of":"%s"}' % name.encode(), f"running: {found.body!r}"
            before.append(name)
        assert self._asked == before, f"running: {self._asked} were asked, for {name}"

    # --- what is told of them

    async def _compare(self) -> None:
        ask = self._operator.ask
        code = Answer.SUCCESS if self._consumers else Answer.CONSUMER_NOT_ONLINE
        found = await ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}, code)
        if self._consumers:
            body, said = ConsumerConnection.decode(found.body), self._said
            assert said is not None
            ids = sorted(one.client_id for one in body.connection_set)
            assert ids == sorted(self._consumers), f"consumers: {ids} for {self._consumers}"
            topics = {one.topic for one in said.subscription_data_set}
            told = (body.consume_type, body.message_model, body.consume_from_where,
                    set(body.subscription_table))  # fmt: skip
            want = (said.consume_type, said.message_model, said.consume_from_where, topics)
            assert told == want, f"consumers: {told} for {want}"
        await ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "nobody made it"},
                  Answer.CONSUMER_NOT_ONLINE)  # fmt: skip
        code = Answer.SUCCESS if self._producers else Answer.SYSTEM_ERROR
        found = await ask(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}, code)
        if self._producers:
            rows = ProducerConnection.decode(found.body).connection_set
            ids = sorted(one.client_id for one in rows)
            assert ids == sorted(self._producers), f"producers: {ids} for {self._producers}"
        topics = {one.topic for one in self._said.subscription_data_set} if (
            self._consumers and self._said
        ) else set()  # fmt: skip
        for topic in TOPICS:
            found = await ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}, 0)
            groups = GroupList.decode(found.body).group_list
            assert groups == ["g"] * (topic in topics), f"reads: {topic}: {groups}"
        found = await ask(Code.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}, 0)
        told_topics = TopicList.decode(found.body).topic_list
        assert sorted(told_topics) == sorted(topics), f"reads: {told_topics} for {topics}"

    # --- what is forbidden, and what ends

    async def _forbidden(self) -> None:
        """By the settings of the broker and of the group."""
        peer, ask = await self._peer("a"), self._operator.ask
        for kind, code in (("SQL92", Answer.SYSTEM_ERROR), ("TAG", Answer.SUCCESS)):
            wanted = SubscriptionData(topic="T", expression_type=kind)
            body = CheckClientBody(client_id="a", group="g", subscription_data=wanted).encode()
            await ask(Code.CHECK_CLIENT_CONFIG, {}, code, body)
        plain: dict[str, Any] = {"consumerGroup": "g", "sysFlag": 0, "tags": None}
        for model, allows, code in (
            ("BROADCASTING", False, Answer.NO_PERMISSION),
            ("BROADCASTING", True, Answer.PULL_NOT_FOUND),
            ("CLUSTERING", False, Answer.PULL_NOT_FOUND),
        ):
            await self._operator.put_group(group_name="g", consume_broadcast_enable=allows)
            subscription = [SubscriptionData(topic="T")]
            said = ConsumerData(
                group_name="g", message_model=model, subscription_data_set=subscription
            )
            data = HeartbeatData(client_id="a", consumer_data_set=[said])
            await peer.ask(Code.HEART_BEAT, {}, 0, data.encode())
            await peer.pull(code, **plain)
        await ask(Code.UPDATE_BROKER_CONFIG, {}, 0, b"brokerPermission=2\n")
        await peer.pull(Answer.NO_PERMISSION, **plain)
        await ask(Code.UPDATE_BROKER_CONFIG, {}, 0, b"brokerPermission=6\n")
        await peer.pull(Answer.PULL_NOT_FOUND, **plain)

    async def _forbidden_topics(self) -> None:
        """A group that reads some of its topics; one that is made anew has no such rule."""
        peer = await self._peer("a")
        for makes_again in (False, True):
            for group, topics in FORBIDDEN.items():
                if makes_again:
                    gone = DeleteGroupRequest(groupName=group, cleanOffset=True).encode()
                    await self._operator.ask(Code.DELETE_SUBSCRIPTIONGROUP, gone, 0)
                    await self._operator.put_group(group_name=group)
                wanted = [SubscriptionData(topic=topic) for topic in TOPICS]
                said = ConsumerData(group_name=group, subscription_data_set=wanted)
                data = HeartbeatData(client_id="a", consumer_data_set=[said])
                await peer.ask(Code.HEART_BEAT, {}, 0, data.encode())
                for topic in TOPICS:
                    is_free = makes_again or not topics.get(topic, 0) & READ
                    code = Answer.PULL_NOT_FOUND if is_free else Answer.NO_PERMISSION
                    plain: dict[str, Any] = {"consumerGroup": group, "sysFlag": 0, "tags": None}
                    await peer.pull(code, topic=topic, **plain)

    async def _silence(self) -> None:
        """Who says nothing of itself for two minutes is forgotten, though it asks other things."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        await trio.sleep(0.3)
        quiet, loud = await self._peer("a"), await self._peer("b")
        said = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
        for name, peer in (("a", quiet), ("b", loud)):
            data = HeartbeatData(client_id=name, consumer_data_set=[said])
            await peer.ask(Code.HEART_BEAT, {}, 0, data.encode())
        began = trio.current_time()
        for _ in range(int(EXPIRY_S + 2 * SCAN_S) // 5):
            await trio.sleep(5)
            await quiet.ask(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, 0)
            data = HeartbeatData(client_id="b", consumer_data_set=[said])
            await loud.ask(Code.HEART_BEAT, {}, 0, data.encode())
            code = Code.GET_CONSUMER_CONNECTION_LIST
            found = await self._operator.ask(code, {"consumerGroup": "g"}, 0)
            ids = {one.client_id for one in ConsumerConnection.decode(found.body).connection_set}
            silent_s = trio.current_time() - began
            assert "b" in ids, f"silence: {ids} after {silent_s} s"
            assert "a" in ids or silent_s > EXPIRY_S, f"silence: forgotten after {silent_s} s"
            is_late = silent_s > EXPIRY_S + SCAN_S + 1
            assert "a" not in ids or not is_late, f"silence: known after {silent_s} s"
