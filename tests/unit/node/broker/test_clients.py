"""Heartbeats, groups of clients, notices, expiry (wire.md 6.2)."""

import trio

from rocketbed.node.broker.clients import EXPIRY_S, SCAN_S
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import CheckClientBody, ConsumerIdList, SubscriptionData
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from tests.support.broker import HOST, PORT, Session, with_node


async def ids(session: Session, group: str = "g") -> list[str]:
    answer = await session.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code == 1:
        assert answer.remark == f"no consumer for this group, {group}"
        return []
    return ConsumerIdList.decode(answer.body).consumer_id_list


def test_a_heartbeat_makes_group_and_retry_topic() -> None:
    async def scenario(session: Session) -> None:
        answer = await session.heartbeat()
        assert answer.code == 0
        assert answer.fields == {
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "true",
            "rbMsgpack": "1",
        }
        assert session.node.tables.groups.get("g") is not None
        retry = session.node.tables.topics.get("%RETRY%g")
        assert retry is not None
        assert (retry.read_queue_nums, retry.perm) == (1, 6)
        assert await ids(session) == ["client-1"]
        assert await ids(session, "other") == []

    with_node(scenario)


def test_members_are_notified_of_each_other() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat()
        assert [notice.fields for notice in session.notices] == [{"consumerGroup": "g"}]
        await session.heartbeat()
        assert len(session.notices) == 1
        notices: list[Command] = []

        def note(command: Command, _: Connection) -> None:
            notices.append(command)

        handlers = Handlers(inline={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: note})
        async with open_connection(session.world, (HOST, PORT), handlers) as connection:
            await session.heartbeat("client-2", connection=connection)
            assert await ids(session) == ["client-1", "client-2"]
            assert (len(session.notices), len(notices)) == (2, 1)
        await trio.sleep(1)
        assert await ids(session) == ["client-1"]
        assert len(session.notices) == 3

    with_node(scenario)


def test_subscriptions_are_replaced_by_newer_ones() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat(topics={"T": "A", "U": "*"}, version=1)
        await session.heartbeat(topics={"T": "B"}, version=2)
        group = session.node.broker.clients.consumers["g"]
        assert list(group.subscriptions) == ["T"]
        assert group.subscriptions["T"].sub_string == "B"
        await session.heartbeat(topics={"T": "C"}, version=1)
        assert group.subscriptions["T"].sub_string == "B"
        assert len(session.notices) == 2

    with_node(scenario)


def test_broadcasting_groups_get_no_notice() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat(model="BROADCASTING")
        assert session.notices == []

    with_node(scenario)


def test_unregistering_one_group_keeps_the_rest() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat()
        clients = session.node.broker.clients
        assert list(clients.producers) == ["producers"]
        answer = await session.ask(35, {"clientID": "client-1", "consumerGroup": "g"})
        assert (answer.code, answer.fields) == (0, {})
        assert await ids(session) == []
        assert list(clients.producers) == ["producers"]
        await session.ask(35, {"clientID": "client-1", "producerGroup": "producers"})
        assert not clients.producers

    with_node(scenario)


def test_silent_clients_expire() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat()
        for _ in range(int((EXPIRY_S + 2 * SCAN_S) / 20)):
            await trio.sleep(20)
            await session.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert await ids(session) == []

    with_node(scenario)


def test_heartbeat_version_2() -> None:
    async def scenario(session: Session) -> None:
        first = await session.heartbeat(fingerprint=7)
        assert first.fields["IS_SUB_CHANGE"] == "false"
        same = await session.heartbeat(fingerprint=7, without_sub=True, topics={})
        assert same.fields["IS_SUB_CHANGE"] == "false"
        assert list(session.node.broker.clients.consumers["g"].subscriptions) == ["T"]
        changed = await session.heartbeat(fingerprint=8, without_sub=True, topics={})
        assert changed.fields["IS_SUB_CHANGE"] == "true"

    with_node(scenario)


def test_heartbeats_that_cannot_be_read() -> None:
    async def scenario(session: Session) -> None:
        for body in (b"{", b"[]", b'{"clientID":7}'[:-1], b'{"consumerDataSet":[{}]}'):
            answer = await session.ask(RequestCode.HEART_BEAT, {}, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark

    with_node(scenario)


def test_check_of_filters() -> None:
    async def scenario(session: Session) -> None:
        tags = CheckClientBody(subscription_data=SubscriptionData(topic="T", sub_string="A"))
        assert (await session.ask(46, {}, tags.encode())).code == 0
        sql = CheckClientBody(
            subscription_data=SubscriptionData(topic="T", sub_string="a>1", expression_type="SQL92")
        )
        answer = await session.ask(46, {}, sql.encode())
        assert answer.code == 1
        assert answer.remark == ("The broker does not support consumer to filter message by SQL92")

    with_node(scenario)


def test_empty_subscription_list_of_a_pull_consumer() -> None:
    async def scenario(session: Session) -> None:
        assert (await session.heartbeat(topics={})).code == 0
        assert await ids(session) == ["client-1"]
        late = request(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert (await session.connection.request(late)).code == 1

    with_node(scenario)


def test_names_that_no_file_can_hold_are_refused() -> None:
    """Half a surrogate pair in a group's name ended the node when it wrote its groups."""

    async def scenario(session: Session) -> None:
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"\\ud800"}]}'
        answer = await session.ask(RequestCode.HEART_BEAT, {}, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        await trio.sleep(10)
        assert (await session.send()).code == 0

    with_node(scenario)
