"""Topics, groups, positions and locks of a group with failover: what was answered holds at whoever
leads next, and who does not lead changes nothing."""

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import RequestRefused
from rocketbed.client.locks import Locks
from rocketbed.client.messages import Message
from rocketbed.client.producer import Producer
from rocketbed.client.session import Session
from rocketbed.node.only_leader import CHANGES
from rocketbed.node.store.status import PutStatus
from rocketbed.remoting.client import dial
from rocketbed.wire.bodies import MessageQueue, SubscriptionGroupConfig
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import request
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.headers_admin import ResetOffsetRequest, TopicRequest
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import GROUP, NAMESERVER, PORT, FailoverNodes

QUEUE = MessageQueue(topic="T", broker_name=GROUP, queue_id=0)
ENDS = ["kill", "hand over", "stop"]


def ready(group: FailoverNodes) -> str:
    """Who leads; the followers copy no tables, so that only the log tells them of changes."""
    leader = group.settle()
    group.wait(group.is_routed)
    group.copy_no_tables()
    return leader


def end(group: FailoverNodes, leader: str, how: str) -> str:
    """Have another one lead; its name."""

    if how == "kill":
        group.simulation.kill(leader)
    elif how == "stop":
        group.simulation.stop(leader)
    else:
        group.hand_over(leader)
    group.wait(lambda: group.leader() not in ("", leader))
    return group.leader()


async def fill(world: World, topic: str, bodies: str, count: int) -> None:
    queue = MessageQueue(topic=topic, broker_name=GROUP, queue_id=0)
    async with Producer(world, nameservers=NAMESERVER, group="pg") as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%s %d" % (bodies.encode(), number)), queue=queue)


def test_who_follows_changes_nothing() -> None:
    async def ask(world: World) -> list[int]:
        connection = await dial(world, address, timeout_s=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            codes = [
                (await connection.request(request(code, {}), timeout_s=3)).code for code in CHANGES
            ]
            nursery.cancel_scope.cancel()
        return codes

    with FailoverNodes(50) as group:
        leader = ready(group)
        follower = next(name for name in group.names if name != leader)
        address = (group.simulation.host(follower).address, PORT)
        codes = dict(zip(CHANGES, group.run_program(ask), strict=True))
        # Sent on to the leader, and refused there.
        assert codes.pop(RequestCode.DELETE_TOPIC_IN_BROKER) == ResponseCode.SYSTEM_ERROR
        assert {*codes.values()} == {ResponseCode.SERVICE_NOT_AVAILABLE}


def test_a_deletion_that_every_member_is_asked_for_is_made_by_the_leader() -> None:
    """As RocketMQ's tools do; two topics at a time."""

    async def delete(world: World) -> None:
        await fill(world, "T", "old", 20)
        await fill(world, "U", "old", 20)
        async with Admin(world, nameservers=NAMESERVER) as admin, trio.open_nursery() as nursery:
            for topic in ("T", "U"):
                nursery.start_soon(delete_everywhere, admin, topic)

    async def delete_everywhere(admin: Admin, topic: str) -> None:
        for name in group.names:
            code, address = RequestCode.DELETE_TOPIC_IN_BROKER, group.nodes[name].config.address
            await admin.ask(address, code, TopicRequest(topic=topic), what="delete")

    with FailoverNodes(58) as group:
        ready(group)
        group.run_program(delete)
        stores = [node.store for node in group.nodes.values()]
        group.wait(
            lambda: all(store.queue_max(topic, 0) == 0 for topic in "TU" for store in stores)
        )
        assert not any(node.tables.topics.get("T") for node in group.nodes.values())


def test_what_cannot_be_put_into_the_log_is_not_answered_with_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def prepare(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            await admin.create_topic("T")
            await admin.create_group(SubscriptionGroupConfig(group_name="there"))

    async def make(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            header = ResetOffsetRequest(topic="T", group="there", queueId=0, offset=0, timestamp=-1)
            code, address = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group.nodes[leader].config
            for make in (
                lambda: admin.ask(address.address, code, header, what="reset"),
                lambda: admin.create_topic("Made"),
                lambda: admin.create_group(SubscriptionGroupConfig(group_name="cg")),
            ):
                with pytest.raises(
                    RequestRefused, match=r"not confirmed by enough replicas .*rbDirtyMax"
                ):
                    await make()

    with FailoverNodes(51) as group:
        leader = ready(group)
        group.run_program(prepare)
        store = group.nodes[leader].store
        refusal = PutStatus.OS_PAGE_CACHE_BUSY, "the disk is behind (rbDirtyMax)"
        monkeypatch.setattr(store, "refusal", lambda: refusal)
        group.run_program(make)


@pytest.mark.parametrize("how", ["hand over", "stop"])
def test_a_change_that_was_answered_survives_a_planned_change_of_the_leader(how: str) -> None:
    made: dict[str, bool] = {}

    async def operate(world: World, first: int) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            for number in range(first, 10**6, 3):
                name = f"group-{number}"
                try:
                    await admin.create_group(SubscriptionGroupConfig(group_name=name))
                    made[name] = True
                    if number % 2:
                        made.pop(name)
                        await admin.delete_group(name)
                        made[name] = False
                except Exception:  # whatever it was, nothing is promised
                    made.pop(name, None)
                    await trio.sleep(0.05)

    async def all_three(world: World) -> None:
        async with trio.open_nursery() as nursery:
            for first in range(3):
                nursery.start_soon(operate, world, first)

    with FailoverNodes(52) as group:
        leader = ready(group)
        program = group.program(all_three)
        group.wait(lambda: len(made) > 40)
        new = end(group, leader, how)
        count = len(made)
        group.wait(lambda: len(made) > count + 20)
        group.simulation.kill(program.host.name)
        groups = group.nodes[new].tables.groups
        assert {name: groups.get(name) is not None for name in made} == made


@pytest.mark.parametrize("how", ENDS)
def test_a_deleted_topic_that_is_made_again_begins_empty(how: str) -> None:
    async def delete(world: World) -> None:
        await fill(world, "T", "old", 100)
        async with Admin(world, nameservers=NAMESERVER) as admin:
            await admin.delete_topic("T")

    async def read(world: World) -> list[bytes]:
        await fill(world, "T", "new", 50)
        async with Consumer(world, nameservers=NAMESERVER, group="cg") as reader:
            await reader.subscribe("T", start="first")
            found = []
            while messages := await reader.poll(timeout_s=2):
                found += [message.body for message in messages]
        return found

    with FailoverNodes(53) as group:
        leader = ready(group)
        group.run_program(delete)
        end(group, leader, how)
        found = group.run_program(read)
        assert sorted(found) == sorted(b"new %d" % number for number in range(50))


@pytest.mark.parametrize("how", ENDS)
def test_a_reset_that_was_answered_holds_at_the_next_leader(how: str) -> None:
    got: list[int] = []

    async def member(world: World) -> None:
        await fill(world, "T", "body", 100)
        async with Consumer(world, nameservers=NAMESERVER, group="cg", auto_commit_s=0.5) as reader:
            await reader.subscribe("T", start="first")
            while True:
                got.extend(message.queue_offset for message in await reader.poll(timeout_s=1))
                await trio.sleep(1.5)

    async def reset(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            header = ResetOffsetRequest(topic="T", group="cg", queueId=0, offset=10, timestamp=-1)
            code, address = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group.nodes[leader].config
            await admin.ask(address.address, code, header, what="reset")

    with FailoverNodes(54) as group:
        leader = ready(group)
        group.program(member)
        group.wait(lambda: len(got) >= 100)
        group.simulation.run(3)
        group.run_program(reset)
        before = len(got)
        end(group, leader, how)
        group.wait(lambda: set(got[before:]) >= set(range(10, 100)))
        group.simulation.run(5)  # and it is sent there once
        assert len(got) - before < 180


@pytest.mark.parametrize("how", ENDS)
def test_the_next_leader_knows_who_has_locked_a_queue(how: str) -> None:
    async def lock(world: World) -> list[MessageQueue]:
        async with Session(world, NAMESERVER) as session:
            route = await session.routes.get("T")
            return await Locks(session, "cg").hold(route, [QUEUE])

    async def first(world: World) -> None:
        await fill(world, "T", "body", 1)
        async with Session(world, NAMESERVER) as session:
            locks = Locks(session, "cg")
            held.append(await locks.hold(await session.routes.get("T"), [QUEUE]))
            await trio.sleep(3)
            held.append(await locks.hold(await session.routes.get("T", fresh=True), [QUEUE]))
            await locks.release(await session.routes.get("T"), [QUEUE])
            held.append([])
            await trio.sleep_forever()

    held: list[list[MessageQueue]] = []
    with FailoverNodes(55) as group:
        leader = ready(group)
        group.program(first)
        group.wait(lambda: held == [[QUEUE]])
        group.simulation.run(0.5)
        end(group, leader, how)
        assert group.run_program(lock) == []
        group.wait(lambda: len(held) == 3)
        assert held == [[QUEUE], [QUEUE], []]
        assert group.run_program(lock) == [QUEUE]


def test_a_message_is_put_back_once_the_next_leader_would_have_it() -> None:
    async def put_back(world: World) -> int:
        connection = await dial(world, address, timeout_s=3)
        header = SendBackRequest(
            offset=place, group="cg", delayLevel=0, originMsgId="", originTopic="T", bname=GROUP
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            code = (await connection.request(command, timeout_s=10)).code
            nursery.cancel_scope.cancel()
        return code

    with FailoverNodes(56) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "body", 3))
        address = (group.simulation.host(leader).address, PORT)
        place = group.nodes[leader].store.units("T", 0, 0, 1)[0][0]
        assert group.run_program(put_back) == ResponseCode.SUCCESS
        for name in group.names:
            if name != leader:
                group.simulation.pause(name)
        code = group.run_program(put_back)
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("how", ["hand over", "stop"])
def test_a_planned_change_of_the_leader_forgets_no_commit(how: str) -> None:
    """Committed again and again; the next leader has the last one that was answered."""
    answered = [0]

    async def commit(world: World) -> None:
        await fill(world, "T", "body", 300)
        async with Consumer(world, nameservers=NAMESERVER, group="cg") as reader:
            await reader.subscribe("T", start="first")
            for number in range(1, 300):
                await reader.commit({QUEUE: number})
                answered.append(number)
                await trio.sleep(0.01)

    async def look(world: World) -> int | None:
        async with Consumer(world, nameservers=NAMESERVER, group="cg") as reader:
            return await reader.committed(QUEUE)

    with FailoverNodes(6) as group:
        leader = ready(group)
        program = group.program(commit)
        group.wait(lambda: answered[-1] >= 100)
        end(group, leader, how)
        group.wait(lambda: answered[-1] >= 150)  # the program saw nothing of it
        group.simulation.kill(program.host.name)
        assert group.run_program(look) >= answered[-1]
