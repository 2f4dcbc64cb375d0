"""Routes: what a nameserver's answer means, how long it counts, which nameserver is asked."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.errors import BadMessage, NoBroker, NoNameserver, NoRoute, RequestRefused
from rocketbed.client.nameservers import parse_nameservers
from rocketbed.client.pulls import TagFilter
from rocketbed.client.routes import route_of
from rocketbed.client.session import Session
from rocketbed.wire.bodies import MessageQueue, SubscriptionGroupConfig, TopicRouteData
from rocketbed.wire.codes import RequestCode
from rocketbed.wire.command import answer, request
from tests.support.client import HOST, NAMESERVER, Peer, Stage, on_stage, port_of, route

BROKER = f"{HOST}:{port_of('a')}"
QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)


def names(queues: Any) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_queues_of_a_route() -> None:
    data = route("b", "a", ids=(0, 1))
    actual = route_of("T", data)
    assert names(actual.writable) == names(actual.readable) == ["a0", "a1", "b0", "b1"]
    assert actual.master("a") == (HOST, port_of("a"))
    assert actual.master("c") is None


def test_permissions_and_masters_decide_what_is_written() -> None:
    data = route("a", "b", queues=1)
    data.broker_datas[0].broker_addrs = {2: "10.0.0.1:5"}
    actual = route_of("T", data)
    assert names(actual.writable) == ["b0"]
    assert names(actual.ordered) == names(actual.readable) == ["a0", "b0"]
    assert route_of("T", route("a", perm=4)).ordered == ()
    assert route_of("T", route("a", perm=2)).readable == ()


def test_reads_go_to_the_wanted_member_or_the_nearest() -> None:
    actual = route_of("T", route("a", ids=(0, 1, 3)))
    members = {number: (number, (HOST, port_of("a", number))) for number in (0, 1, 3)}
    assert [actual.member("a", wanted) for wanted in (0, 1, 2, 3)] == [
        members[0],
        members[1],
        members[3],
        members[3],
    ]
    assert actual.member("a", 7) == members[0]
    assert route_of("T", route("a", ids=(2,))).member("a", 0) == (2, (HOST, port_of("a", 2)))
    assert actual.member("x", 0) is None


def test_both_json_dialects_of_a_route_are_read() -> None:
    text = (
        '{"brokerDatas":[{"brokerAddrs":{%s:"10.0.0.1:10911"},"brokerName":"a","cluster":"c"}],'
        '"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1,'
        '"topicSysFlag":0}]}'
    )
    for key in ("0", '"0"'):
        route = route_of("T", TopicRouteData.decode((text % key).encode()))
        assert route.master("a") == ("10.0.0.1", 10911)


def test_a_route_counts_for_half_a_minute() -> None:
    async def scenario(stage: Stage) -> list[int]:
        stage.routes["T"] = route("a")
        counts = []
        async with Session(stage.world, NAMESERVER) as session:
            for pause_s in (0, 29, 2, 0):
                await trio.sleep(pause_s)
                await session.routes.get("T")
                await trio.sleep(0.5)
                counts.append(len(stage.nameserver.requests))
            session.routes.distrust("T")
            await session.routes.get("T")
            counts.append(len(stage.nameserver.requests))
        return counts

    assert on_stage(scenario).value == [1, 1, 2, 2, 3]


def test_current_route_is_returned_without_a_wait() -> None:
    async def scenario(stage: Stage) -> list[bool]:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            routes = session.routes
            cached = [routes.cached("T")]
            got = await routes.get("T")
            cached.append(routes.cached("T"))
            await trio.sleep(31)
            cached.append(routes.cached("T"))
            await trio.sleep(1)
            renewed = routes.cached("T")
            assert renewed == got
            assert renewed is not got
            await trio.sleep(61)
            cached.append(routes.cached("T"))
            await routes.get("T")
            routes.distrust("T")
            cached.append(routes.cached("T"))
        return [route is got for route in cached]

    assert on_stage(scenario).value == [False, True, True, False, False]


@pytest.mark.parametrize(("is_silent", "master"), [(False, "b"), (True, "a")])
def test_unused_route_is_refreshed_with_a_short_wait(is_silent: bool, master: str) -> None:
    """Hundreds of topics: each send after a while went to who had been master (seed 840106)."""

    async def scenario(stage: Stage) -> float:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            await session.routes.get("T")
            await trio.sleep(40)
            stage.routes["T"] = route("b")
            stage.nameserver.is_dead = is_silent
            began = trio.current_time()
            for _ in range(2):
                assert list((await session.routes.get("T")).brokers) == [master]
            return trio.current_time() - began

    assert on_stage(scenario).value < 0.6


def test_broker_address_applies_to_all_routes() -> None:
    """Each of hundreds of topics led once to a master that had moved (seed 840113)."""

    async def scenario(stage: Stage) -> None:
        stage.routes |= {"T": route("a", "b"), "U": route("b", "c"), "V": route("c")}
        async with Session(stage.world, NAMESERVER) as session:
            routes = session.routes
            first = {topic: await routes.get(topic) for topic in stage.routes}
            stage.routes["T"].broker_datas[1].broker_addrs = {1: f"{HOST}:{port_of('b', 1)}"}
            routes.distrust("T")
            await routes.get("T")
            later = await routes.get("U")
            assert later.brokers["b"] == {1: (HOST, port_of("b", 1))}
            assert names(later.writable) == ["c0", "c1"]
            assert later.ordered == first["U"].ordered
            assert routes.cached("V") is first["V"]
            stage.routes["T"].broker_datas[1].broker_addrs = {0: f"{HOST}:{port_of('b', 1)}"}
            routes.distrust("T")
            await routes.get("T")
            assert names((await routes.get("U")).writable) == ["b0", "b1", "c0", "c1"]

    on_stage(scenario)


def test_many_that_want_a_route_ask_once() -> None:
    async def scenario(stage: Stage) -> int:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session, trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(session.routes.get, "T")
        return len(stage.nameserver.requests)

    assert on_stage(scenario).value == 1


def test_an_old_route_is_better_than_none() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            route_before = await session.routes.get("T")
            stage.nameserver.stop()
            await trio.sleep(100)
            assert await session.routes.get("T") == route_before
            with pytest.raises(NoNameserver):
                await session.routes.get("U")

    on_stage(scenario)


def test_outage_is_logged_once_with_its_cause() -> None:
    async def scenario(stage: Stage) -> None:
        async with Session(stage.world, NAMESERVER) as session:
            for _ in range(2):
                stage.routes["T"] = route("a")
                await session.routes.get("T", fresh=True)
                del stage.routes["T"]  # as a nameserver does once no broker is left
                for _ in range(3):
                    await trio.sleep(1)
                    session.routes.distrust("T")
                    await session.routes.get("T")

    lines = [line.fields for line in on_stage(scenario).log if line.event == "client.route_kept"]
    error = "every broker of topic T is gone; its last route is kept"
    assert [fields["error"] for fields in lines] == [error, error]


def test_deleted_topic_has_no_route() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            await session.routes.get("T")
            del stage.routes["T"]
            await trio.sleep(1)
            session.routes.distrust("T", is_gone=True)
            with pytest.raises(NoRoute, match="create it first"):
                await session.routes.get("T")

    on_stage(scenario)


def nowhere() -> TopicRouteData:
    data = route("a")
    data.broker_datas[0].broker_addrs = {0: "nowhere"}
    return data


@pytest.mark.parametrize("trouble", ["knows nothing", "sends damage", "refuses", "names nowhere"])
def test_good_route_is_kept_against_nameserver_errors(trouble: str) -> None:
    is_empty = trouble == "knows nothing"

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            cached_route = await session.routes.get("T")
            if is_empty:
                del stage.routes["T"]
            elif trouble == "refuses":
                stage.nameserver.answering = lambda command: answer(command, 1, "not ready")
            elif trouble == "sends damage":
                stage.nameserver.answering = lambda command: answer(command, 0, body=b'{"brokerD')
            else:
                stage.routes["T"] = nowhere()
            for _ in range(4):
                await trio.sleep(20)
                assert await session.routes.get("T") is cached_route
            session.routes.distrust("T")
            assert await session.routes.get("T") is cached_route
            with pytest.raises(NoRoute) if is_empty else nullcontext():  # as one that is silent
                assert await session.routes.get("T", fresh=True) is cached_route
            assert await session.routes.get("T") is cached_route

    on_stage(scenario)


def test_wrong_route_is_refreshed_twice_a_second() -> None:
    async def scenario(stage: Stage) -> int:
        stage.routes["T"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            for _ in range(100):
                await session.routes.get("T")
                session.routes.distrust("T")
                await trio.sleep(0.05)
        return len(stage.nameserver.requests)

    assert 10 <= on_stage(scenario).value <= 11


def test_template_route_serves_only_topic_creators() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["TBW102"] = route("a", queues=8)
        async with Session(stage.world, NAMESERVER) as session:
            made_route = await session.routes.get("T", make=True)
            assert (made_route.is_template, len(made_route.writable)) == (True, 4)
            with pytest.raises(NoRoute):
                await session.routes.get("T")

    on_stage(scenario)


def test_template_route_serves_only_its_own_topic() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["TBW102"] = route("a")
        async with Session(stage.world, NAMESERVER) as session:
            await session.routes.get("T", make=True)
            stage.nameserver.is_dead = True
            with pytest.raises(NoNameserver):
                await session.routes.get("T")

    on_stage(scenario)


def test_a_nameserver_that_refuses_is_quoted() -> None:
    async def scenario(stage: Stage) -> None:
        stage.nameserver.answering = lambda command: answer(command, 1, "name server not ready")
        async with Session(stage.world, NAMESERVER) as session:
            with pytest.raises(RequestRefused, match=r"1 \(SYSTEM_ERROR\): name server not ready"):
                await session.routes.get("T")

    on_stage(scenario)


def test_invalid_address_is_reported() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = nowhere()
        async with Session(stage.world, NAMESERVER) as session:
            with pytest.raises(NoNameserver, match=r"be read: the route of topic T .*nowhere"):
                await session.routes.get("T")

    on_stage(scenario)


def with_impossible_address(data: TopicRouteData) -> TopicRouteData:
    """Change the address of the route's last broker."""
    data.broker_datas[-1].broker_addrs = {0: "ns..svc:10911"}
    return data


def test_broker_with_an_impossible_address_is_left_out() -> None:
    actual = route_of("T", with_impossible_address(route("a", "b", queues=1)))
    assert names(actual.writable) == names(actual.readable) == ["a0"]
    with pytest.raises(ValueError, match=r"'ns\.\.svc'"):
        route_of("T", with_impossible_address(route("a")))


HALF = "a\udc80"


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.route(HALF),
        lambda admin: admin.group_members(HALF),
        lambda admin: admin.messages_by_key("T", HALF),
        lambda admin: admin.offsets.committed(HALF, QUEUE),
        lambda admin: admin.offsets.max_offset(replace(QUEUE, topic=HALF)),
        lambda admin: admin.create_topic("T", attributes=HALF),
        lambda admin: admin.create_group(
            SubscriptionGroupConfig(group_name="g", attributes={"k": HALF})
        ),
        lambda admin: admin.change_broker_config(BROKER, {"brokerName": HALF}),
        lambda admin: admin.force_leader(HALF, 1),
    ],
)
def test_text_that_no_request_can_hold_is_an_invalid_argument(call: Any) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await stage.broker("a")
        async with Admin(stage.world, nameservers=NAMESERVER) as admin:
            with pytest.raises(BadMessage, match="cannot be written"):
                await call(admin)

    on_stage(scenario)


def test_subscription_to_half_of_a_character_is_refused() -> None:
    with pytest.raises(BadMessage, match="tags must be whole characters"):
        TagFilter(f"A || {HALF}")


def test_administration_names_an_impossible_address() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = with_impossible_address(route("a"))
        async with Admin(stage.world, nameservers=NAMESERVER) as admin:
            for call in (
                lambda: admin.group_members("g"),
                lambda: admin.runtime_info("ns..svc:1"),
            ):
                with pytest.raises(NoBroker, match=r"'ns\.\.svc'"):
                    await call()

    on_stage(scenario)


# --- several nameservers


@pytest.mark.parametrize(
    "text", ["a:1;b:2", "a:1,b:2", " a:1 ; b:2;", ["a:1", "b:2"], "a:1;b:2;a:1"]
)
def test_lists_of_nameservers(text: Any) -> None:
    assert parse_nameservers(text) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("text", ["", ";", "a", "a:x", "a:99999", ":1", []])
def test_invalid_lists(text: Any) -> None:
    with pytest.raises(BadMessage):
        parse_nameservers(text)


async def three(stage: Stage) -> list[Peer]:
    more_nameservers = [await stage.peer(port, stage.name_service) for port in (9877, 9878)]
    return [stage.nameserver, *more_nameservers]


THREE = f"{HOST}:9876;{HOST}:9877;{HOST}:9878"


@pytest.mark.parametrize("seed", range(4))
def test_client_stays_with_a_nameserver_until_it_fails(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        servers = await three(stage)
        used = []
        async with Session(stage.world, THREE) as session:
            for _ in servers:
                before = [len(server.requests) for server in servers]
                for _ in range(4):
                    await trio.sleep(1)
                    session.routes.distrust("T")
                    await session.routes.get("T")
                grown = [len(s.requests) - old for s, old in zip(servers, before, strict=True)]
                assert sorted(grown) == [0, 0, 4]
                used.append(grown.index(4))
                servers[used[-1]].stop()
        assert sorted(used) == [0, 1, 2]

    on_stage(scenario, seed=seed)


def test_silent_nameserver_leaves_time_for_others() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        dumb = await stage.peer(9877, lambda command: None)
        for _ in range(6):
            async with Session(stage.world, f"{NAMESERVER};{HOST}:9877") as session:
                await session.routes.get("T")
        assert dumb.requests

    on_stage(scenario)


def test_troubled_nameserver_is_skipped() -> None:
    """It refuses, or names an invalid broker address; another one works."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        refusing = await stage.peer(9877, lambda command: answer(command, 1, "not ready"))
        body = nowhere().encode()
        lost = await stage.peer(9878, lambda command: answer(command, 0, body=body))
        for _ in range(8):
            async with Session(stage.world, THREE) as session:
                assert (await session.routes.get("T")).master("a") is not None
        assert refusing.requests
        assert lost.requests
        stage.nameserver.stop()
        async with Session(stage.world, THREE) as session:
            with pytest.raises(NoNameserver, match="not ready"):
                await session.routes.get("T")

    on_stage(scenario)


def test_when_none_answers_each_is_named() -> None:
    async def scenario(stage: Stage) -> None:
        async with Session(stage.world, f"{HOST}:1;{HOST}:2") as session:
            with pytest.raises(NoNameserver, match=r"10\.0\.0\.1:[12].*10\.0\.0\.1:[12]"):
                await session.routes.get("T")

    on_stage(scenario)


def test_changes_go_to_every_nameserver() -> None:
    async def scenario(stage: Stage) -> None:
        servers = await three(stage)
        for server in servers:
            server.answering = lambda command: answer(command, fields={"wipeTopicCount": "3"})
        command = request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
        async with Session(stage.world, THREE) as session:
            assert len(await session.nameservers.request_all(command, "wipe")) == 3
            assert [len(server.requests) for server in servers] == [1, 1, 1]
            servers[1].answering = lambda command: answer(command, 1, "no")
            with pytest.raises(RequestRefused, match=r"nameserver 10\.0\.0\.1:9877"):
                await session.nameservers.request_all(command, "wipe")
            servers[1].stop()
            with pytest.raises(NoNameserver, match="not every nameserver"):
                await session.nameservers.request_all(command, "wipe")
            assert [len(server.requests) for server in servers] == [3, 2, 3]

    on_stage(scenario)


@pytest.mark.parametrize("count", [65_537, 2**31 - 1, -1])
def test_impossible_number_of_queues_is_refused(count: int) -> None:
    data = route("a")
    data.queue_datas[0] = replace(data.queue_datas[0], read_queue_nums=count)
    with pytest.raises(ValueError, match=f"{count} and"):
        route_of("T", data)
