"""A client beside a node that runs alone, and the settings of that node."""

from collections.abc import Mapping
from typing import Any, Final, Self

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import SubscriptionGroupConfig, TopicConfig
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.headers import (
    PullMessageRequest,
    QueryConsumerOffsetRequest,
    SendMessageV2Request,
    UpdateConsumerOffsetRequest,
)
from rocketbed.wire.headers_admin import CreateTopicRequest, TopicRequest
from rocketbed.wire.properties import encode_properties
from rocketbed.world.api import World

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
QUEUES: Final = 4
Code, Answer = RequestCode, ResponseCode


class Peer:
    """A client that checks the code of each answer."""

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
        self, code: int, fields: Mapping[str, str] | None, expected: int, body: bytes = b""
    ) -> Command:
        """Return the answer to a request; its code must be the expected one."""
        assert self.connection is not None
        answer = await self.connection.request(
            request(code, dict(fields or {}), body), timeout_s=60
        )
        text = f"{RequestCode(code).name} {dict(fields or {})}: {answer.remark}"
        assert answer.code == expected, f"code: {answer.code}, expected {expected}: {text}"
        return answer

    async def send(
        self,
        expected: int = Answer.SUCCESS,
        *,
        body: bytes = b"body",
        properties: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Command:
        command = self.send_request(body=body, properties=properties, **changes)
        return await self.ask(Code.SEND_MESSAGE_V2, command.fields, expected, body)

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

    async def pull(self, expected: int, **changes: Any) -> Command:
        command = self.pull_request(**changes)
        return await self.ask(Code.PULL_MESSAGE, command.fields, expected)

    @staticmethod
    def pull_request(*, tags: str | None = "*", **changes: Any) -> Command:
        values: dict[str, Any] = {
            "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": tags,
            "subVersion": 0,
        }  # fmt: skip
        header = PullMessageRequest(**values | changes)
        return request(Code.PULL_MESSAGE, header.encode())

    async def commit(self, expected: int, offset: int, **changes: Any) -> None:
        values: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0} | changes
        header = UpdateConsumerOffsetRequest(commitOffset=offset, **values)
        await self.ask(Code.UPDATE_CONSUMER_OFFSET, header.encode(), expected)

    async def check_position(self, expected: int | None, **changes: Any) -> None:
        """Compare the group's offset in a queue; None for no offset."""
        values: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0} | changes
        header = QueryConsumerOffsetRequest(**values)
        code = Answer.QUERY_NOT_FOUND if expected is None else Answer.SUCCESS
        answer = await self.ask(Code.QUERY_CONSUMER_OFFSET, header.encode(), code)
        offset = answer.fields.get("offset")
        assert expected is None or offset == str(expected), (
            f"position: {offset}, expected {expected}: {values}"
        )

    async def create(self, expected: int = Answer.SUCCESS, **changes: Any) -> None:
        values: dict[str, Any] = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        fields = CreateTopicRequest(**values | changes).encode()
        await self.ask(Code.UPDATE_AND_CREATE_TOPIC, fields, expected)

    async def topic(self, name: str) -> TopicConfig:
        answer = await self.ask(Code.GET_TOPIC_CONFIG, TopicRequest(topic=name).encode(), 0)
        return TopicConfig.decode(answer.body)

    async def put_group(self, **changes: Any) -> None:
        body = SubscriptionGroupConfig(**changes).encode()
        await self.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, Answer.SUCCESS, body)
