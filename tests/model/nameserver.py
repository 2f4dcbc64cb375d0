"""One nameserver over the wire: what it keeps, what it is told, who it says is there."""

import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.remoting.client import open_connection
from rocketbed.routing.config import BadSetting, read_settings
from rocketbed.routing.nameserver import Nameserver
from rocketbed.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers_admin import (
    GetRouteRequest,
    KvKeyRequest,
    NamespaceRequest,
    PutKvRequest,
    RegisterBrokerRequest,
)
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.broker import Peer

SETTINGS: Final = {"kvConfigPath": "/kv/table.json", "bindAddress": "0.0.0.0", "listenPort": "9876"}
PLACE: Final = ("10.0.0.1", 9876)
SILENT_S: Final = 130.0
"""Longer than a nameserver waits for a broker that says nothing."""
Code, Answer = RequestCode, ResponseCode
Ask = Callable[[Peer], Awaitable[None]]


def run_nameserver(seed: int) -> str:
    """Registrations of each form and a table through a power cut."""
    _settings()
    first = run_alone(_serve, _first, seed=f"{seed}/1")
    disk = SimDisk(first.image)
    disk.power_cut("strict")
    again = run_alone(_serve, _again, image=disk.image(), boots=2, seed=f"{seed}/2")
    return first.digest + again.digest


def _settings() -> None:
    config, warnings = read_settings(
        {**SETTINGS, "rocketmqHome": "/x", "orderMessageEnable": "True"}
    )
    assert config.order_messages and config.kv_path == SETTINGS["kvConfigPath"], "settings: "
    assert len(warnings) == 1, f"settings: {warnings}"
    for key, text, said in (
        ("listenPort", "65536", "ports end at 65535"),
        ("listenPort", "x", "must be a number"),
        ("scanNotActiveBrokerInterval", "-1", "must be a number"),
        ("enableAllTopicList", "yes", "true or false"),
        ("listenPorts", "1", "did you mean listenPort?"),
        ("kvConfigPaths", "1", "did you mean kvConfigPath?"),
        ("zzz", "1", "known: bindAddress"),
    ):
        try:
            read_settings({key: text})
        except BadSetting as exc:
            assert said in str(exc), f"settings: {exc!s}"
        else:
            raise AssertionError(f"settings: {key}={text} was taken")
    read_settings({"listenPort": "65535", "scanNotActiveBrokerInterval": "100000"})


async def _serve(world: World, ask: Ask) -> None:
    config, _ = read_settings(SETTINGS)
    async with trio.open_nursery() as nursery:
        await nursery.start(Nameserver(world, config).run)
        peer = Peer()
        async with open_connection(world, PLACE, peer.handlers) as connection:
            peer.connection = connection
            await ask(peer)
        nursery.cancel_scope.cancel()


async def _first(peer: Peer) -> None:
    for namespace, key, value in (
        ("n", "a", "1"),
        ("n", "b", "2"),
        ("m", "a", "3"),
        ("n", "a", "4"),
    ):
        header = PutKvRequest(namespace=namespace, key=key, value=value)
        await peer.ask(Code.PUT_KV_CONFIG, header.encode(), 0)
    for key in ("b", "never"):
        fields = KvKeyRequest(namespace="n", key=key).encode()
        await peer.ask(Code.DELETE_KV_CONFIG, fields, 0)
    told = (await peer.ask(Code.GET_NAMESRV_CONFIG, {}, 0)).body.decode().splitlines()
    want = {f"{key}={value}" for key, value in SETTINGS.items()} | {"orderMessageEnable=false"}
    assert want <= {*told}, f"settings: {told}"
    await _registrations(peer)


async def _again(peer: Peer) -> None:
    """What was put is there after a power cut."""
    for namespace, key, value in (("n", "a", "4"), ("m", "a", "3"), ("n", "b", None)):
        fields = KvKeyRequest(namespace=namespace, key=key).encode()
        want = Answer.SUCCESS if value else Answer.QUERY_NOT_FOUND
        answer = await peer.ask(Code.GET_KV_CONFIG, fields, want)
        assert value is None or answer.fields.get("value") == value, f"table: {answer.fields}"
    fields = NamespaceRequest(namespace="n").encode()
    listed = await peer.ask(Code.GET_KVLIST_BY_NAMESPACE, fields, 0)
    assert b'"4"' in listed.body and b'"2"' not in listed.body, f"table: {listed.body!r}"
    fields = NamespaceRequest(namespace="other").encode()
    await peer.ask(Code.GET_KVLIST_BY_NAMESPACE, fields, Answer.QUERY_NOT_FOUND)


async def _registrations(peer: Peer) -> None:
    """Plain and compressed; wrong in each way; then silence."""
    nobody = await peer.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, 0)
    assert not TopicList.decode(nobody.body).topic_list, "topics: of nobody"
    topics = {"T": TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=6)}
    topics["U"] = TopicConfig(topic_name="U")  # one alone is an addition to a table
    table = TopicConfigTable(data_version=DataVersion(counter=1), topic_config_table=topics)
    plain = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
    await _register(peer, plain, 0)
    await _route(peer, "T", 3, 2)
    lines = [
        DataVersion(counter=2).encode(),
        b"T 5 4 6 SINGLE_TAG",
        b'U 1 1 6 SINGLE_TAG {"+a":"b c"}',
    ]
    packed = _packed(lines)
    await _register(peer, zlib.compress(packed), 0)
    await _route(peer, "T", 5, 4)
    refused = (Answer.SYSTEM_ERROR,)
    for body in (zlib.compress(packed[:-1]), zlib.compress(packed)[:-6], b"\x78zzz"):
        await _register(peer, body, *refused)
    long = lines[1] + b" " * 9
    broken = zlib.compress(
        _packed([lines[0], long]).replace(struct.pack(">i", len(long)), b"\xff" * 4)
    )
    await _register(peer, broken, *refused)
    await _register(peer, plain, *refused, bodyCrc32=zlib.crc32(plain) % 1000 + 1)
    await _route(peer, "T", 5, 4)
    told = TopicList.decode((await peer.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, 0)).body)
    assert told.topic_list == ["c", "broker-a"], f"topics: {told}"
    assert told.broker_addr == "10.0.0.9:10911", f"topics: {told}"
    fields = GetRouteRequest(topic="unknown").encode()
    await peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, fields, Answer.TOPIC_NOT_EXIST)
    for _ in range(2):  # a connection that is idle for two minutes would be closed
        await trio.sleep(SILENT_S / 2)
        await peer.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, 0)
    fields = GetRouteRequest(topic="T").encode()
    await peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, fields, Answer.TOPIC_NOT_EXIST)


def _packed(lines: list[bytes]) -> bytes:
    """A table as it is compressed: version, number of topics, a line for each."""
    texts = [struct.pack(">i", len(line)) + line for line in lines]
    return texts[0] + struct.pack(">i", len(texts) - 1) + b"".join(texts[1:])


async def _register(peer: Peer, body: bytes, want: int, **changes: Any) -> None:
    header = RegisterBrokerRequest(
        brokerName="broker-a",
        brokerAddr="10.0.0.9:10911",
        clusterName="c",
        haServerAddr="10.0.0.9:10912",
        brokerId=0,
        **changes,
    )
    await peer.ask(Code.REGISTER_BROKER, header.encode(), want, body)


async def _route(peer: Peer, topic: str, reads: int, writes: int) -> None:
    answer = await peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteRequest(topic=topic).encode(), 0)
    (queues,) = TopicRouteData.decode(answer.body).queue_datas
    got = (queues.read_queue_nums, queues.write_queue_nums)
    assert got == (reads, writes), f"route: {got} for {(reads, writes)}"
