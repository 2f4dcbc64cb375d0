"""Topics, groups, positions and locks of a failover group: answered changes hold under the next
leader, and a follower changes nothing.
"""

from dataclasses import replace

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer, Start
from rocketbed.client.errors import RequestRefused
from rocketbed.client.locks import Locks
from rocketbed.client.session import Session
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.table_log import ROUND_S
from rocketbed.node.only_leader import CHANGES
from rocketbed.node.store.epochs import META_TOPIC
from rocketbed.node.store.status import PutStatus
from rocketbed.wire.bodies import (
    LockedQueues,
    LockQueues,
    MessageQueue,
    SubscriptionGroupConfig,
)
from rocketbed.wire.bodies_admin import RequestMode
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import request
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.headers_admin import ResetOffsetRequest
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import GROUP, NAMESERVER, FailoverNodes
from tests.support.sim.failover_steps import QUEUE, ask, end, fill, ready
from tests.support.sim.links import cut

ENDS = ["kill", "hand over", "stop"]


def test_follower_changes_nothing() -> None:
    async def ask_all(world: World) -> list[int]:
        return [(await ask(world, group, follower, request(code, {}))).code for code in CHANGES]

    with FailoverNodes(50) as group:
        leader = ready(group)
        follower = next(name for name in group.names if name != leader)
        codes = dict(zip(CHANGES, group.run_program(ask_all), strict=True))
        # Sent on to the leader, and refused there.
        assert codes.pop(RequestCode.DELETE_TOPIC_IN_BROKER) == ResponseCode.SYSTEM_ERROR
        assert {*codes.values()} == {ResponseCode.SERVICE_NOT_AVAILABLE}


def test_group_works_with_a_message_size_below_that_of_its_own_records() -> None:
    """Markers of epochs and rows of tables are no messages of producers."""

    async def make(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            await admin.create_topic("T")

    with FailoverNodes(51, begin=False) as group:
        store = group.config("g-1").store
        for name in group.names:
            host = group.config(name).store.store_host
            group.start(name, store=replace(store, store_host=host, max_message_size=10))
        ready(group)
        group.run_program(make)


def test_change_too_large_for_the_log_is_not_acknowledged(
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
def test_answered_change_survives_a_planned_handover(how: str) -> None:
    groups_made: dict[str, bool] = {}

    async def operate(world: World, first: int) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            for number in range(first, 10**6, 3):
                name = f"group-{number}"
                try:
                    await admin.create_group(SubscriptionGroupConfig(group_name=name))
                    groups_made[name] = True
                    if number % 2:
                        groups_made.pop(name)
                        await admin.delete_group(name)
                        groups_made[name] = False
                except Exception:  # whatever it was, nothing is promised
                    groups_made.pop(name, None)
                    await trio.sleep(0.05)

    async def all_three(world: World) -> None:
        async with trio.open_nursery() as nursery:
            for first in range(3):
                nursery.start_soon(operate, world, first)

    with FailoverNodes(52) as group:
        leader = ready(group)
        program = group.program(all_three)
        group.wait(lambda: len(groups_made) > 40)
        new = end(group, leader, how)
        count = len(groups_made)
        group.wait(lambda: len(groups_made) > count + 20)
        group.simulation.kill(program.host.name)
        groups = group.nodes[new].tables.groups
        assert {name: groups.get(name) is not None for name in groups_made} == groups_made


def test_large_change_sets_are_split_into_records() -> None:
    """16 topics, made at the same time, where a record has less than 2 KiB."""
    names = [f"Topic{number:03}" for number in range(16)]

    async def make(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin, trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(admin.create_topic, name)

    async def too_large(world: World) -> None:
        """Check that a request for a row that no record takes is refused, and only that one."""
        big = SubscriptionGroupConfig(group_name="big", attributes={"a": "x" * 2000})
        small = [SubscriptionGroupConfig(group_name=f"small-{number}") for number in range(8)]
        async with Admin(world, nameservers=NAMESERVER) as admin, trio.open_nursery() as nursery:
            for config in small:
                nursery.start_soon(admin.create_group, config)
            for _ in range(2):
                with pytest.raises(RequestRefused, match="row of big is too large for the log"):
                    await admin.create_group(big)

    def commit(offsets: Offsets) -> None:
        for queue in range(500):
            offsets.commit("cg", names[0], queue, 0)

    with FailoverNodes(53, begin=False) as group:
        for name in group.names:
            store = replace(group.config(name).store, segment_size=2048)
            group.start(name, store=store)
        leader = ready(group)
        group.run_program(too_large)
        group.run_program(make)
        assert group.nodes[leader].tables.groups.get("big") is None
        group.simulation.process(leader).call(commit, group.nodes[leader].tables.offsets)
        group.simulation.run(1)
        tables = group.nodes[end(group, leader, "kill")].tables
        assert [name for name in names if tables.topics.get(name) is None] == []
        assert tables.offsets.queues("cg", names[0]) == dict.fromkeys(range(500), 0)


@pytest.mark.parametrize("starts_at_time", [False, True])
def test_group_begins_where_it_began_under_the_next_leader(starts_at_time: bool) -> None:
    """Only the first commit of a group says where it began."""

    async def begin(world: World) -> None:
        await fill(world, "T", "before", 5)
        async with Consumer(world, nameservers=NAMESERVER, group="cg") as reader:
            start: Start = world.clock.wall_ms() + 1 if starts_at_time else "last"
            await trio.sleep(0.1)
            await reader.subscribe("T", start=start)
            await trio.sleep(3 * ROUND_S)

    async def go_on(world: World) -> list[bytes]:
        await fill(world, "T", "after", 5)
        async with Consumer(world, nameservers=NAMESERVER, group="cg") as reader:
            await reader.subscribe("T", start="last")
            with trio.move_on_after(5):
                return [(await anext(reader)).body for _ in range(5)]
        return []

    with FailoverNodes(55) as group:
        leader = ready(group)
        group.run_program(begin)
        end(group, leader, "kill")
        assert group.run_program(go_on) == [b"after %d" % number for number in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_answered_reset_holds_at_the_next_leader(how: str) -> None:
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
def test_next_leader_knows_the_queue_locks(how: str) -> None:
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


def test_message_is_put_back_once_replicated() -> None:
    async def put_back(world: World) -> int:
        header = SendBackRequest(
            offset=place, group="cg", delayLevel=0, originMsgId="", originTopic="T", bname=GROUP
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        return (await ask(world, group, leader, command)).code

    with FailoverNodes(56) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "body", 3))
        place = group.nodes[leader].store.units("T", 0, 0, 1)[0][0]
        assert group.run_program(put_back) == ResponseCode.SUCCESS
        for name in group.names:
            if name != leader:
                group.simulation.pause(name)
        code = group.run_program(put_back)
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hand over", "stop"])
def test_planned_handover_forgets_no_commit(how: str) -> None:
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


@pytest.mark.parametrize("how", ["pause", "cut"])
def test_leader_without_confirmations_promises_nothing(how: str) -> None:
    """Positions and locks at a leader whose followers are silent: another one may lead by now."""
    accepted: list[tuple[float, int]] = []
    place = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}

    async def commit(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            await admin.create_group(SubscriptionGroupConfig(group_name="cg"))
        for number in range(1, 10**6):
            fields = {**place, "commitOffset": str(number)}
            command = request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            if (await ask(world, group, leader, command)).code == ResponseCode.SUCCESS:
                accepted.append((trio.current_time(), number))
            await trio.sleep(0.05)

    async def lock(world: World) -> int:
        queues = LockQueues(consumer_group="cg", client_id="one", mq_set=[QUEUE])
        command = request(RequestCode.LOCK_BATCH_MQ, {}, queues.encode())
        return (await ask(world, group, leader, command)).code

    with FailoverNodes(57) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "body", 1))
        group.program(commit)
        group.wait(lambda: len(accepted) > 20)
        followers = [name for name in group.names if name != leader]
        for name in followers:
            if how == "pause":
                group.simulation.pause(name)
            else:
                cut(group.simulation.network, leader, name)
        began = accepted[-1][0]
        group.simulation.run(2.5)
        assert accepted[-1][0] - began < 1.0
        assert group.run_program(lock) != ResponseCode.SUCCESS


@pytest.mark.slow
def test_restarted_replica_knows_locks_while_groups_commit() -> None:
    """Records of positions come by the thousand, one of a lock comes once a minute."""

    async def lock(world: World, name: str, client: str) -> list[MessageQueue]:
        queues = LockQueues(consumer_group="ordered", client_id=client, mq_set=[QUEUE])
        command = request(RequestCode.LOCK_BATCH_MQ, {}, queues.encode())
        return LockedQueues.decode((await ask(world, group, name, command)).body).lock_ok_mq_set

    def commit(number: int) -> None:
        for group_number in range(1000):
            group.nodes[leader].tables.offsets.commit(f"group-{group_number}", "T", 0, number % 10)

    with FailoverNodes(59) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "body", 1))
        assert group.run_program(lambda world: lock(world, leader, "one")) == [QUEUE]
        store = group.nodes[leader].store
        number = 0
        while store.queue_max(META_TOPIC, 0) < 1200:
            group.simulation.process(leader).call(commit, number)
            group.simulation.run(0.2)
            number += 1
        for name in group.names:
            if name != leader:
                group.simulation.kill(name)
                group.simulation.run(1)
                group.start(name)
                group.simulation.run(1)
                group.settle()
        new = end(group, leader, "kill")
        assert group.run_program(lambda world: lock(world, new, "two")) == []


@pytest.mark.parametrize("setting", ["mode", "clone"])
def test_operator_change_survives_a_kill(setting: str) -> None:
    async def change(world: World) -> None:
        await fill(world, "T", "body", 50)
        async with Admin(world, nameservers=NAMESERVER) as admin:
            for name in ("from", "to"):
                await admin.create_group(SubscriptionGroupConfig(group_name=name))
        place = {"consumerGroup": "from", "topic": "T", "queueId": "0", "commitOffset": "33"}
        await ask(world, group, leader, request(RequestCode.UPDATE_CONSUMER_OFFSET, place))
        mode = RequestMode(topic="T", consumer_group="from", mode="PULL", pop_share_queue_num=7)
        clone = {"srcGroup": "from", "destGroup": "to", "topic": "T", "offline": "true"}
        command = (
            request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode.encode())
            if setting == "mode"
            else request(RequestCode.CLONE_GROUP_OFFSET, clone)
        )
        assert (await ask(world, group, leader, command)).code == ResponseCode.SUCCESS

    with FailoverNodes(64) as group:
        leader = ready(group)
        group.run_program(change)
        tables = group.nodes[end(group, leader, "kill")].tables
        if setting == "mode":
            assert tables.modes.row("T@from")["popShareQueueNum"] == 7
        else:
            assert tables.offsets.get("to", "T", 0) == 33


def test_leader_without_reachable_followers_gives_way() -> None:
    """All of them reach the controller, so that it misses none."""
    with FailoverNodes(65) as group:
        leader = ready(group)
        for name in group.names:
            if name != leader:
                cut(group.simulation.network, leader, name)
        group.wait(lambda: group.leader() not in ("", leader), 10)


def test_leader_with_dead_followers_stays() -> None:
    with FailoverNodes(66) as group:
        leader = ready(group)
        for name in group.names:
            if name != leader:
                group.simulation.kill(name)
        group.wait(lambda: group.leader() == "")
        assert group.entry is not None
        epoch = group.entry.epoch
        group.simulation.run(100)
        assert group.entry.epoch == epoch
