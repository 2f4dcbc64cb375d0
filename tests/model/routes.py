"""A nameserver beside a model of its tables (wire.md 3.2 to 3.8).

Scripted brokers register, change, leave and fall silent; each answer must be that of the model.
"""

from random import Random
from typing import Any, Final

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import ConnectionLost
from rocketbed.routing.config import read_settings
from rocketbed.routing.nameserver import Nameserver
from rocketbed.wire.bodies import (
    ClusterInfo,
    DataVersion,
    KvTable,
    MemberGroupBody,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from rocketbed.wire.command import VERSION, Command, RequestCode, ResponseCode, request
from rocketbed.wire.headers_admin import (
    BrokerHeartbeatRequest,
    BrokerIdentityRequest,
    BrokerNameRequest,
    ClusterRequest,
    DeleteTopicInNameserverRequest,
    GetRouteRequest,
    MemberGroupRequest,
    PutKvRequest,
    RegisterBrokerRequest,
    TopicRequest,
)
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.routes_model import ACTING, CLUSTERS, Live, Model

Code: Final = RequestCode
SETTINGS: Final = {
    "bindAddress": "0.0.0.0",
    "listenPort": "9876",
    "scanNotActiveBrokerInterval": "1000",
    "orderMessageEnable": "true",
    "supportActingMaster": "true",
}
PLACE: Final = ("10.0.0.1", 9876)
TOPICS: Final = ("T", "U", "V")
ORDER: Final = "ORDER_TOPIC_CONFIG"
TIMEOUTS_S: Final = (20.0, 120.0)
"""The second is the default, which is not sent."""
LATE_S: Final = 3.0
"""Longer than a scan and an answer take."""
STEPS: Final = 150


def run_routes(seed: int) -> str:
    return run_alone(_serve, seed, seed=f"routes/{seed}").digest


async def _serve(world: World, seed: int) -> None:
    config, _ = read_settings(SETTINGS)
    async with trio.open_nursery() as nursery:
        await nursery.start(Nameserver(world, config).run)
        await _Brokers(world, nursery, Random(f"routes/{seed}")).run()
        nursery.cancel_scope.cancel()


class _Brokers:
    """Brokers and a client with a connection each."""

    def __init__(self, world: World, nursery: trio.Nursery, random: Random) -> None:
        self._world = world
        self._nursery = nursery
        self._random = random
        self._links: dict[str, Connection] = {}
        self._model = Model()
        self._counter = 0

    async def run(self) -> None:
        acts = {
            self._register: 10, self._repeat: 5, self._unregister: 2, self._touch: 4,
            self._close: 2, self._permit: 3, self._delete: 2, self._announce: 2,
            self._order: 1, self._pause: 4,
        }  # fmt: skip
        for act in self._random.choices(list(acts), list(acts.values()), k=STEPS):
            await act()
            await self._expire()
            await self._compare(act.__name__)

    async def _ask(
        self, code: int, fields: dict[str, str] | None, body: bytes = b"", *,
        by: str = "client", version: int = VERSION,
    ) -> Command:  # fmt: skip
        while True:
            link = self._links.get(by)
            if link is None:
                link = self._links[by] = await dial(self._world, PLACE)
                self._nursery.start_soon(link.run)
            command = request(code, fields, body)
            command.version = version
            try:
                return await link.request(command, timeout_s=60)
            except ConnectionLost:  # it was idle for two minutes
                del self._links[by]

    def _broker(self) -> tuple[str, str, str]:
        """Return an address, its broker name and cluster."""
        name = self._random.choice(list(CLUSTERS))
        return f"{name}-{self._random.randrange(3)}:10911", name, CLUSTERS[name]

    async def _register(self) -> None:
        address, name, _ = self._broker()
        self._counter += 1
        version = (self._counter, self._random.choice((0, 0, 1)))
        await self._send_registration(address, name, self._random.choice((0, 0, 1, 2)), version)

    async def _repeat(self) -> None:
        """Register a live broker with the same version, and perhaps other topics."""
        if self._model.live:
            address, live = self._random.choice(list(self._model.live.items()))
            await self._send_registration(address, live.name, live.number, live.version)

    async def _send_registration(
        self, address: str, name: str, number: int, version: tuple[int, int]
    ) -> None:
        some = self._random.sample(TOPICS, self._random.choice((1, 2, 3)))
        topics = {
            name: (self._random.randrange(1, 9), self._random.choice((6, 4))) for name in some
        }
        timeout_s = self._random.choice(TIMEOUTS_S)
        header = RegisterBrokerRequest(
            brokerName=name, brokerAddr=address, clusterName=CLUSTERS[name], haServerAddr="ha",
            brokerId=number, enableActingMaster=ACTING[name],
            heartbeatTimeoutMillis=20_000 if timeout_s == TIMEOUTS_S[0] else None,
        )  # fmt: skip
        table = TopicConfigTable(
            data_version=DataVersion(counter=version[0], state_version=version[1]),
            topic_config_table={
                topic: TopicConfig(topic_name=topic, read_queue_nums=queues, perm=perm)
                for topic, (queues, perm) in topics.items()
            },
        )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
        is_new = number not in self._model.numbers.get(name, {})
        answer = await self._ask(Code.REGISTER_BROKER, header.encode(), body, by=address)
        if is_new and len(topics) == 1:
            assert answer.code == ResponseCode.SYSTEM_ERROR, f"registered: {address}: one topic"
            return
        assert answer.code == 0, f"registered: {address}: {answer.remark}"
        new = Live(name, number, version, timeout_s, trio.current_time(), self._links[address])
        master = self._model.register(address, new, topics)
        actual = (answer.fields.get("masterAddr"), answer.fields.get("haServerAddr"))
        assert actual == (master, "ha" if master else None), f"registered: {actual}, not {master}"
        orders = KvTable.decode(answer.body).table if answer.body else {}
        assert orders == self._model.orders, f"registered: {orders}, expected {self._model.orders}"
        assert bool(answer.body) == bool(orders), f"registered: a body of {orders}"

    async def _unregister(self) -> None:
        address, name, cluster = self._broker()
        header = BrokerIdentityRequest(
            brokerName=name, brokerAddr=address, clusterName=cluster, brokerId=0
        )
        await self._ask(Code.UNREGISTER_BROKER, header.encode(), by=address)
        self._model.leave(address)

    async def _touch(self) -> None:
        """Send a heartbeat of either form."""
        address, name, cluster = self._broker()
        if self._random.random() < 0.5:
            beat = BrokerHeartbeatRequest(clusterName=cluster, brokerAddr=address, brokerName=name)
            await self._ask(Code.BROKER_HEARTBEAT, beat.encode(), by=address)
        else:
            header = BrokerIdentityRequest(
                brokerName=name, brokerAddr=address, clusterName=cluster, brokerId=0
            )
            live = self._model.live.get(address)
            counter, state = live.version if live else (1, 0)
            counter += self._random.randrange(2)
            body = DataVersion(counter=counter, state_version=state).encode()
            answer = await self._ask(Code.QUERY_DATA_VERSION, header.encode(), body, by=address)
            is_changed = live is None or live.version != (counter, state)
            if live is not None and live.number == 0:
                is_changed = is_changed or self._model.is_foreign(address, name)
            changed = answer.fields["changed"]
            assert changed == str(is_changed).lower(), f"version: {address}: changed {changed}"
        if address in self._model.live:
            self._model.live[address].heard_s = trio.current_time()

    async def _close(self) -> None:
        """End a connection: brokers that registered on it last leave."""
        address, _, _ = self._broker()
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
            await trio.sleep(0.5)
            for at in [at for at, live in self._model.live.items() if live.link is link]:
                self._model.leave(at)

    async def _permit(self) -> None:
        name, writes = self._random.choice(list(CLUSTERS)), self._random.random() < 0.5
        code = Code.ADD_WRITE_PERM_OF_BROKER if writes else Code.WIPE_WRITE_PERM_OF_BROKER
        answer = await self._ask(code, BrokerNameRequest(brokerName=name).encode())
        actual = answer.fields["addTopicCount" if writes else "wipeTopicCount"]
        count = self._model.allow(name, writes=writes)
        assert actual == str(count), f"permission: {actual} topics, expected {count}"

    async def _delete(self) -> None:
        topic, cluster = self._random.choice(TOPICS), self._random.choice((None, "c1", "c2"))
        header = DeleteTopicInNameserverRequest(topic=topic, clusterName=cluster)
        await self._ask(Code.DELETE_TOPIC_IN_NAMESRV, header.encode())
        names = [name for name, at in CLUSTERS.items() if cluster in (None, at)]
        self._model.delete(*names, topic=topic)

    async def _announce(self) -> None:
        """Register the queues of a single topic (217), which needs a live broker."""
        name, topic = self._random.choice(list(CLUSTERS)), self._random.choice(TOPICS)
        queues = self._random.randrange(1, 9)
        data = QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=8, perm=6)
        body = TopicRouteData(queue_datas=[data]).encode()
        header = TopicRequest(topic=topic)
        await self._ask(Code.REGISTER_TOPIC_IN_NAMESRV, header.encode(), body)
        if name in self._model.numbers:
            self._model.topics.setdefault(topic, {})[name] = (queues, 6)

    async def _order(self) -> None:
        topic = self._random.choice(TOPICS)
        value = self._model.orders[topic] = f"a:{self._random.randrange(9)}"
        header = PutKvRequest(namespace=ORDER, key=topic, value=value)
        await self._ask(Code.PUT_KV_CONFIG, header.encode())

    async def _pause(self) -> None:
        await trio.sleep(self._random.choice((4, 11, 40)))

    async def _expire(self) -> None:
        """Remove silent brokers; do not ask close to the end of a timeout."""
        live = self._model.live.values()
        overdue = [trio.current_time() - one.heard_s - one.timeout_s for one in live]
        if any(-1 < late_s < LATE_S for late_s in overdue):
            await trio.sleep(LATE_S + 1)
        now = trio.current_time()
        for address, broker in list(self._model.live.items()):
            if now - broker.heard_s > broker.timeout_s:
                self._model.leave(address)

    async def _compare(self, act: str) -> None:
        for topic in TOPICS:
            version, strict = self._random.choice((400, 401)), self._random.random() < 0.5
            header = GetRouteRequest(topic=topic, acceptStandardJsonOnly=strict)
            code = Code.GET_ROUTEINFO_BY_TOPIC
            answer = await self._ask(code, header.encode(), version=version)
            addresses, queues = self._model.route(topic)
            if not addresses:
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST, f"route: {act}: {topic} exists"
                continue
            assert answer.code == 0, f"route: {act}: {topic}: {answer.remark}"
            is_quoted = b'"brokerAddrs":{"' in answer.body
            assert is_quoted == (strict or version > 400), f"route: {answer.body!r}"
            data = TopicRouteData.decode(answer.body)
            actual: Any = {row.broker_name: row.broker_addrs for row in data.broker_datas}
            assert actual == addresses, f"route: {act}: {topic}: {actual}, expected {addresses}"
            actual = {row.broker_name: (row.read_queue_nums, row.perm) for row in data.queue_datas}
            assert actual == queues, f"route: {act}: {topic}: {actual}, expected {queues}"
            order = self._model.orders.get(topic)
            assert data.order_topic_conf == order, (
                f"route: {data.order_topic_conf}, expected {order}"
            )
        await self._compare_clusters(act)

    async def _compare_clusters(self, act: str) -> None:
        numbers = self._model.numbers
        info = ClusterInfo.decode((await self._ask(Code.GET_BROKER_CLUSTER_INFO, {})).body)
        actual: Any = {name: row.broker_addrs for name, row in info.broker_addr_table.items()}
        assert actual == numbers, f"cluster: {act}: {actual}, expected {numbers}"
        for cluster in ("c1", "c2"):
            names = {name for name in numbers if CLUSTERS[name] == cluster}
            actual = set(info.cluster_addr_table.get(cluster, []))
            assert actual == names, f"cluster: {act}: {cluster}: {actual}, expected {names}"
            header = ClusterRequest(cluster=cluster)
            topics = {topic for topic, at in self._model.topics.items() if names & at.keys()}
            await self._check_topics(act, Code.GET_TOPICS_BY_CLUSTER, header.encode(), topics)
            group = MemberGroupRequest(clusterName=cluster, brokerName="a")
            body = (await self._ask(Code.GET_BROKER_MEMBER_GROUP, group.encode())).body
            actual = MemberGroupBody.decode(body).broker_member_group.broker_addrs
            members = numbers.get("a", {}) if cluster == "c1" else {}
            assert actual == members, f"members: {act}: {actual}, expected {members}"
        code = Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        await self._check_topics(act, code, {}, set(self._model.topics))

    async def _check_topics(
        self, act: str, code: int, fields: dict[str, str], expected: set[str]
    ) -> None:
        actual = set(TopicList.decode((await self._ask(code, fields)).body).topic_list)
        assert actual == expected, f"topics: {act}: {actual}, expected {expected}"
