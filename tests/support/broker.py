"""A node in the simulator, and a client beside it, for tests of what a broker answers."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import Node, run_node
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketbed.wire.command import Command, RequestCode, request
from rocketbed.wire.headers import (
    PullMessageRequest,
    SendMessageV2Request,
    UpdateConsumerOffsetRequest,
)
from rocketbed.wire.message import StoredMessage, decode_messages
from rocketbed.wire.properties import encode_properties
from rocketbed.world.api import World
from tests.model import broker as small

HOST = small.HOST
PORT = small.PORT
STORE = "/store"
SMALL = small.SETTINGS
"""Settings of a node with small files."""


class Session:
    """A running node and a client's connection to it."""

    def __init__(self, world: World, node: Node, connection: Connection, notices: list[Command]):
        self.world = world
        self.node = node
        self.connection = connection
        self.notices = notices
        """Requests that the broker sent to us."""

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 60.0,
    ) -> Command:
        """Send a request; the answer, whatever its code."""
        return await self.connection.request(request(code, fields, body), timeout_s=timeout_s)

    async def send(
        self,
        topic: str = "T",
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        properties: dict[str, str] | None = None,
        **changes: Any,
    ) -> Command:
        """Send a message; the answer."""
        fields = send_fields(topic, queue_id, properties, **changes)
        return await self.ask(code, fields, body)

    async def pull(
        self,
        topic: str = "T",
        offset: int = 0,
        *,
        queue_id: int = 0,
        timeout_s: float = 60.0,
        **changes: Any,
    ) -> Command:
        """Pull with the expression in the request; the answer."""
        fields = pull_fields(topic, offset, queue_id=queue_id, **changes)
        return await self.ask(RequestCode.PULL_MESSAGE, fields, timeout_s=timeout_s)

    async def messages(self, topic: str = "T", *, queue_id: int = 0) -> list[StoredMessage]:
        """Everything in a queue."""
        await self.node.store.dispatched.wait_for(self.node.store.max_offset)
        messages_read: list[StoredMessage] = []
        while True:
            answer = await self.pull(topic, len(messages_read), queue_id=queue_id)
            if answer.code != 0:
                return messages_read
            messages_read += decode_messages(answer.body)

    async def heartbeat(
        self,
        client_id: str = "client-1",
        *,
        group: str | None = "g",
        topics: dict[str, str] | None = None,
        connection: Connection | None = None,
        **changes: Any,
    ) -> Command:
        """A heartbeat with a producer group and perhaps a consumer group."""
        body = heartbeat_body(client_id, group, topics, **changes)
        target = connection or self.connection
        return await target.request(request(RequestCode.HEART_BEAT, {}, body), timeout_s=60)

    async def commit(self, group: str, topic: str, offset: int, *, queue_id: int = 0) -> Command:
        """Store a consumer offset; the answer."""
        header = UpdateConsumerOffsetRequest(
            consumerGroup=group, topic=topic, queueId=queue_id, commitOffset=offset
        )
        return await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())


def send_fields(
    topic: str = "T",
    queue_id: int = 0,
    properties: dict[str, str] | None = None,
    **changes: Any,
) -> dict[str, str]:
    """Ext fields of a 310."""
    values: dict[str, Any] = {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": encode_properties(properties or {}),
        "j": 0,
    }
    return SendMessageV2Request(**{**values, **changes}).encode()


def pull_fields(
    topic: str = "T",
    offset: int = 0,
    *,
    queue_id: int = 0,
    group: str = "g",
    flags: int = 4,
    hold_ms: int = 0,
    expression: str | None = None,
    count: int = 32,
    **changes: Any,
) -> dict[str, str]:
    """Ext fields of an 11 that brings its expression along."""
    values: dict[str, Any] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": count,
        "sysFlag": flags,
        "commitOffset": 0,
        "suspendTimeoutMillis": hold_ms,
        "subscription": expression,
        "subVersion": 0,
    }
    return PullMessageRequest(**{**values, **changes}).encode()


def heartbeat_body(
    client_id: str,
    group: str | None,
    topics: dict[str, str] | None = None,
    *,
    version: int = 1,
    model: str = "CLUSTERING",
    fingerprint: int = 0,
    without_sub: bool = False,
) -> bytes:
    """Body of a 34; `topics` maps topic to tag expression."""
    subscriptions = [
        SubscriptionData(topic=topic, sub_string=expression, sub_version=version)
        for topic, expression in (topics if topics is not None else {"T": "*"}).items()
    ]
    consumers = []
    if group is not None:
        consumers.append(
            ConsumerData(group_name=group, message_model=model, subscription_data_set=subscriptions)
        )
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=consumers,
        producer_data_set=[ProducerData(group_name="producers")],
        heartbeat_fingerprint=fingerprint,
        without_sub=without_sub,
    ).encode()


Scenario = Callable[[Session], Awaitable[Any]]


async def serve(world: World, scenario: Scenario, options: tuple[str, ...]) -> Any:
    """Run a node and the scenario beside it; stop the node cleanly."""
    config, _ = make_config(settings_from_options([*SMALL, *options]))
    notices: list[Command] = []
    handlers = Handlers(
        inline={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda command, _: notices.append(command)}
    )
    async with trio.open_nursery() as nursery:
        node = await nursery.start(functools.partial(run_node, world, config))
        async with open_connection(world, (HOST, PORT), handlers) as connection:
            value = await scenario(Session(world, node, connection, notices))
        world.process.stop_requested.set()
    return value


def with_node(scenario: Scenario, *options: str, **solo: Any) -> Any:
    """Result of a scenario that runs beside a node on an empty disk, in virtual time."""
    run = node_run(scenario, *options, **solo)
    assert run.outcome == "ended"
    return run.value


def node_run(
    scenario: Scenario, *options: str, image: DiskImage | None = None, **solo: Any
) -> SoloRun:
    """The same, with the disk afterwards, the log, and perhaps a crash."""
    return run_solo(serve, scenario, options, image=image, **solo)
