"""A nameserver in simulation: the recorded frames, liveness, and what it keeps."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.wire.bodies import RegisterBrokerBody
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, Encoding, request
from rocketbed.wire.encoding.json_dialect import loads
from rocketbed.wire.frame import FrameReader
from rocketbed.world.api import Stream, World
from tests.support.routing import topics
from tests.support.wire_sessions import SESSIONS, RecordedFrame, recorded_frames

HOST, PORT = "127.0.0.1", 9876
Ask = Callable[..., Awaitable[Command]]


class Client:
    """Connections to the nameserver under test."""

    def __init__(self, world: World, server: Nameserver, nursery: trio.Nursery) -> None:
        self.world = world
        self.server = server
        self._nursery = nursery

    async def connect(self) -> Connection:
        connection = await dial(self.world, (HOST, PORT))
        self._nursery.start_soon(connection.run)
        return connection

    async def register(self, connection: Connection, name: str = "a", *names: str) -> Command:
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=topics(*(names or ("T", "U")))
        ).encode()
        fields = {
            "brokerName": name, "brokerAddr": f"{name}:1", "clusterName": "c", "brokerId": "0",
            "haServerAddr": f"{name}:2",
        }  # fmt: skip
        return await connection.request(request(RequestCode.REGISTER_BROKER, fields, body))

    async def ask(self, connection: Connection, code: int, **fields: str) -> Command:
        return await connection.request(request(code, fields))


def with_nameserver(
    work: Callable[[Client], Awaitable[Any]],
    *,
    image: DiskImage | None = None,
    **settings: Any,
) -> SoloRun:
    async def main(world: World) -> Any:
        server = Nameserver(world, NameserverConfig(host=HOST, port=PORT, **settings))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            result = await work(Client(world, server, nursery))
            server.table.check()
            nursery.cancel_scope.cancel()
        return result

    return run_solo(main, image=image)


async def nobody_lives(client: Client) -> None:
    """Wait until the last broker is off the routes, in virtual time."""
    while client.server.table.live:  # noqa: ASYNC110
        await trio.sleep(0.01)


def decoded(frame: RecordedFrame) -> Command:
    (command,) = FrameReader().feed(frame.data)
    return command


async def receive(stream: Stream, reader: FrameReader) -> Command:
    while True:
        commands = reader.feed(bytes(await stream.receive_some(65_536)))
        if commands:
            (command,) = commands
            return command


@pytest.mark.parametrize("session", SESSIONS)
def test_recorded_peers_get_the_recorded_answers(session: str) -> None:
    """Every frame to the name server, byte for byte, in the order of the recording.

    Code, remark and body are equal; ours says in an ext field that it speaks msgpack, and answers
    a binary request in kind where 5.3.3 answers in JSON.
    """
    frames = [frame for frame in recorded_frames(session) if frame.connection in (0, 1, 3)]
    answers = {
        (frame.connection, decoded(frame).opaque): decoded(frame)
        for frame in frames
        if not frame.is_from_client
    }

    async def replay(client: Client) -> int:
        streams: dict[int, tuple[Stream, FrameReader]] = {}
        compared = 0
        for frame in frames:
            if not frame.is_from_client:
                continue
            if frame.connection not in streams:
                stream = await client.world.network.connect(HOST, PORT)
                streams[frame.connection] = stream, FrameReader()
            stream, reader = streams[frame.connection]
            await stream.send_all(frame.data)
            ours = await receive(stream, reader)
            theirs = answers[frame.connection, ours.opaque]
            assert (ours.code, ours.remark) == (theirs.code, theirs.remark)
            assert ours.body == theirs.body
            assert ours.encoding is decoded(frame).encoding
            compared += 1
        return compared

    assert with_nameserver(replay).value == len(answers)


@pytest.mark.parametrize(
    ("version", "accepts", "key"), [(400, "", b"{0:"), (401, "", b'{"0":'), (0, "true", b'{"0":')]
)
def test_route_keys_are_quoted_on_request(version: int, accepts: str, key: bytes) -> None:
    async def ask(client: Client) -> bytes:
        connection = await client.connect()
        await client.register(connection)
        fields = {"topic": "T"} | ({"acceptStandardJsonOnly": accepts} if accepts else {})
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        command.version = version
        return (await connection.request(command)).body

    body = with_nameserver(ask).value
    assert b'"brokerAddrs":' + key in body
    assert loads(body)["brokerDatas"][0]["brokerAddrs"] == {"0": "a:1"}


def test_broker_leaves_the_routes_with_its_connection() -> None:
    async def leave(client: Client) -> object:
        broker, client_link = await client.connect(), await client.connect()
        await client.register(broker)
        before = await client.ask(client_link, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        broker.close()
        await nobody_lives(client)
        after = await client.ask(client_link, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        return before.code, after.code

    assert with_nameserver(leave).value == (0, ResponseCode.TOPIC_NOT_EXIST)


def test_departed_subscriber_is_forgotten() -> None:
    """Else the nameserver keeps a connection of each client that ever asked for a route."""

    async def leave(client: Client) -> object:
        broker, client_link = await client.connect(), await client.connect()
        await client.register(broker)
        await client.ask(
            client_link, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T", rbNotify="true"
        )
        before = len(client.server._watching)
        client_link.close()
        while len(client.server.server.connections) > 1:  # noqa: ASYNC110, in virtual time
            await trio.sleep(0.01)
        return before, len(client.server._watching)

    assert with_nameserver(leave).value == (1, 0)


def test_silent_broker_leaves_the_routes_at_its_timeout() -> None:
    async def be_silent(client: Client) -> object:
        broker = await client.connect()
        began = trio.current_time()
        await client.register(broker)
        await nobody_lives(client)
        return trio.current_time() - began

    assert 119 < with_nameserver(be_silent).value < 130


def test_key_values_survive_a_restart() -> None:
    async def put(client: Client) -> object:
        connection = await client.connect()
        for key in ("k1", "k2"):
            await client.ask(
                connection, RequestCode.PUT_KV_CONFIG, namespace="n", key=key, value=f"{key}-value"
            )
        await client.ask(connection, RequestCode.DELETE_KV_CONFIG, namespace="n", key="k2")
        refused = await client.ask(connection, RequestCode.PUT_KV_CONFIG, namespace="n", key="k3")
        return refused.code

    async def get(client: Client) -> object:
        connection = await client.connect()
        present = await client.ask(connection, RequestCode.GET_KV_CONFIG, namespace="n", key="k1")
        missing = await client.ask(connection, RequestCode.GET_KV_CONFIG, namespace="n", key="k2")
        return present.fields["value"], missing.code, missing.remark

    first = with_nameserver(put, kv_path="/kv/kvConfig.json")
    assert first.value == ResponseCode.SYSTEM_ERROR
    assert with_nameserver(get, image=first.image, kv_path="/kv/kvConfig.json").value == (
        "k1-value",
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: n Key: k2",
    )


def test_order_configuration_is_returned_and_routed() -> None:
    async def ask(client: Client) -> object:
        connection = await client.connect()
        await client.ask(
            connection,
            RequestCode.PUT_KV_CONFIG,
            namespace="ORDER_TOPIC_CONFIG",
            key="T",
            value="a:4",
        )
        registered = await client.register(connection)
        route = await client.ask(connection, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        return loads(registered.body), loads(route.body)["orderTopicConf"]

    assert with_nameserver(ask, order_messages=True).value == ({"table": {"T": "a:4"}}, "a:4")


def test_administration() -> None:
    async def ask(client: Client) -> object:
        connection = await client.connect()
        await client.register(connection)
        wiped = await client.ask(connection, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="a")
        group = await client.ask(
            connection, RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c", brokerName="a"
        )
        listed = await client.ask(connection, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        await client.ask(connection, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        after = await client.ask(connection, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c")
        unknown = await client.ask(connection, 9999)
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        command.encoding = Encoding.MSGPACK
        info = await connection.request(command)
        return (
            wiped.fields["wipeTopicCount"],
            loads(group.body)["brokerMemberGroup"]["brokerAddrs"],
            loads(listed.body)["topicList"],
            loads(after.body)["topicList"],
            (unknown.code, unknown.remark),
            info.body,
        )

    assert with_nameserver(ask).value == (
        "2",
        {"0": "a:1"},
        ["T", "U"],
        ["U"],
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 9999 not supported"),
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"a:1"},"brokerName":"a","cluster":"c",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"c":["a"]}}',
    )


def test_tells_clusters_and_settings() -> None:
    async def ask(client: Client) -> object:
        connection = await client.connect()
        empty = await client.ask(connection, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        await client.register(connection)
        system = await client.ask(connection, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        config = await client.ask(connection, RequestCode.GET_NAMESRV_CONFIG)
        for key in ("k1", "k2"):
            await client.ask(
                connection, RequestCode.PUT_KV_CONFIG, namespace="n", key=key, value=key
            )
        pairs = await client.ask(connection, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
        missing = await client.ask(connection, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="m")
        return (
            loads(empty.body)["topicList"],
            loads(system.body)["topicList"],
            "orderMessageEnable=true" in config.body.decode().splitlines(),
            loads(pairs.body),
            missing.code,
        )

    value = with_nameserver(ask, order_messages=True).value
    pairs = {"table": {"k1": "k1", "k2": "k2"}}
    assert value == ([], ["c", "a"], True, pairs, ResponseCode.QUERY_NOT_FOUND)
