"""Input to a failover group that no replica of it sends: forged frames and requests, copied
directories, logs that were cut by hand, a register that is gone, a disk that is full.
"""

from contextlib import suppress
from dataclasses import replace

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.client.admin import Admin
from rocketbed.client.errors import RequestRefused
from rocketbed.client.pulls import SUBSCRIPTION, SUSPEND
from rocketbed.remoting.client import dial
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, request
from rocketbed.wire.ha_native import Ack, Beat, Data, Fenced, Hello, Reject, Welcome, encode
from rocketbed.wire.headers import PullMessageRequest
from rocketbed.wire.headers_failover import RegisterReplicaRequest
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import GROUP, PORT, FailoverNodes
from tests.support.sim.failover_traffic import Traffic, waits_longest
from tests.support.sim.links import cut
from tests.support.sim.replicated import send_request
from tests.support.sim.store_session import edited

HELLO = Hello(
    cluster="c",
    group=GROUP,
    replica=1,
    uuid="u",
    incarnation=1,
    promised=0,
    history=((1, 0),),
    end=10,
    first=0,
    durable=10,
    segment=64 * 1024,
)
REGISTRATION = RegisterReplicaRequest(
    group=GROUP,
    replica=3,
    uuid="u",
    incarnation=9,
    address="10.0.0.1:1",
    haAddress="10.0.0.1:2",
    lossless=True,
    replicas=3,
    policy="memory",
    founds=True,
    groupUid="",
    promised=0,
    epoch=0,
    end=0,
    op="forged",
)


def hostile_frames(epoch: int) -> list[bytes]:
    """Frames of a stranger who reaches the replication port."""
    hello = encode(epoch, HELLO)
    welcome = Welcome(
        leader=1,
        incarnation=1,
        history=((9, 0),),
        end=5,
        first=0,
        confirm=9,
        cut=1 << 60,
        compared=1 << 60,
        crc=0,
    )
    return [
        b"RBHA",
        b"RBHA" + bytes(20),
        b"RBHA" + b"\xff" * 40,
        b"RBHA" + b"\1\1" + b"\xff" * 18,
        hello[:-5] + b"\xff" * 5,
        hello[:5] + b"\x63" + hello[6:],
        hello[:12] + b"\xff\xff\xff\xff" + hello[16:],
        hello + hello,
        encode(epoch, replace(HELLO, history=((5, 9), (2, 3)))),
        encode(epoch, replace(HELLO, end=1 << 62, durable=1 << 63)),
        encode((1 << 32) - 1, replace(HELLO, promised=(1 << 31) - 1)),
        *(
            encode(epoch, content)
            for content in (
                welcome,
                Reject(why="x" * 200),
                Data(0, 1 << 62, b"x" * 100),
                Ack(1 << 62, 1 << 62, 1),
                Beat(1 << 62, 1 << 62),
                Fenced((1 << 31) - 1),
            )
        ),
    ]


@pytest.mark.slow
def test_frames_of_strangers_do_no_harm() -> None:
    with FailoverNodes(11) as group:
        leader = group.settle()
        assert group.entry is not None
        frames, epoch = hostile_frames(group.entry.epoch), group.entry.epoch

        async def attack(world: World) -> None:
            for name in group.names:
                for frame in frames:
                    host = group.simulation.host(name).address
                    stream = await world.network.connect(host, 10912)
                    with trio.move_on_after(0.3), suppress(trio.BrokenResourceError):
                        await stream.send_all(frame)
                        while await stream.receive_some(4096):
                            pass
                    await trio.aclose_forcefully(stream)

        traffic = Traffic(group)
        traffic.start()
        group.simulation.run_process(group.program(attack), 300)
        assert {group.simulation.process(name).state for name in group.names} == {"running"}
        assert (group.leader(), group.entry.epoch) == (leader, epoch)
        traffic.check()


def test_copied_directory_does_not_expel_the_running_one() -> None:
    with FailoverNodes(13) as group:
        group.settle()
        assert group.entry is not None
        entry = group.entry
        mine = entry.replicas[3]
        registration = replace(REGISTRATION, uuid=mine.uuid, incarnation=mine.incarnation + 1)

        async def ask(world: World) -> tuple[int, str | None]:
            connection = await dial(world, (group.simulation.host("ns-1").address, 9876))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                answer = await connection.request(
                    request(RequestCode.RB_REGISTER_REPLICA, registration.encode())
                )
                connection.close()
            return answer.code, answer.remark

        code, remark = group.simulation.run_process(group.program(ask), 30)
        assert code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert "runs already, at" in str(remark)
        group.simulation.run(2)
        assert group.entry == entry
        assert group.simulation.process("g-3").state == "running"


def _say_as(group: FailoverNodes, name: str, *frames: bytes) -> None:
    """Come as a follower at a second connection, with what it would say, and go away again."""
    node, entry = group.nodes[name], group.entry
    assert node.failover is not None
    assert entry is not None
    follower = node.failover.member.follower
    assert follower is not None
    hello = encode(entry.epoch, follower._hello())

    async def connect_as(world: World) -> None:
        stream = await world.network.connect(group.simulation.host(group.leader()).address, 10912)
        await stream.send_all(hello)
        assert await stream.receive_some(4096), "no WELCOME"
        await stream.send_all(b"".join(frames))
        await trio.sleep(0.2)
        await trio.aclose_forcefully(stream)

    group.simulation.run_process(group.program(connect_as), 30)


@pytest.mark.slow
def test_older_connection_of_a_follower_is_remembered() -> None:
    """A HELLO that is late comes behind the one that was said instead of it, and ends first."""
    with FailoverNodes(25) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        for name in group.names:
            if name != leader:
                _say_as(group, name)
        group.simulation.run(5)
        assert group.settle() == leader
        before = len(traffic.sent)
        group.simulation.run(2)
        assert len(traffic.sent) > before
        assert waits_longest(traffic.when) < 1.5
        traffic.check()


def test_fenced_leader_still_named_leads_the_next_epoch() -> None:
    with FailoverNodes(26) as group:
        leader = group.settle()
        assert group.entry is not None
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        follower = next(name for name in group.names if name != leader)
        for turn in (1, 2):
            _say_as(group, follower, encode(turn, Fenced((1 << 31) - 1)))
            group.wait(lambda: bool(group.leader()), 5)
            assert group.entry.epoch == turn + 1
            assert group.settle() == leader
        assert waits_longest(traffic.when) < 1.5
        traffic.check()


def _lose_register(group: FailoverNodes) -> None:
    group.simulation.kill("ns-1")
    group.shelf.replace({})


def _damage(group: FailoverNodes) -> str:
    """Reasons why a controller has no record of the group."""
    return str(group.status()[GROUP]["damaged"])


def _kill_all(group: FailoverNodes) -> None:
    for name in group.names:
        group.simulation.kill(name)


def test_lost_register_elects_only_by_an_operator() -> None:
    """The first replica to come may lack acknowledged messages, which only the register knew."""
    with FailoverNodes(16) as group:
        group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        group.simulation.kill("g-3")
        group.simulation.run(1)
        _kill_all(group)
        _lose_register(group)
        group.simulation.run(1)
        group.start_nameserver("ns-1")
        group.start("g-1", "g-2", "g-3")
        group.simulation.run(10)
        assert (group.entry, group.leader()) == (None, "")
        failover = group.nodes["g-1"].failover
        assert failover is not None
        for text in (failover.trouble(), _damage(group)):
            assert "the register has lost group 'g'" in text
            assert "these are: [1, 2, 3]" in text
        with pytest.raises(RequestRefused, match="has a longer log"):
            _force(group, traffic, "g-3")
        chosen = max(group.names, key=lambda name: group.nodes[name].store.max_offset)
        _force(group, traffic, chosen)
        with pytest.raises(KeyError):  # it is lost no more, from that moment on
            _damage(group)
        assert group.settle() == chosen
        assert group.entry is not None
        assert group.entry.unclean == (group.entry.epoch,)
        traffic.check()


@pytest.mark.slow
def test_register_lost_under_a_running_group_is_rebuilt() -> None:
    with FailoverNodes(17) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        _lose_register(group)
        group.start_nameserver("ns-1")
        group.simulation.run(10)
        assert (group.entry, group.leader()) == (None, leader), "its followers still acknowledge"
        _force(group, traffic, leader)
        assert group.settle() == leader
        group.simulation.kill(leader)
        group.wait(lambda: group.leader() not in ("", leader))
        group.start(leader)
        traffic.check()


@pytest.mark.slow
def test_old_register_elects_none_until_the_newest_returns() -> None:
    """Its in-sync replicas may lack messages acknowledged since; its status says so."""
    with FailoverNodes(22) as group:
        first = group.settle()
        old = group.shelf.copy()
        group.simulation.kill(first)
        group.wait(lambda: group.leader() not in ("", first))
        group.start(first)
        leader = group.settle()
        newest = group.shelf.values
        traffic = Traffic(group)
        traffic.start()

        group.simulation.kill("ns-1")
        group.shelf.replace(old)
        group.start_nameserver("ns-1")
        group.simulation.run(10)
        assert group.leader() == leader, "its followers still acknowledge"
        assert "as it was in epoch 1, and replica" in _damage(group)
        group.simulation.kill(leader)
        group.simulation.run(10)
        assert group.leader() == ""
        group.simulation.kill("ns-1")
        group.shelf.replace(newest)
        group.start_nameserver("ns-1")
        group.wait(lambda: group.leader() not in ("", leader))
        group.start(leader)
        group.settle()
        traffic.check()


def _force(group: FailoverNodes, traffic: Traffic, name: str) -> None:
    async def force(world: World) -> None:
        async with Admin(world, nameservers=traffic.nameservers) as admin:
            await admin.force_leader(GROUP, int(name[-1]))

    group.simulation.run_process(group.program(force), 30)


def test_unconfirmed_offset_is_not_beyond_the_end() -> None:
    """A position that a former leader gave out, at one whose queues are not as far: it is not sent
    back, or the group got everything from there on twice."""
    with FailoverNodes(18) as group:
        leader = group.settle()
        queue_max = group.nodes[leader].store.queue_max
        address = group.simulation.host(leader).address
        for name in group.names:
            if name != leader:
                cut(group.simulation.network, leader, name)

        async def ask(world: World) -> list[tuple[int, int]]:
            connection = await dial(world, (address, PORT))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                for _ in range(5):
                    nursery.start_soon(connection.request, send_request("T", b"x"))
                await trio.sleep(0.1)
                assert queue_max("T", 0, committed=False) == 5
                assert queue_max("T", 0) == 0
                answers = []
                for offset in (4, 5, 6):
                    pulled = await connection.request(pull("T", offset, hold_s=0.1))
                    answers.append((pulled.code, int(pulled.fields["nextBeginOffset"])))
                nursery.cancel_scope.cancel()
            return answers

        moved, later = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND
        pulled_answers = group.simulation.run_process(group.program(ask), 30)
        assert pulled_answers == [(later, 4), (later, 5), (moved, 0)]


def pull(topic: str, offset: int, *, hold_s: float) -> Command:
    header = PullMessageRequest(
        consumerGroup="cg",
        topic=topic,
        queueId=0,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=SUSPEND | SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=int(hold_s * 1000),
        subscription="*",
        subVersion=0,
    )
    return request(RequestCode.PULL_MESSAGE, header.encode())


def test_manually_cut_log_does_not_lead() -> None:
    """It lacks what it has acknowledged, which the register is told before anybody is named."""
    with FailoverNodes(14) as group:
        group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(3)
        assert group.entry is not None
        _kill_all(group)
        cut_log(group, "g-2")
        group.start("g-2")
        group.simulation.run(5)
        assert group.entry.leader is None
        group.start("g-1", "g-3")
        assert group.settle() != "g-2"
        traffic.check()


def cut_log(group: FailoverNodes, name: str) -> None:
    """A third of a dead node's log is gone, and nothing beside it says so."""
    host = group.simulation.host(name)

    def cut_files(disk: SimDisk) -> None:
        files = sorted(path for path in disk.paths() if path.startswith("/store/commitlog/"))
        for path in files[len(files) * 2 // 3 :]:
            disk.replace_contents(path, bytes(len(disk.contents(path))))

    host.image = edited(host.image, cut_files)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["g-1", "g-3"])
def test_empty_node_founds_no_second_group(first: str) -> None:
    """The register is gone and so are two disks: what the third one holds is not written over."""
    with FailoverNodes(20) as group:
        group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        _kill_all(group)
        _lose_register(group)
        end = group.nodes["g-3"].store.max_offset
        for name in ("g-1", "g-2"):
            host = group.simulation.host(name)
            host.image = SimDisk().image()
        group.start_nameserver("ns-1")
        group.start(first)
        group.simulation.run(3)
        group.start(*(name for name in group.names if name != first))
        group.simulation.run(20)
        third = group.nodes["g-3"]
        assert third.store.max_offset == end
        assert third.failover is not None
        if first == "g-1":  # a group began without it
            assert group.leader() in ("g-1", "g-2")
            assert "this register has another group of the name 'g'" in third.failover.trouble()
            return
        assert (group.entry, group.leader()) == (None, "")
        _force(group, traffic, "g-3")
        assert group.settle() == "g-3"
        traffic.check()


def test_operator_may_give_up_replicas_for_lost() -> None:
    """Both that were in sync are gone with their disks; the one that was behind is all there is."""
    with FailoverNodes(21) as group:
        group.settle()
        traffic = Traffic(group)
        group.simulation.kill("g-3")
        traffic.start()
        group.simulation.run(2)
        for name in ("g-1", "g-2"):
            group.simulation.kill(name)
        group.start("g-3")
        group.simulation.run(3)
        assert group.entry is not None
        assert group.entry.leader is None
        _force(group, traffic, "g-3")
        group.wait(lambda: group.entry is not None and group.entry.leader == 3)
        assert group.entry.unclean == (group.entry.epoch,)
        group.start("g-1")
        group.wait(lambda: group.leader() == "g-3")
