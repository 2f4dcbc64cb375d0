"""A nameserver and brokers by hand that come, change, go and fall silent, beside a model of what
its tables are then (wire.md 3.2 to 3.8): each answer has to be just that."""

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
"""The second is the default, which is not said."""
LATE_S: Final = 3.0
"""More than a scan and an answer take."""
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
    """All of them, each with a connection of its own."""

    def __init__(self, world: World, nursery: trio.Nursery, random: Random) -> None:
        self._world = world
        self._nursery = nursery
        self._random = random
        self._links: dict[str, Connection] = {}
        self._model = Model()
        self._counter = 0

    async def run(self) -> None:
        acts = {
            self._register: 10, self._again: 5, self._unregister: 2, self._touch: 4, self._close: 2,
            self._permit: 3, self._delete: 2, self._announce: 2, self._order: 1, self._rest: 4,
        }  # fmt: skip
        for act in self._random.choices(list(acts), list(acts.values()), k=STEPS):
            await act()
            await self._expire()
            await self._compare(act.__name__)

    async def _ask(
        self,
        code: int,
        fields: dict[str, str] | None,
        body: bytes = b"",
        *,
        by: str = "client",
        version: int = VERSION,
    ) -> Command:
        while True:
            link = self._links.get(by)
            if link is None:
                link = self._links[by] = await dial(self._world, PLACE)
                self._nursery.start_soon(link.run)
            asked = request(code, fields, body)
            asked.version = version
            try:
                return await link.request(asked, timeout_s=60)
            except ConnectionLost:  # it was idle for two minutes
                del self._links[by]

    def _somebody(self) -> tuple[str, str, str]:
        """An address, its broker name and cluster."""
        name = self._random.choice(list(CLUSTERS))
        return f"{name}-{self._random.randrange(3)}:10911", name, CLUSTERS[name]

    async def _register(self) -> None:
        address, name, _ = self._somebody()
        self._counter += 1
        version = (self._counter, self._random.choice((0, 0, 1)))
        await self._announces(address, name, self._random.choice((0, 0, 1, 2)), version)

    async def _again(self) -> None:
        """One that is there says the same version once more, whatever it has."""
        if self._model.live:
            address, live = self._random.choice(list(self._model.live.items()))
            await self._announces(address, live.name, live.number, live.version)

    async def _announces(
        self, address: str, name: str, number: int, version: tuple[int, int]
    ) -> None:
        some = self._random.sample(TOPICS, self._random.choice((1, 2, 3)))
        topics = {one: (self._random.randrange(1, 9), self._random.choice((6, 4))) for one in some}
        timeout_s = self._random.choice(TIMEOUTS_S)
        header = RegisterBrokerRequest(
            brokerName=name, brokerAddr=address, clusterName=CLUSTERS[name], haServerAddr="ha",
            brokerId=number, enableActingMaster=ACTING[name],
            heartbeatTimeoutMillis=20_000 if timeout_s == TIMEOUTS_S[0] else None,
        )  # fmt: skip
        table = TopicConfigTable(
            data_version=DataVersion(counter=version[0], state_version=version[1]),
            topic_config_table={
                one: TopicConfig(topic_name=one, read_queue_nums=queues, perm=perm)
                for one, (queues, perm) in topics.items()
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
        told = (answer.fields.get("masterAddr"), answer.fields.get("haServerAddr"))
        assert told == (master, "ha" if master else None), f"registered: {told} for {master}"
        orders = KvTable.decode(answer.body).table if answer.body else {}
        assert orders == self._model.orders, f"registered: {orders} for {self._model.orders}"
        assert bool(answer.body) == bool(orders), f"registered: a body of {orders}"

    async def _unregister(self) -> None:
        address, name, cluster = self._somebody()
        header = BrokerIdentityRequest(
            brokerName=name, brokerAddr=address, clusterName=cluster, brokerId=0
        )
        await self._ask(Code.UNREGISTER_BROKER, header.encode(), by=address)
        self._model.leave(address)

    async def _touch(self) -> None:
        """A sign of life, in either form."""
        address, name, cluster = self._somebody()
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
            is_other = live is None or live.version != (counter, state)
            if live is not None and live.number == 0:
                is_other = is_other or self._model.is_not_own(address, name)
            told = answer.fields["changed"]
            assert told == str(is_other).lower(), f"version: {address}: {told} for {is_other}"
        if address in self._model.live:
            self._model.live[address].heard_s = trio.current_time()

    async def _close(self) -> None:
        """A connection ends: who registered on it last is gone."""
        address, _, _ = self._somebody()
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
            await trio.sleep(0.5)
            for at in [at for at, one in self._model.live.items() if one.link is link]:
                self._model.leave(at)

    async def _permit(self) -> None:
        name, writes = self._random.choice(list(CLUSTERS)), self._random.random() < 0.5
        code = Code.ADD_WRITE_PERM_OF_BROKER if writes else Code.WIPE_WRITE_PERM_OF_BROKER
        answer = await self._ask(code, BrokerNameRequest(brokerName=name).encode())
        told = answer.fields["addTopicCount" if writes else "wipeTopicCount"]
        count = self._model.allow(name, writes=writes)
        assert told == str(count), f"permission: of {told} topics for {count}"

    async def _delete(self) -> None:
        topic, cluster = self._random.choice(TOPICS), self._random.choice((None, "c1", "c2"))
        header = DeleteTopicInNameserverRequest(topic=topic, clusterName=cluster)
        await self._ask(Code.DELETE_TOPIC_IN_NAMESRV, header.encode())
        names = [name for name, at in CLUSTERS.items() if cluster in (None, at)]
        self._model.delete(*names, topic=topic)

    async def _announce(self) -> None:
        """Queues of one topic by themselves (217); they need a broker that is there."""
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

    async def _rest(self) -> None:
        await trio.sleep(self._random.choice((4, 11, 40)))

    async def _expire(self) -> None:
        """Take off who was silent for too long; never ask in the moment when it is decided."""
        live = self._model.live.values()
        due = [trio.current_time() - one.heard_s - one.timeout_s for one in live]
        if any(-1 < late < LATE_S for late in due):
            await trio.sleep(LATE_S + 1)
        now = trio.current_time()
        for address, one in list(self._model.live.items()):
            if now - one.heard_s > one.timeout_s:
                self._model.leave(address)

    async def _compare(self, act: str) -> None:
        for topic in TOPICS:
            version, strict = self._random.choice((400, 401)), self._random.random() < 0.5
            header = GetRouteRequest(topic=topic, acceptStandardJsonOnly=strict)
            code = Code.GET_ROUTEINFO_BY_TOPIC
            answer = await self._ask(code, header.encode(), version=version)
            held, queues = self._model.route(topic)
            if not held:
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST, f"route: {act}: {topic} is"
                continue
            assert answer.code == 0, f"route: {act}: {topic}: {answer.remark}"
            is_quoted = b'"brokerAddrs":{"' in answer.body
            assert is_quoted == (strict or version > 400), f"route: {answer.body!r}"
            data = TopicRouteData.decode(answer.body)
            told: Any = {one.broker_name: one.broker_addrs for one in data.broker_datas}
            assert told == held, f"route: {act}: {topic} of {told} for {held}"
            told = {one.broker_name: (one.read_queue_nums, one.perm) for one in data.queue_datas}
            assert told == queues, f"route: {act}: {topic}: {told} for {queues}"
            order = self._model.orders.get(topic)
            assert data.order_topic_conf == order, f"route: {data.order_topic_conf}, {order}"
        await self._compare_clusters(act)

    async def _compare_clusters(self, act: str) -> None:
        numbers = self._model.numbers
        info = ClusterInfo.decode((await self._ask(Code.GET_BROKER_CLUSTER_INFO, {})).body)
        told: Any = {name: one.broker_addrs for name, one in info.broker_addr_table.items()}
        assert told == numbers, f"cluster: {act}: {told} for {numbers}"
        for cluster in ("c1", "c2"):
            names = {name for name in numbers if CLUSTERS[name] == cluster}
            told = set(info.cluster_addr_table.get(cluster, []))
            assert told == names, f"cluster: {act}: {cluster} of {told} for {names}"
            header = ClusterRequest(cluster=cluster)
            want = {topic for topic, at in self._model.topics.items() if names & at.keys()}
            await self._topics(act, Code.GET_TOPICS_BY_CLUSTER, header.encode(), want)
            group = MemberGroupRequest(clusterName=cluster, brokerName="a")
            body = (await self._ask(Code.GET_BROKER_MEMBER_GROUP, group.encode())).body
            told = MemberGroupBody.decode(body).broker_member_group.broker_addrs
            held = numbers.get("a", {}) if cluster == "c1" else {}
            assert told == held, f"members: {act}: {told} for {held}"
        code = Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        await self._topics(act, code, {}, set(self._model.topics))

    async def _topics(self, act: str, code: int, fields: dict[str, str], want: set[str]) -> None:
        told = set(TopicList.decode((await self._ask(code, fields)).body).topic_list)
        assert told == want, f"topics: {act}: {told} for {want}"
