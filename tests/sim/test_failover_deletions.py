"""Deleted topics of a failover group: messages acknowledged after a deletion stay, and deleted ones
do not come back, under any leader.
"""

import errno

import pytest
import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import RequestRefused
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, request
from rocketbed.wire.headers import PullMessageRequest
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import GROUP, NAMESERVER, FailoverNodes
from tests.support.sim.failover_steps import QUEUE, ask, end, fill, read, ready

DELETE = request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic="T").encode())


def slow(group: FailoverNodes, names: list[str], seconds: float) -> None:
    """Give nodes disks whose syncs take about so long."""
    for name in names:
        group.simulation.process(name).disk.sync_seconds = 0.5 * seconds, 1.5 * seconds


def test_leader_makes_a_deletion_sent_to_every_member() -> None:
    """RocketMQ's tools send it to each member; two topics at a time."""

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


@pytest.mark.parametrize("how", ["kill", "hand over", "stop"])
def test_recreated_topic_begins_empty(how: str) -> None:
    async def delete(world: World) -> None:
        await fill(world, "T", "old", 100)
        async with Admin(world, nameservers=NAMESERVER) as admin:
            await admin.delete_topic("T")

    async def read_new(world: World) -> list[tuple[bytes, int]]:
        await fill(world, "T", "new", 50)
        return await read(world)

    with FailoverNodes(53) as group:
        leader = ready(group)
        group.run_program(delete)
        end(group, leader, how)
        messages = group.run_program(read_new)
        assert sorted(body for body, _ in messages) == sorted(b"new %d" % one for one in range(50))


@pytest.mark.parametrize("how", ["hand over", "cut", "pause"])
@pytest.mark.parametrize("sync_s", [0.01, 0.1, 1.0])
def test_former_leader_destroys_nothing(how: str, sync_s: float) -> None:
    """A deletion is under way at a leader with a slow disk; the next one takes messages."""
    with FailoverNodes(60) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 50))
        group.simulation.run(2)
        slow(group, [leader], sync_s)
        group.program(lambda world: ask(world, group, leader, DELETE))
        tables = [group.nodes[name].tables for name in group.names if name != leader]
        group.wait(lambda: any(one.topics.get("T") is None for one in tables))
        end(group, leader, how)
        sent = group.run_program(lambda world: fill(world, "T", "new", 60))
        group.simulation.run(10)
        slow(group, [leader], 0.001)
        while group.settle() != leader:
            group.simulation.run(1)
            group.hand_over(group.leader())
            group.wait(lambda: bool(group.leader()))
        messages = group.run_program(read)
        assert len(sent) == 60
        assert set(sent) <= set(messages)
        assert all(body.startswith(b"new") for body, _ in messages)


def test_messages_sent_after_a_deletion_survive_a_repeat() -> None:
    """An operator's tool gave up, while producers go on and disks are slow."""
    sent: list[tuple[float, bytes, int]] = []
    answered: list[float] = []

    async def produce(world: World) -> None:
        async with Producer(world, nameservers=NAMESERVER, group="pg") as producer:
            while True:
                body, began = b"%d" % len(sent), trio.current_time()
                outcome = await producer.send(Message("T", body), queue=QUEUE)
                if isinstance(outcome, Sent) and outcome.is_safe:
                    sent.append((began, body, outcome.queue_offset))
                await trio.sleep(0.01)

    async def delete(world: World) -> None:
        answer = await ask(world, group, leader, DELETE)
        assert answer.code == ResponseCode.SUCCESS, answer
        answered.append(trio.current_time())

    with FailoverNodes(61) as group:
        leader = ready(group)
        program = group.program(produce)
        group.wait(lambda: len(sent) > 20)
        slow(group, group.names, 0.1)
        for _ in range(3):
            group.program(delete)
            group.simulation.run(0.05)
        group.wait(lambda: len(answered) == 3 and len(sent) > 400)
        group.simulation.kill(program.host.name)
        group.simulation.run(3)
        messages = group.run_program(read)
        later = {row[1:] for row in sent if row[0] > max(answered)}
        assert len(later) > 100
        assert later <= set(messages)
        assert messages[0][1] == 0, "a topic that is recreated begins at 0"


@pytest.mark.parametrize("wait_s", [0.0, 2.0])
def test_reader_of_a_recreated_topic_gets_every_new_message(wait_s: float) -> None:
    """It waits at the end of the old queue, where the new one does not come for long."""
    bodies: list[bytes] = []

    async def consume(world: World) -> None:
        async with Consumer(world, nameservers=NAMESERVER, group="c") as consumer:
            await consumer.subscribe("T", start="first")
            while True:
                bodies.extend(message.body for message in await consumer.poll(timeout_s=1))
                await consumer.commit()

    with FailoverNodes(68) as group:
        leader = ready(group)
        old = group.run_program(lambda world: fill(world, "T", "old", 90))
        group.program(consume)
        group.wait(lambda: len(bodies) == 90)
        group.simulation.run(1)
        group.run_program(lambda world: ask(world, group, leader, DELETE))
        group.simulation.run(wait_s)
        new = group.run_program(lambda world: fill(world, "T", "new", 20))
        group.wait(lambda: len(bodies) >= 110)
        assert bodies == [body for body, _ in old + new]


def test_a_copy_that_lags_sends_no_reader_back() -> None:
    """Its topic was deleted once; a reader that has more than the copy stays at its position."""
    with FailoverNodes(68) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 20))
        group.run_program(lambda world: ask(world, group, leader, DELETE))
        group.run_program(lambda world: fill(world, "T", "new", 20))
        group.settle()
        lagging = next(name for name in group.names if name != leader)
        store = group.nodes[lagging].store
        group.wait(lambda: store.queue_max("T", 0) == 20)
        assert "T" in store.removal.deletions()
        pull = PullMessageRequest(
            consumerGroup="c", topic="T", queueId=0, queueOffset=50, maxMsgNums=1, sysFlag=4,
            commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
            expressionType="TAG", bname=GROUP,
        )  # fmt: skip
        command = request(RequestCode.PULL_MESSAGE, pull.encode())
        answer = group.run_program(lambda world: ask(world, group, lagging, command))
        assert answer.fields["nextBeginOffset"] == "50", answer


def test_topic_is_not_recreated_during_its_deletion() -> None:
    async def make(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVER) as admin:
            with pytest.raises(RequestRefused, match="is being deleted"):
                await admin.create_topic("T")

    with FailoverNodes(62) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 5))
        slow(group, group.names, 1.0)
        group.program(lambda world: ask(world, group, leader, DELETE))
        group.wait(lambda: "T" in group.nodes[leader].tables.topics.leaving)
        group.run_program(make)


def test_replica_that_cannot_record_a_deletion_does_not_lead() -> None:
    """Its disk has no room for the deletion: its queues have deleted messages."""
    with FailoverNodes(63) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 50))
        full, third = (name for name in group.names if name != leader)
        disk = group.simulation.process(full).disk
        fault = SimFault(
            operation="write", path="/store/rocketbed.*", error=errno.ENOSPC, times=None
        )
        disk.faults.append(fault)
        deleted = group.run_program(lambda world: ask(world, group, leader, DELETE))
        assert deleted.code == ResponseCode.SUCCESS
        store, failover = group.nodes[full].store, group.nodes[full].failover
        assert failover is not None
        group.wait(lambda: "is still here" in failover.agent.unfit())
        assert store.queue_max("T", 0) == 50
        group.simulation.run(1)  # the leader hears of it
        assert end(group, leader, "hand over") == third
        sent = group.run_program(lambda world: fill(world, "T", "new", 20))
        disk.faults.remove(fault)
        group.wait(lambda: not failover.agent.unfit())
        group.settle()
        while group.leader() != full:
            group.hand_over(group.leader())
            group.wait(lambda: bool(group.leader()))
        assert group.run_program(read) == sent


def test_leader_finishes_deletions_of_its_predecessor() -> None:
    """Its disk is slow: the rest of T is not served, whatever else it deletes."""
    with FailoverNodes(64) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 50))
        group.run_program(lambda world: fill(world, "U", "old", 50))
        slow(group, [name for name in group.names if name != leader], 0.5)
        group.run_program(lambda world: ask(world, group, leader, DELETE))
        group.simulation.kill(leader)
        group.wait(lambda: group.leader() not in ("", leader))
        second = group.leader()
        store, failover = group.nodes[second].store, group.nodes[second].failover
        assert failover is not None
        delete = request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic="U").encode())
        group.program(lambda world: ask(world, group, second, delete))
        group.wait(lambda: group.nodes[second].tables.topics.get("U") is None)
        group.wait(lambda: failover.refusal() is None)
        assert store.queue_max("T", 0) == 0
        sent = group.run_program(lambda world: fill(world, "T", "new", 5))
        assert group.run_program(read) == sent
        assert [offset for _, offset in sent] == [0, 1, 2, 3, 4]  # seed 1290005


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize(
    ("full", "is_confirmed"),
    [("consumequeue/*", True), ("rocketbed.*", False)],
    ids=["queues", "mark"],
)
def test_deletion_on_a_full_disk_is_reported_and_not_fatal(
    full: str, is_confirmed: bool, hangs_up: bool
) -> None:
    """The leader's disk is full. A confirmed deletion is done later, without another request."""

    async def delete(world: World) -> Command:
        return await ask(world, group, group.leader(), DELETE)

    with FailoverNodes(67) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 20))
        disk = group.simulation.process(leader).disk
        fault = SimFault(operation="write", path=f"/store/{full}", error=errno.ENOSPC, times=None)
        disk.faults.append(fault)
        leaving = group.nodes[leader].tables.topics.leaving
        if hangs_up:
            asker = group.program(delete)
            group.wait(lambda: "T" in leaving)
            group.simulation.kill(asker.host.name)
        else:
            answer = group.run_program(delete)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "No space left on device" in (answer.remark or "")
        group.wait(lambda: "T" not in leaving)
        warnings = [
            line for line in group.simulation.log if line.event == "tables.topic_not_deleted"
        ]
        assert [(line.node, line.fields["topic"]) for line in warnings] == [(leader, "T")]
        assert "No space left on device" in str(warnings[0].fields["error"])
        disk.faults.remove(fault)
        if not is_confirmed:
            assert group.settle() == leader
            assert group.run_program(delete).code == ResponseCode.SUCCESS
        group.wait(lambda: all(one.store.queue_max("T", 0) == 0 for one in group.nodes.values()))
        group.settle()
        sent = group.run_program(lambda world: fill(world, "T", "new", 5))
        assert sorted(body for body, _ in group.run_program(read)) == [body for body, _ in sent]


@pytest.mark.parametrize("after_s", [0.012, 0.024, 0.036, 0.06])
def test_deletion_continues_when_its_client_disconnects(after_s: float) -> None:
    async def hang_up(world: World) -> None:
        with trio.move_on_after(after_s):
            await ask(world, group, leader, DELETE)

    with FailoverNodes(64) as group:
        leader = ready(group)
        group.run_program(lambda world: fill(world, "T", "old", 50))
        slow(group, group.names, 0.02)
        group.run_program(hang_up)
        group.wait(lambda: "T" not in group.nodes[leader].tables.topics.leaving)
        sent = group.run_program(lambda world: fill(world, "T", "new", 5))
        assert sent
        assert group.run_program(read) == sent
        assert [offset for _, offset in sent] == list(range(len(sent)))
