"""One node and a nameserver, asked as tools ask: settings, pages of tables, queues that the broker
shares out, messages that are sent back; a nameserver that knows it no more."""

import errno
from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.wire.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    SubscriptionData,
    TopicConfigTable,
)
from rocketbed.wire.bodies_admin import QueryAssignment, QueueAssignments, RequestMode
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.headers_admin import AllTopicConfigRequest
from rocketbed.wire.message import decode_messages
from rocketbed.wire.properties_text import parse_properties
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.broker import SETTINGS, Peer

Code, Answer = RequestCode, ResponseCode
PLACE: Final = ("10.0.0.1", 9876)
QUEUES: Final = 5
OWN: Final = {
    "namesrvAddr": "10.0.0.1:9876",
    "autoCreateTopicEnable": "false",
    "traceTopicEnable": "true",
    "flushDiskType": "SYNC_FLUSH",
    "registerNameServerPeriod": "10000",
}
BUILT_IN: Final = {
    "SELF_TEST_TOPIC": 1, "BenchmarkTest": 1024, "DefaultCluster": 16, "broker-a": 1,
    "OFFSET_MOVED_EVENT": 1, "SCHEDULE_TOPIC_XXXX": 18, "DefaultCluster_REPLY_TOPIC": 1,
    "rmq_sys_REVIVE_LOG_DefaultCluster": 8, "rmq_sys_SYNC_BROKER_MEMBER_broker-a": 1,
    "RMQ_SYS_TRANS_HALF_TOPIC": 1, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1, "rmq_sys_wheel_timer": 1,
}  # fmt: skip
"""Queues of the topics that every broker has from the start."""
FILE: Final = "/conf/broker.conf"
DEFAULTS: Final = {
    "fileReservedTime": "72",
    "longPollingEnable": "true",
    "rejectTransactionMessage": "false",
}


def run_tools(seed: int) -> str:
    digest = run_alone(_serve, seed, seed=f"tools/{seed}").digest
    return digest + run_alone(_keeps, seed=f"tools/{seed}", prepare=_with_file).digest


def _with_file(disk: SimDisk) -> None:
    disk.makedirs(FILE.rpartition("/")[0])
    disk.replace_contents(FILE, b"# mine\nmaxMessageSize = 4000\nfileReservedTime=72\n")


async def _keeps(world: World) -> None:
    """What is changed is written into the file that the settings are from, or the answer says why
    it is not; what the command line gives comes back at the next start."""
    config, _ = make_config(settings_from_options(list(SETTINGS)), path=FILE)
    disk: Any = world.disk
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_node, world, config))
        peer = await Peer.dialled(world, nursery)
        change = partial(peer.ask, Code.UPDATE_BROKER_CONFIG, {})
        text = b"# mine\nmaxMessageSize=2000\nfileReservedTime=72\nautoCreateTopicEnable=false\n"
        remark = (await change(0, b"autoCreateTopicEnable=false\nmaxMessageSize=2000\n")).remark
        assert not remark, f"settings: {remark!r} of what is kept"
        assert disk.contents(FILE) == text, f"settings: {disk.contents(FILE)!r} for {text!r}"
        pinned = b"mappedFileSizeConsumeQueue=4000\n"
        await change(Answer.NO_PERMISSION, pinned)
        assert disk.contents(FILE) == text, "settings: a refused one is kept"
        disk.faults.append(SimFault(operation="write", path="/conf/*", error=errno.ENOSPC))
        remark = (await change(0, b"maxMessageSize=3000\n")).remark or ""
        assert "No space left" in remark, f"settings: {remark!r} of what cannot be kept"
        assert disk.contents(FILE) == text, "settings: changed by what could not be kept"
        await peer.create()
        await peer.send(body=bytes(3000))
        await peer.send(Answer.MESSAGE_ILLEGAL, body=bytes(3001))
        nursery.cancel_scope.cancel()


async def _serve(world: World, seed: int) -> None:
    options = [*SETTINGS, *(f"{key}={value}" for key, value in OWN.items())]
    config, _ = make_config(settings_from_options(options))
    async with trio.open_nursery() as nursery:
        server = Nameserver(world, NameserverConfig(host=PLACE[0], port=PLACE[1]))
        await nursery.start(server.run)
        await nursery.start(partial(run_node, world, config))
        peers = [await Peer.dialled(world, nursery) for _ in range(3)]
        await peers[0].create(readQueueNums=QUEUES, writeQueueNums=QUEUES)
        for number in range(3):
            await peers[0].send(e=number)
        await _settings(peers[0])
        await _pages(peers[0])
        await _forbidden(peers[0])
        await _shares(peers, Random(seed), server)
        await _is_known_again(server)
        nursery.cancel_scope.cancel()


async def _shown(peer: Peer) -> dict[str, str]:
    body = (await peer.ask(Code.GET_BROKER_CONFIG, {}, 0)).body
    return {key: value for _, key, value in parse_properties(body.decode())}


async def _settings(peer: Peer) -> None:
    """Shown as they were set; a change holds at once, one that is refused changes nothing."""
    shown = await _shown(peer)
    told = {key: shown.get(key) for key in OWN}
    assert told == OWN, f"settings: {told}"
    told = {key: shown.get(key) for key in DEFAULTS}
    assert told == DEFAULTS, f"settings: {told} where nothing is set"
    await peer.send(Answer.TOPIC_NOT_EXIST, b="New")
    change = partial(peer.ask, Code.UPDATE_BROKER_CONFIG, {})
    text = b"autoCreateTopicEnable=true\nfileReservedTime=70\nmaxMessageSize=2000\n"
    remark = (await change(0, text)).remark or ""
    assert "until the next start" in remark, f"settings: {remark!r} without a file"
    shown = await _shown(peer)
    told = {key: shown[key] for key in ("autoCreateTopicEnable", "fileReservedTime")}
    assert list(told.values()) == ["true", "70"], f"settings: {told}"
    await peer.send(b="New", c="TBW102", d=1)
    await peer.send(Answer.MESSAGE_ILLEGAL, body=bytes(2001))
    for code, text in (
        (Answer.NO_PERMISSION, b"maxMessageSize=3000\nlistenPort=1\n"),
        (Answer.INVALID_PARAMETER, b"maxMessageSize=much\n"),
    ):
        await change(code, text)
    assert (await _shown(peer))["maxMessageSize"] == "2000", "settings: changed by a refused one"
    await peer.send(Answer.MESSAGE_ILLEGAL, body=bytes(2001))


async def _pages(peer: Peer) -> None:
    """Of the table of topics, two at a time; from its beginning where it has changed since."""
    whole = TopicConfigTable.decode((await peer.ask(Code.GET_ALL_TOPIC_CONFIG, {}, 0)).body)
    names = list(whole.topic_config_table)
    found = {name: whole.topic_config_table[name].write_queue_nums for name in BUILT_IN}
    assert found == BUILT_IN, f"pages: {found} for {BUILT_IN}"
    for counter, first in ((0, 2), (1, 0)):
        version = whole.data_version
        known = DataVersion(
            counter=version.counter + counter,
            state_version=version.state_version,
            timestamp=version.timestamp,
        )
        header = AllTopicConfigRequest(
            topicSeq=2, maxTopicNum=2, dataVersion=known.encode().decode()
        )
        answer = await peer.ask(Code.GET_ALL_TOPIC_CONFIG, header.encode(), 0)
        page = list(TopicConfigTable.decode(answer.body).topic_config_table)
        assert page == names[first : first + 2], f"pages: {page} of {names} from {first}"


async def _forbidden(peer: Peer) -> None:
    """Nothing is sent back where nothing may be written, or to a group without a topic for it."""
    sent = decode_messages((await peer.pull(Answer.SUCCESS)).body)[0]
    values: dict[str, Any] = {"offset": sent.physical_offset, "group": "back", "originTopic": "T"}
    dead = SendBackRequest(delayLevel=-1, **values).encode()
    await peer.put_group(group_name="back")
    await peer.ask(Code.UPDATE_BROKER_CONFIG, {}, 0, b"brokerPermission=4\n")
    await peer.ask(Code.CONSUMER_SEND_MSG_BACK, dead, Answer.NO_PERMISSION)
    await peer.ask(Code.UPDATE_BROKER_CONFIG, {}, 0, b"brokerPermission=6\n")
    none = SendBackRequest(delayLevel=1, **{**values, "group": "none"}).encode()
    await peer.put_group(group_name="none", retry_queue_nums=0)
    await peer.ask(Code.CONSUMER_SEND_MSG_BACK, none, 0)
    await trio.sleep(2)
    await peer.pull(Answer.TOPIC_NOT_EXIST, topic="%RETRY%none", consumerGroup="tools")


async def _shares(peers: list[Peer], random: Random, server: Nameserver) -> None:
    """Each queue is one member's, of those that are there; modes are told."""
    while "T" not in server.table.topics:  # noqa: ASYNC110, in virtual time
        await trio.sleep(0.1)
    names = [f"client-{number}" for number in range(len(peers))]
    asked = partial(QueryAssignment, topic="T", consumer_group="shared")
    for strategy in ("AVG", "NEVER"):
        got = await _assigned(peers[0], asked(client_id=names[0], strategy_name=strategy))
        assert got is None, f"shares: {got} of a group that is not there"
    there = random.sample(names, random.choice((1, 2, 3)))
    for name in there:
        await _joins(peers[names.index(name)], name, 7)
    for strategy in ("AVG", "AVG_BY_CIRCLE"):
        shares = []
        for name in names:
            got = await _assigned(peers[0], asked(client_id=name, strategy_name=strategy))
            assert got is not None and (bool(got) == (name in there)), f"shares: {name}: {got}"
            shares += got or []
        assert sorted(shares) == list(range(QUEUES)), f"shares: {strategy}: {shares}"
    got = await _assigned(peers[0], asked(client_id=there[0], strategy_name="NEVER"))
    assert got is None, f"shares: {got} by a rule that is not known"
    every = asked(client_id="x", strategy_name="AVG", message_model="BROADCASTING")
    got = await _assigned(peers[0], every)
    assert got is not None and len(got) == QUEUES, f"shares: {got} of a broadcast"
    mode = RequestMode(topic="T", consumer_group="shared").encode()
    await peers[0].ask(Code.SET_MESSAGE_REQUEST_MODE, {}, 0, mode)
    body = (await peers[0].ask(Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, 0)).body
    assert b'"T":{"shared":{' in body, f"modes: {body!r}"


async def _joins(peer: Peer, name: str, fingerprint: int) -> None:
    """By the first form of a heartbeat, and by the second, which says whether its subscriptions
    are new."""
    for known, without, changed in ((0, False, "true"), (fingerprint, False, "false"),
                                    (fingerprint, True, "false"),
                                    (fingerprint + 1, True, "true")):  # fmt: skip
        wanted = [] if without else [SubscriptionData(topic="T")]
        data = HeartbeatData(
            client_id=name,
            heartbeat_fingerprint=known,
            without_sub=without,
            consumer_data_set=[ConsumerData(group_name="shared", subscription_data_set=wanted)],
        )
        answer = await peer.ask(Code.HEART_BEAT, {}, 0, data.encode())
        told = answer.fields["IS_SUB_CHANGE"]
        assert told == changed, f"heartbeat: {name}: {told} for {changed}"


async def _assigned(peer: Peer, asked: QueryAssignment) -> list[int] | None:
    body = (await peer.ask(Code.QUERY_ASSIGNMENT, {}, 0, asked.encode())).body
    rows = QueueAssignments.decode(body).message_queue_assignments
    return None if rows is None else [row.message_queue.queue_id for row in rows]


async def _is_known_again(server: Nameserver) -> None:
    """A nameserver that has forgotten the broker hears of it within a period."""
    for cluster, address in list(server.table.live):
        server.table.unregister(cluster, address)
    assert "T" not in server.table.topics, "registered: after it was forgotten"
    await trio.sleep(11)
    served = server.table.topics.get("T", {}).get("broker-a")
    told = served and served.read_queue_nums
    assert told == QUEUES, f"registered: {told} queues a period later"
