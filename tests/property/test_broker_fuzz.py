"""Whatever a client asks, each request gets one answer, or its connection ends, and nothing breaks:
no error is logged, others send and read, and the tables can be handed out and written."""

import json
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.chaos.backends.sim.solo import SoloRun
from rocketbed.node.broker.refusals import FEATURES
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import ConnectionLost
from rocketbed.wire.command import Command, Encoding, RequestCode, request
from rocketbed.wire.encoding.fields import plans
from rocketbed.wire.encoding.registry import REQUESTS
from tests.support.broker import (
    HOST,
    PORT,
    Session,
    heartbeat_body,
    node_run,
    pull_fields,
    send_fields,
)
from tests.support.broker_requests import BODIES, HEADERS, LOCKS, QUEUE, requests_of

NAMES = sorted(
    {plan.name for header in REQUESTS.values() for plan in plans(header)}
    | {"group", "groupName", "topicSeq", "groupSeq", "maxTopicNum", "dataVersion", "perm"}
    | {"readQueueNums", "writeQueueNums", "topicFilterType", "attributes", "cleanOffset"}
)
CODES = sorted({*RequestCode} - set(FEATURES) | {0, -1, 4711})
texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.sampled_from(["0", "1", "-1", "3", "32", "2147483647", "-9223372036854775808", "1e3"])
words = st.sampled_from(
    ["T", "g", "TBW102", "%RETRY%g", "SINGLE_TAG", "true", "*", "a||b", "SQL92", "lower", "+a=b"]
)
values = numbers | words | texts
property_strings = st.lists(
    st.sampled_from(["UNIQ_KEY\x01U\x02", "TAGS\x01\x02", "KEYS\x01a  b\x02", "\x02", "x\x01y"])
    | st.sampled_from(["DELAY\x011\x02", "WAIT\x01false\x02", "POP_CK\x01p\x02", "\x01\x02\x01"])
    | texts,
    max_size=4,
).map("".join)
fields = st.fixed_dictionaries(
    {},
    optional={name: values for name in NAMES if name != "i"} | {"i": property_strings},
)
likely_fields = st.fixed_dictionaries(
    {"b": st.just("T"), "e": numbers, "f": numbers, "g": numbers, "h": numbers}
    | {"a": texts, "c": st.just("TBW102"), "d": numbers, "i": property_strings}
    | {"topic": st.sampled_from(["T", "%RETRY%g", "N"]), "queueId": numbers}
    | {"consumerGroup": st.just("g"), "queueOffset": numbers, "maxMsgNums": numbers}
    | {"sysFlag": numbers, "commitOffset": numbers, "suspendTimeoutMillis": st.just("0")}
    | {"subVersion": numbers, "offset": numbers, "timestamp": numbers, "key": texts}
    | {"maxNum": numbers, "beginTimestamp": numbers, "endTimestamp": numbers},
    optional={"j": numbers, "m": st.sampled_from(["true", "false"]), "subscription": words},
)
bodies = st.binary(max_size=40) | st.sampled_from(
    [
        b"",
        b"{}",
        b"[]",
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":7,"subscriptionDataSet":[{}]}]}',
        b'{"topicConfigList":[{"topicName":"L"}]}',
        b'{"topicConfigList":[{"topicName":null}]}',
        b'{"groupName":"h","retryMaxTimes":"3"}',
        b'{"groupConfigList":{}}',
        b'{"subscriptionData":{"topic":"T","expressionType":"SQL92"}}',
        b"{" * 500,
    ]
)
requests = st.builds(
    lambda code, own, body, encoding: request(code, own, body, encoding=encoding),
    st.sampled_from(CODES),
    fields | likely_fields,
    bodies,
    st.sampled_from([Encoding.JSON, Encoding.MSGPACK]),
)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(requests, min_size=1, max_size=12))
def test_every_request_is_answered_and_nothing_breaks(commands: list[Command]) -> None:
    async def scenario(session: Session) -> int:
        await session.send()
        for command in commands:
            answer = await session.connection.request(command, timeout_s=200)
            assert answer.is_response
            assert answer.encoding is command.encoding
        assert (await session.send("Other")).code == 0
        return len(commands)

    run = node_run(scenario)
    assert run.value == len(commands)
    assert not [line for line in run.log if line.level == "error"]


# --- every field of every code


class Client:
    """A connection that is opened again when the broker has closed it."""

    def __init__(self, session: Session, stack: AsyncExitStack) -> None:
        self._session = session
        self._stack = stack
        self.connection: Connection | None = None

    async def ask(self, command: Command) -> Command | None:
        """The answer; None where the connection ended instead."""
        if self.connection is None or self.connection.is_closed:
            opening = open_connection(self._session.world, (HOST, PORT))
            self.connection = await self._stack.enter_async_context(opening)
        try:
            return await self.connection.request(command, timeout_s=200)
        except ConnectionLost:
            return None


async def all_is_well(session: Session) -> None:
    """Others send, read and commit; tables are handed out whole, and written."""
    await session.heartbeat("well", group="well")
    assert (await session.send("Well", b"well")).code == 0
    assert (await session.messages("Well"))[-1].body == b"well"
    assert (await session.commit("well", "Well", 1)).code == 0
    for code in (21, 26, 28, 43, 45, 201, 402, 907):
        answer = await session.ask(code)
        assert answer.code == 0, (code, answer.remark)
    await session.node.tables.save()


def check(run: SoloRun) -> None:
    """No error, and the next start finds its tables."""
    second_run = node_run(all_is_well, image=run.image)
    for checked in (run, second_run):
        assert checked.outcome == "ended"
        error_events = {line.event for line in checked.log if line.level == "error"}
        assert not error_events
    assert "config.from_backup" not in {line.event for line in second_run.log}


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.sampled_from(sorted(HEADERS)).flatmap(requests_of), min_size=1, max_size=12))
def test_each_field_and_member_may_be_anything(commands: list[Command]) -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        await session.heartbeat("c")
        async with AsyncExitStack() as stack:
            client = Client(session, stack)
            for command in commands:
                answer = await client.ask(command)
                assert answer is None or answer.encoding is command.encoding
        await all_is_well(session)

    check(node_run(scenario))


def test_every_code_that_is_served_is_among_them() -> None:
    async def scenario(session: Session) -> set[int]:
        handlers = session.node.broker.handlers
        return {*handlers.run, *handlers.inline, *handlers.spawned} - {*FEATURES}

    run = node_run(scenario)
    check(run)
    assert run.value <= HEADERS.keys()


# --- groups

GROUPS: Final = ("g", "%RETRY%g", "é")
steps = st.one_of(
    st.tuples(
        st.just("heartbeat"),
        st.sampled_from(GROUPS),
        st.dictionaries(st.sampled_from(["T", "U", "%RETRY%g"]), st.sampled_from(["*", "a", "||"])),
        st.sampled_from(["CLUSTERING", "BROADCASTING", "x"]),
        st.integers(-(2**63), 2**63 - 1),
    ),
    st.tuples(st.just("leave"), st.sampled_from(GROUPS)),
    st.tuples(st.just("commit"), st.sampled_from([-1, 0, 10**6, 2**63 - 1])),
    st.tuples(st.just("pull"), st.sampled_from([-1, 0, 10**6, 2**63 - 1])),
    st.tuples(st.just("send"), st.sampled_from(["1", "18", "99", "-1", str(2**40)])),
    st.tuples(st.just("back"), st.sampled_from([-1, 0, 99]), st.sampled_from([-1, 0, 3, 10**9])),
    st.tuples(st.just("lock"), st.integers(-1, 9)),
    st.tuples(st.just("ask"), st.sampled_from([38, 40, 203, 204, 208, 307, 400])),
    st.just(("gone",)),
)


async def do(client: Client, name: str, step: tuple[Any, ...]) -> None:
    kind, *details = step
    if kind == "heartbeat":
        group, topics, model, version = details
        body = heartbeat_body(name, group, topics, model=model, version=version)
        await client.ask(request(RequestCode.HEART_BEAT, {}, body))
    elif kind == "leave":
        fields = {"clientID": name, "consumerGroup": details[0], "producerGroup": "producers"}
        await client.ask(request(RequestCode.UNREGISTER_CLIENT, fields))
    elif kind == "commit":
        fields = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "commitOffset": str(details[0]),
        }
        await client.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
    elif kind == "pull":
        fields = pull_fields("T", details[0], flags=1, hold_ms=30)  # by the group's subscription
        await client.ask(request(RequestCode.PULL_MESSAGE, fields))
    elif kind == "send":
        properties = {"DELAY": details[0], "UNIQ_KEY": "A" * 32}
        await client.ask(
            request(RequestCode.SEND_MESSAGE_V2, send_fields(properties=properties), b"x")
        )
    elif kind == "back":
        fields = {"group": "g", "delayLevel": str(details[0]), "offset": str(details[1])}
        await client.ask(request(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
    elif kind == "lock":
        queue = {**QUEUE, "queueId": details[0]}
        body = json.dumps({**LOCKS, "clientId": name, "mqSet": [queue]}).encode()
        await client.ask(request(RequestCode.LOCK_BATCH_MQ, {}, body))
    elif kind == "ask":
        fields = {"consumerGroup": "g", "producerGroup": "producers", "clientId": name}
        body = json.dumps(BODIES[RequestCode.QUERY_ASSIGNMENT]).encode()
        await client.ask(request(details[0], fields, body))
    elif client.connection is not None:
        client.connection.close()


@pytest.mark.slow
@settings(max_examples=120)
@given(st.lists(st.tuples(st.sampled_from("abc"), steps), min_size=1, max_size=25))
def test_members_do_what_no_client_does(moves: list[tuple[str, tuple[Any, ...]]]) -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        async with AsyncExitStack() as stack:
            clients = {name: Client(session, stack) for name in "abc"}
            for name, step in moves:
                await do(clients[name], name, step)
            await all_is_well(session)

    check(node_run(scenario))


def test_reconnecting_client_leaves_nothing() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat("stays")
        for number in range(100):
            async with open_connection(session.world, (HOST, PORT)) as connection:
                await session.heartbeat("comes", connection=connection)
                if number % 3 == 0:  # it ends while it is asked for something
                    connection.notify(
                        request(RequestCode.PULL_MESSAGE, pull_fields(hold_ms=20_000))
                    )
                if number % 3 == 1:
                    connection.notify(
                        request(RequestCode.HEART_BEAT, {}, heartbeat_body("comes", "h"))
                    )
        clients = session.node.broker.clients
        while [len(group.members) for group in clients.consumers.values()] != [1]:  # noqa: ASYNC110
            await trio.sleep(0.1)
        assert len(clients.producers["producers"]) == 1
        await all_is_well(session)

    check(node_run(scenario))
