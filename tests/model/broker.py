"""One node over the wire: requests of every kind, each with the answer that it has to get.

Most are at the edge of a limit, or just beyond it: what no load of a cluster asks for. Then the
node ends, cleanly or by a kill, and what was asked for has to be what its tables hold.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Self

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from rocketbed.wire.bodies_admin import RequestMode
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.headers import (
    MaxOffsetRequest,
    PullMessageRequest,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    SendMessageV2Request,
    UpdateConsumerOffsetRequest,
)
from rocketbed.wire.headers_admin import (
    AllGroupConfigRequest,
    AllTopicConfigRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    GroupRequest,
    ResetOffsetRequest,
    TopicRequest,
)
from rocketbed.wire.message import BatchItem, decode_messages, encode_batch
from rocketbed.wire.properties import encode_properties
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.store import ensure_closed

HOST, PORT = "10.0.0.1", 10911
SETTINGS: Final = (
    "storePathRootDir=/store",
    f"listenPort={PORT}",
    f"brokerIP1={HOST}",
    "brokerName=broker-a",
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=2000",
    "maxHashSlotNum=100",
    "maxIndexNum=400",
)
ENDS: Final = ("stop", "kill", "power")
QUEUES: Final = 4
OLD_VERSION: Final = 120
"""The last version of clients whose own limit of repetitions does not count."""
SAVED_S: Final = 12.0
"""Longer than the tables of positions wait to be saved."""
Code, Answer = RequestCode, ResponseCode


def run_broker(seed: int) -> str:
    """Ask, end, and ask again; a digest of what happened."""
    digest = ""
    for end in ENDS:
        image: DiskImage | None = None
        for number, ask in enumerate((_first, _again)):
            boots = 2 if number and end == "power" else 1
            run = run_alone(_serve, ask, "stop" if number else end, image=image, boots=boots,
                            seed=f"{seed}/{end}/{number}")  # fmt: skip
            digest += run.digest
            image = run.image
            if end == "power":
                disk = SimDisk(image)
                disk.power_cut("strict")
                image = disk.image()
    return digest


async def _serve(world: World, ask: Any, end: str) -> None:
    """A node, who asks it, and its end."""
    config, _ = make_config(settings_from_options(list(SETTINGS)))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_node, world, config))
        peer = await Peer.dialled(world, nursery)
        await ask(peer, world)
        peer.close()
        if end == "stop":
            world.process.stop_requested.set()
        else:
            nursery.cancel_scope.cancel()
    if end == "stop":
        ensure_closed(world)


class Peer:
    """A client by hand."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.notices = 0
        self.handlers = Handlers(inline={Code.NOTIFY_CONSUMER_IDS_CHANGED: self._noticed})

    @classmethod
    async def dialled(cls, world: World, nursery: trio.Nursery) -> Self:
        """Connected to the node."""
        peer = cls()
        peer.connection = await dial(world, (HOST, PORT), peer.handlers)
        nursery.start_soon(peer.connection.run)
        return peer

    def close(self) -> None:
        assert self.connection is not None
        self.connection.close()

    def _noticed(self, _command: Command, _connection: Connection) -> None:
        self.notices += 1

    async def ask(
        self, code: int, fields: Mapping[str, str] | None, want: int, body: bytes = b""
    ) -> Command:
        """The answer to a request; its code has to be `want`."""
        assert self.connection is not None
        answer = await self.connection.request(
            request(code, dict(fields or {}), body), timeout_s=60
        )
        what = f"{RequestCode(code).name} {dict(fields or {})}"
        assert answer.code == want, f"code: {answer.code} for {want}: {what}: {answer.remark}"
        return answer

    async def send(
        self,
        want: int = Answer.SUCCESS,
        *,
        body: bytes = b"body",
        properties: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Command:
        asked = self.send_request(body=body, properties=properties, **changes)
        return await self.ask(Code.SEND_MESSAGE_V2, asked.fields, want, body)

    @staticmethod
    def send_request(
        *, body: bytes = b"body", properties: Mapping[str, str] | None = None, **changes: Any
    ) -> Command:
        values: dict[str, Any] = {
            "a": "producers", "b": "T", "c": "none", "d": QUEUES, "e": 0, "f": 0,
            "g": 1_700_000_000_000, "h": 0, "i": encode_properties(dict(properties or {})), "j": 0,
        }  # fmt: skip
        fields = SendMessageV2Request(**values | changes).encode()
        return request(Code.SEND_MESSAGE_V2, fields, body)

    async def pull(self, want: int, **changes: Any) -> Command:
        asked = self.pull_request(**changes)
        return await self.ask(Code.PULL_MESSAGE, asked.fields, want)

    @staticmethod
    def pull_request(*, tags: str | None = "*", **changes: Any) -> Command:
        values: dict[str, Any] = {
            "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": tags,
            "subVersion": 0,
        }  # fmt: skip
        header = PullMessageRequest(**values | changes)
        return request(Code.PULL_MESSAGE, header.encode())

    async def commit(self, want: int, offset: int, **changes: Any) -> None:
        values: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0} | changes
        header = UpdateConsumerOffsetRequest(commitOffset=offset, **values)
        await self.ask(Code.UPDATE_CONSUMER_OFFSET, header.encode(), want)

    async def stands(self, want: int | None, **changes: Any) -> None:
        """Where the group stands in a queue; None: nowhere yet."""
        values: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0} | changes
        header = QueryConsumerOffsetRequest(**values)
        code = Answer.QUERY_NOT_FOUND if want is None else Answer.SUCCESS
        answer = await self.ask(Code.QUERY_CONSUMER_OFFSET, header.encode(), code)
        at = answer.fields.get("offset")
        assert want is None or at == str(want), f"position: {at} for {want}: {values}"

    async def create(self, want: int = Answer.SUCCESS, **changes: Any) -> None:
        values: dict[str, Any] = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        fields = CreateTopicRequest(**values | changes).encode()
        await self.ask(Code.UPDATE_AND_CREATE_TOPIC, fields, want)

    async def topic(self, name: str) -> TopicConfig:
        answer = await self.ask(Code.GET_TOPIC_CONFIG, TopicRequest(topic=name).encode(), 0)
        return TopicConfig.decode(answer.body)

    async def put_group(self, **changes: Any) -> None:
        body = SubscriptionGroupConfig(**changes).encode()
        await self.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, Answer.SUCCESS, body)

    async def heartbeat(
        self, version: int, tags: Mapping[str, str], *, client: str = "one", want: int = 0
    ) -> None:
        wanted = [
            SubscriptionData(topic=topic, sub_string=text, sub_version=version)
            for topic, text in tags.items()
        ]
        consumer = ConsumerData(group_name="h", subscription_data_set=wanted)
        data = HeartbeatData(client_id=client, consumer_data_set=[consumer])
        answer = await self.ask(Code.HEART_BEAT, {}, want, data.encode())
        if not want:  # whoever tells no fingerprint is not told that nothing changed
            assert answer.fields["IS_SUB_CHANGE"] == "true", f"heartbeat: {answer.fields}"


async def _first(peer: Peer, world: World) -> None:
    await _topics(peer)
    await _sends(peer)
    await _pulls(peer, world)
    await _groups(peer)
    await _heartbeats(peer)
    await _positions(peer)
    await trio.sleep(SAVED_S)
    mode = RequestMode(topic="T", consumer_group="g").encode()
    await peer.ask(Code.SET_MESSAGE_REQUEST_MODE, {}, 0, mode)  # durable once it is answered


async def _again(peer: Peer, world: World) -> None:
    """After the end, whichever it was."""
    topic = await peer.topic("T")
    assert topic.read_queue_nums == QUEUES, f"tables: {topic}"
    assert (await peer.topic("wide")).topic_filter_type == "MULTI_TAG", "tables: wide"
    await peer.ask(Code.GET_TOPIC_CONFIG, TopicRequest(topic="gone").encode(), 17)
    await peer.stands(3)
    await peer.stands(0, queueId=1)
    await peer.stands(0, queueId=2)
    await peer.stands(1, queueId=QUEUES - 1)  # brought down to the end of its queue
    answer = await peer.ask(
        Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group="off").encode(), 0
    )
    assert not SubscriptionGroupConfig.decode(answer.body).consume_enable, "tables: group off"
    await peer.ask(
        Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group="left").encode(),
        Answer.SUBSCRIPTION_GROUP_NOT_EXIST,
    )  # fmt: skip
    answer = await peer.pull(Answer.SUCCESS)
    assert len(decode_messages(answer.body)) >= 3, "tables: the messages"
    body = (await peer.ask(Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, 0)).body
    assert b'"T":{"g":{' in body, f"tables: modes: {body!r}"


async def _topics(peer: Peer) -> None:
    bad = Answer.INVALID_PARAMETER
    await peer.create()
    await peer.create(topic="wide", topicFilterType="MULTI_TAG")
    await peer.create(topic="gone")
    await peer.create(topic="any")
    await peer.create(topic="one", readQueueNums=1, writeQueueNums=1)
    await peer.create(topic="shut", perm=2)
    await peer.create(topic="none", readQueueNums=0, writeQueueNums=0)
    await peer.create(topic="n" * 127)
    await peer.create(topic="ordered", order=True, topicSysFlag=2)
    assert (await peer.topic("ordered")).topic_sys_flag == 2, "topics: its flag"
    for changes in (
        {"topic": "n" * 128}, {"topic": ""}, {"topic": "a b"}, {"topic": "TBW102"},
        {"readQueueNums": -1}, {"writeQueueNums": -1}, {"readQueueNums": 1 << 20},
        {"topicFilterType": "OTHER"},
    ):  # fmt: skip
        await peer.create(bad, **changes)
    first = await peer.topic("none")
    assert first.write_queue_nums == 0, f"topics: {first}"
    await peer.ask(Code.DELETE_TOPIC_IN_BROKER, TopicRequest(topic="TBW102").encode(), bad)
    await peer.ask(Code.DELETE_TOPIC_IN_BROKER, TopicRequest(topic="a b").encode(), bad)
    fields = AllTopicConfigRequest(topicSeq=0, maxTopicNum=2).encode()
    page = await peer.ask(Code.GET_ALL_TOPIC_CONFIG, fields, 0)
    whole = await peer.ask(Code.GET_ALL_TOPIC_CONFIG, {}, 0)
    assert int(page.fields["totalTopicNum"]) >= 6, f"topics: {page.fields}"
    assert len(page.body) < len(whole.body), "topics: a page is all of it"


async def _sends(peer: Peer) -> None:
    ill, bad = Answer.MESSAGE_ILLEGAL, Answer.INVALID_PARAMETER
    for number in range(3):
        answer = await peer.send(properties={"TAGS": "red"}, body=b"%d" % number)
        assert answer.fields["queueOffset"] == str(number), f"send: {answer.fields}"
    await peer.send(e=QUEUES - 1)
    await peer.send(b="ordered")
    answer = await peer.send(b="any", e=-1)
    assert 0 <= int(answer.fields["queueId"]) < QUEUES, f"send: {answer.fields}"
    answer = await peer.send(b="one", e=-1)
    assert answer.fields["queueId"] == "0", f"send: {answer.fields}"
    await peer.send(bad, e=QUEUES)
    await peer.send(Answer.TOPIC_NOT_EXIST, b="unknown")
    await peer.send(bad, b="a b")
    await peer.send(Answer.SYSTEM_ERROR, b="none", e=-1)
    await peer.send(bad, b="none")
    await peer.send(ill, body=b"")
    await peer.send(Answer.NO_PERMISSION, b="SCHEDULE_TOPIC_XXXX")
    await peer.send(Answer.NO_PERMISSION, properties={"TRAN_MSG": "true"})
    await peer.send(properties={"TRAN_MSG": "false"})
    await peer.send(Answer.NO_PERMISSION, f=4)
    await peer.send(Answer.SYSTEM_ERROR, properties={"TIMER_DELAY_SEC": "1"})
    await peer.send(ill, properties={"DELAY": "soon"})
    await peer.send(properties={"DELAY": "0"})
    delayed = encode_properties({"DELAY": "1"})
    for whole, each in ((delayed, ""), ("", delayed)):  # a batch is stored at once, or refused
        body = encode_batch([BatchItem(b"body", 0, each.encode())])
        await peer.send(ill, body=body, m=True, i=whole)
    await peer.send(ill, properties={"INNER_NUM": "2"})
    await peer.send(ill, body=b"no batch", m=True)
    await peer.send(ill, body=bytes((4 << 20) + 1))
    await peer.send(b="%RETRY%g2", e=0, j=16)
    often: tuple[dict[str, Any], ...] = ({"j": 17}, {"j": 3, "l": 2})
    dead = [await peer.send(b="%RETRY%g2", e=0, **fields) for fields in often]
    places = [answer.fields["queueOffset"] for answer in dead]
    assert places == ["0", "1"], f"dead: {places} in their own queue"
    for version, place in ((OLD_VERSION + 1, "2"), (OLD_VERSION, "1")):
        asked = peer.send_request(b="%RETRY%g2", e=0, j=3, l=2)
        asked.version = version
        assert peer.connection is not None
        told = (await peer.connection.request(asked)).fields["queueOffset"]
        assert told == place, f"dead: {told} for {place} of version {version}"


async def _pulls(peer: Peer, world: World) -> None:
    found = await peer.pull(Answer.SUCCESS, maxMsgNums=2)
    bodies = [message.body for message in decode_messages(found.body)]
    assert bodies == [b"0", b"1"], f"pull: {bodies}"
    where = {key: found.fields.get(key) for key in ("nextBeginOffset", "minOffset")}
    assert where == {"nextBeginOffset": "2", "minOffset": "0"}, f"pull: {where}"
    for tags, want in (
        ("red", Answer.SUCCESS), ("  ", Answer.SUCCESS), ("", Answer.SUCCESS), (None, 0),
        (" * ", Answer.SUCCESS), ("blue||red", Answer.SUCCESS), ("||", 23),
    ):  # fmt: skip
        await peer.pull(want, tags=tags)
    none = await peer.pull(Answer.PULL_RETRY_IMMEDIATELY, tags="blue")
    assert int(none.fields["nextBeginOffset"]) >= 3, f"pull: {none.fields}"
    some = await peer.pull(Answer.SUCCESS, maxMsgBytes=0)
    assert len(decode_messages(some.body)) >= 3, "pull: a limit of 0 bytes is none"
    one = await peer.pull(Answer.SUCCESS, maxMsgBytes=1)
    assert len(decode_messages(one.body)) == 1, "pull: one comes, however long it is"
    await peer.pull(Answer.INVALID_PARAMETER, queueId=QUEUES)
    await peer.pull(Answer.INVALID_PARAMETER, queueId=-1)
    await peer.pull(Answer.PULL_NOT_FOUND, queueId=QUEUES - 1, queueOffset=1)
    await peer.pull(Answer.PULL_OFFSET_MOVED, queueOffset=1000)
    await peer.pull(Answer.TOPIC_NOT_EXIST, topic="unknown")
    await peer.pull(Answer.NO_PERMISSION, topic="shut")
    await peer.pull(Answer.SYSTEM_ERROR, expressionType="SQL92")
    await peer.pull(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, consumerGroup="")
    await peer.pull(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, consumerGroup="g" * 256)
    await peer.pull(Answer.SUCCESS, consumerGroup="g" * 255)
    began = trio.current_time()
    held: dict[str, Any] = {"queueId": 2, "sysFlag": 4 | 2, "suspendTimeoutMillis": 6000}
    await peer.pull(Answer.PULL_NOT_FOUND, **held)
    waited = trio.current_time() - began
    assert 5.9 < waited < 13, f"hold: a pull was held for {waited} s, not for 6"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_later, peer)
        await peer.pull(Answer.SUCCESS, **held)
    soon = trio.current_time() - began - waited
    assert 1 <= soon < 2, f"hold: a held pull was answered after {soon} s, not after 1"
    for code, header, key, told in (
        (Code.GET_MAX_OFFSET, MaxOffsetRequest(topic="T", queueId=2), "offset", "1"),
        (Code.GET_MIN_OFFSET, QueueRequest(topic="T", queueId=2), "offset", "0"),
        (Code.GET_MAX_OFFSET, MaxOffsetRequest(topic="T", queueId=9), "offset", "0"),
        (Code.GET_EARLIEST_MSG_STORETIME, QueueRequest(topic="wide", queueId=0), "timestamp", "-1"),
    ):
        answer = await peer.ask(code, header.encode(), 0)
        assert answer.fields[key] == told, f"bounds: {answer.fields} for {told}"
    first = decode_messages(found.body)[0]
    search = SearchOffsetRequest(topic="T", queueId=0, timestamp=first.store_timestamp + 1)
    answer = await peer.ask(Code.SEARCH_OFFSET_BY_TIMESTAMP, search.encode(), 0)
    assert int(answer.fields["offset"]) >= 1, f"time: {answer.fields}"


async def _send_later(peer: Peer) -> None:
    await trio.sleep(1)
    await peer.send(e=2)


async def _groups(peer: Peer) -> None:
    await peer.put_group(group_name="off", consume_enable=False)
    await peer.put_group(group_name="left")
    await peer.pull(Answer.NO_PERMISSION, consumerGroup="off")
    fields = AllGroupConfigRequest(groupSeq=0, maxGroupNum=2).encode()
    page = await peer.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields, 0)
    assert int(page.fields["totalGroupNum"]) >= 3, f"groups: {page.fields}"
    await peer.commit(Answer.SUCCESS, 1, consumerGroup="left")
    header = DeleteGroupRequest(groupName="left", cleanOffset=True)
    await peer.ask(Code.DELETE_SUBSCRIPTIONGROUP, header.encode(), 0)
    await peer.commit(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, 1, consumerGroup="left")
    own = DeleteGroupRequest(groupName="CID_RMQ_SYS_TRANS", cleanOffset=True)
    await peer.ask(Code.DELETE_SUBSCRIPTIONGROUP, own.encode(), Answer.INVALID_PARAMETER)
    plain: dict[str, Any] = {"properties": {"UNIQ_KEY": "K1"}, "b": "gone"}
    await peer.send(**plain)
    await peer.ask(Code.DELETE_TOPIC_IN_BROKER, TopicRequest(topic="gone").encode(), 0)
    await peer.send(Answer.TOPIC_NOT_EXIST, **plain)
    await peer.ask(Code.POP_MESSAGE, {}, Answer.REQUEST_CODE_NOT_SUPPORTED)


async def _heartbeats(peer: Peer) -> None:
    """A pull without an expression goes by the newest that the group's heartbeats told."""
    plain: dict[str, Any] = {"consumerGroup": "h", "sysFlag": 0, "tags": None}
    await peer.pull(Answer.SUBSCRIPTION_NOT_EXIST, **plain)
    for client in ("", "c" * 256):
        await peer.heartbeat(5, {"T": "red"}, client=client, want=Answer.SYSTEM_ERROR)
    await peer.pull(Answer.SUBSCRIPTION_NOT_EXIST, **plain)
    await peer.heartbeat(5, {"T": "red"})
    await peer.pull(Answer.SUCCESS, subVersion=5, **plain)
    await peer.pull(Answer.SUBSCRIPTION_NOT_LATEST, subVersion=6, **plain)
    await peer.pull(Answer.SUBSCRIPTION_NOT_EXIST, topic="wide", **plain)
    await peer.heartbeat(4, {"T": "blue"})
    await peer.pull(Answer.SUCCESS, subVersion=5, **plain)
    await peer.heartbeat(6, {"T": "blue"})
    await peer.pull(Answer.PULL_RETRY_IMMEDIATELY, subVersion=6, **plain)
    await trio.sleep(1)
    before = peer.notices
    await peer.heartbeat(6, {"T": "blue"})
    await trio.sleep(1)
    assert peer.notices == before, "notices: of a heartbeat that changes nothing"
    await peer.heartbeat(7, {"T": "blue", "wide": "*"})
    await trio.sleep(1)
    assert peer.notices > before, "notices: none of another topic"


async def _positions(peer: Peer) -> None:
    await peer.stands(0, queueId=3)
    await peer.commit(Answer.SUCCESS, 5)
    await peer.stands(5)
    await peer.commit(Answer.SUCCESS, 3)
    await peer.commit(Answer.SUCCESS, -1)
    await peer.stands(3)
    await peer.commit(Answer.SUCCESS, 50, queueId=QUEUES - 1)
    await peer.stands(50, queueId=QUEUES - 1)
    await peer.commit(Answer.SUCCESS, 0, queueId=1)
    await peer.stands(0, queueId=1)
    await peer.put_group(group_name="set")
    for changes, position in (
        ({"queueId": 0}, 5), ({"queueId": 0, "offset": 2}, 2), ({"queueId": 0, "offset": 0}, 0),
        ({"queueId": 0, "offset": 1000}, None), ({"queueId": QUEUES}, None),
    ):  # fmt: skip
        reset = ResetOffsetRequest(topic="T", group="set", timestamp=-1, isForce=True, **changes)
        code = Answer.SUCCESS
        if position is None:
            out = changes["queueId"] == QUEUES
            code = Answer.INVALID_PARAMETER if out else Answer.SYSTEM_ERROR
        await peer.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset.encode(), code)
        if position is not None:
            await peer.stands(position, consumerGroup="set")
    await peer.commit(Answer.INVALID_PARAMETER, 1, queueId=-1)
    await peer.commit(Answer.TOPIC_NOT_EXIST, 1, topic="unknown")
