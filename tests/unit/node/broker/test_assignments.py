"""Queues that the broker shares out, and how groups get their messages (broker.md 1.9)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.node import Node
from rocketbed.node.replication import CopiedTables
from rocketbed.remoting.client import open_connection
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.wire.bodies import RegisterBrokerBody
from rocketbed.wire.bodies_admin import QueryAssignment, QueueAssignments, RequestMode
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from tests.support.broker import HOST, PORT, STORE, Session, node_run, with_node
from tests.support.routing import topics

NAMESERVER = (HOST, 9876)
FILE = f"{STORE}/config/messageRequestMode.json"


async def set_mode(session: Session, topic: str = "T", group: str = "g", **more: Any) -> Command:
    body = RequestMode(topic=topic, consumer_group=group, **more).encode()
    return await session.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)


async def modes(session: Session) -> bytes:
    return (await session.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body


async def assigned(session: Session, client: str = "a", **changes: str) -> list[Any] | None:
    """Broker names and queue ids; None for an answer without a list."""
    values = {"topic": "T", "consumer_group": "g", "strategy_name": "AVG", **changes}
    body = QueryAssignment(client_id=client, **values).encode()
    answer = await session.ask(RequestCode.QUERY_ASSIGNMENT, {}, body)
    assert answer.code == 0
    rows = QueueAssignments.decode(answer.body).message_queue_assignments
    if rows is None:
        assert answer.body == b"{}"
        return None
    assert {row.mode for row in rows} <= {"PULL"}
    return [(row.message_queue.broker_name[-1], row.message_queue.queue_id) for row in rows]


# --- modes


def test_mode_survives_a_power_cut_in_rocketmqs_format() -> None:
    async def put(session: Session) -> None:
        await session.send()
        await session.heartbeat()
        assert (await set_mode(session)).code == 0
        session.world.mark("answered")
        await session.ask(30, {"topic": "T", "queueId": "0"})

    crashed = node_run(put, crash_at_mark="answered", kind="power", mode="strict")
    assert crashed.outcome == "power cut"
    assert node_run(modes, image=crashed.image, boots=2).value == (
        b'{"messageRequestModeMap":{"T":{"g":'
        b'{"consumerGroup":"g","mode":"PULL","popShareQueueNum":0,"topic":"T"}}}}'
    )


def test_modes_that_are_refused() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        for code, topic, group, mode in (
            (ResponseCode.NO_PERMISSION, "%RETRY%g", "g", "PULL"),
            (ResponseCode.TOPIC_NOT_EXIST, "none", "g", "PULL"),
            (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "T", "g", "PULL"),
            (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "T", "TOOLS_CONSUMER", "POP"),
            (ResponseCode.INVALID_PARAMETER, "T", "TOOLS_CONSUMER", "PUSH"),
        ):
            answer = await set_mode(session, topic, group, mode=mode)
            assert answer.code == code
            assert ("POP consumption" in (answer.remark or "")) == (mode == "POP")
        assert await modes(session) == b'{"messageRequestModeMap":{}}'

    with_node(scenario, "autoCreateSubscriptionGroup=false")


def test_setting_a_mode_creates_a_group_if_allowed() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        assert (await set_mode(session, group="new")).code == 0
        assert session.node.tables.groups.get("new") is not None

    with_node(scenario)


async def nothing(session: Session) -> None:
    pass


def put_file(text: bytes) -> Any:
    disk = SimDisk(node_run(nothing).image)
    disk.replace_contents(FILE, text)
    return disk.image()


def test_pop_entries_stay_and_become_pull_with_a_warning() -> None:
    text = (
        b'{"messageRequestModeMap":{"T":{"g":'
        b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":-1,"topic":"T"}}}}'
    )

    async def scenario(session: Session) -> list[Any] | None:
        assert await modes(session) == text
        async with nameserver(session), member(session, "a"):
            return await assigned(session)

    run = node_run(scenario, NAMED, image=put_file(text))
    assert run.value == [("a", number) for number in range(4)]
    (warning,) = [line for line in run.log if line.event == "config.pop_is_pulled"]
    assert warning.fields == {"topic": "T", "group": "g"}


def test_damaged_table_is_skipped_with_a_warning() -> None:
    run = node_run(modes, image=put_file(b'{"messageRequestModeMap":'))
    assert run.value == b'{"messageRequestModeMap":{}}'
    assert {line.fields["path"] for line in run.log if line.event == "config.defaults"} == {FILE}


def test_a_slave_answers_from_what_it_copied() -> None:
    text = b'{"messageRequestModeMap":{"T":{"g":{"mode":"POP","topic":"T"}}}}'

    async def scenario(session: Session) -> bytes:
        node: Node = session.node
        copied = CopiedTables(session.world, node.config, node.store, node.tables)
        await copied.save_text("messageRequestMode.json", text)
        return await modes(session)

    run = node_run(scenario)
    assert b'"mode":"POP"' in run.value
    assert node_run(modes, image=run.image).value == run.value


# --- assignments


NAMED = f"namesrvAddr={HOST}:{NAMESERVER[1]}"


@asynccontextmanager
async def nameserver(session: Session) -> AsyncIterator[Nameserver]:
    """A nameserver with the node's topic T, which has four queues."""
    server = Nameserver(session.world, NameserverConfig(host=HOST, port=NAMESERVER[1]))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await session.send()
        await until_routed(server, "broker-a")
        yield server
        nursery.cancel_scope.cancel()


async def until_routed(server: Nameserver, *brokers: str, topic: str = "T") -> None:
    def names() -> set[str]:
        return {one.broker_name for one in server.table.route(topic, acting_master=False)[0]}

    while names() != set(brokers):  # noqa: ASYNC110, in virtual time
        await trio.sleep(0.1)


@asynccontextmanager
async def other_broker(session: Session, server: Nameserver) -> AsyncIterator[None]:
    """A second broker that has T, with 16 queues that we never ask."""
    async with open_connection(session.world, NAMESERVER) as connection:
        body = RegisterBrokerBody(topic_config_serialize_wrapper=topics("T", "U")).encode()
        fields = {
            "brokerName": "broker-b", "brokerAddr": "10.0.0.9:1", "clusterName": "DefaultCluster",
            "brokerId": "0", "haServerAddr": "10.0.0.9:2",
        }  # fmt: skip
        answer = await connection.request(request(RequestCode.REGISTER_BROKER, fields, body))
        assert answer.code == 0
        await until_routed(server, "broker-a", "broker-b")
        yield


@asynccontextmanager
async def member(session: Session, client: str, **changes: Any) -> AsyncIterator[None]:
    async with open_connection(session.world, (HOST, PORT)) as connection:
        await session.heartbeat(client, connection=connection, **changes)
        yield


@pytest.mark.parametrize(
    ("strategy", "first", "second"),
    [
        ("AVG", [0, 1], [2, 3]),
        ("AVG_BY_CIRCLE", [0, 2], [1, 3]),
        ("CONSISTENT_HASH", [0, 1, 2], [3]),
    ],
)
def test_members_share_queues_by_rocketmqs_rules(
    strategy: str, first: list[int], second: list[int]
) -> None:
    async def scenario(session: Session) -> None:
        async with nameserver(session), member(session, "a"), member(session, "b"):
            for client, numbers in (("a", first), ("b", second)):
                queues = await assigned(session, client, strategy_name=strategy)
                assert queues == [("a", number) for number in numbers]

    assert node_run(scenario, NAMED).outcome == "ended"


def test_queues_of_all_brokers_follow_the_members() -> None:
    async def scenario(session: Session) -> None:
        everything = [("a", n) for n in range(4)] + [("b", n) for n in range(16)]
        async with nameserver(session) as server, other_broker(session, server):
            async with member(session, "a"):
                assert await assigned(session) == everything
                async with member(session, "b"):
                    assert await assigned(session) == everything[:10]
                    assert await assigned(session, "b") == everything[10:]
                while await assigned(session) != everything:  # noqa: ASYNC110, in virtual time
                    await trio.sleep(0.1)
            every = await assigned(session, "nobody", message_model="BROADCASTING")
            assert sorted(every or []) == everything

    assert node_run(scenario, NAMED).outcome == "ended"


def test_non_member_has_no_queues_and_changes_nothing() -> None:
    async def scenario(session: Session) -> None:
        async with nameserver(session):
            assert await assigned(session) is None, "a group without members"
            async with member(session, "a"):
                assert await assigned(session) is not None
                assert await assigned(session, "b") == []
                assert await assigned(session, topic="none") is None
                assert await assigned(session, strategy_name="CONFIG") is None
                assert await assigned(session, message_model="BOTH") is None

    assert node_run(scenario, NAMED).outcome == "ended"


def test_last_route_counts_without_a_nameserver() -> None:
    async def scenario(session: Session) -> None:
        async with member(session, "a"):
            assert await assigned(session) is None
            async with nameserver(session):
                before = await assigned(session)
            assert before == [("a", number) for number in range(4)]
            await trio.sleep(100)  # it is due to be asked for again
            assert await assigned(session) == before

    assert node_run(scenario, NAMED).outcome == "ended"
