"""Groups with failover, of real processes: what is acknowledged stays, whatever ends or stands.

Each test sends all the time, every message with a body of its own. In the end all of the nodes are
in sync and have the same log, and each acknowledged message stands where the answer said.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.cli.main import main
from rocketbed.client.consumer import Consumer
from rocketbed.client.group_status import GroupStatus
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.lifecycle import load
from rocketbed.cluster.plan import BROKER_NAME, CONFIG, NAMESERVER, REGISTER, write_settings
from rocketbed.host.member import ManagedProcess, rocketbed_command
from rocketbed.host.ports import free_ports
from rocketbed.remoting.client import open_connection, parse_address
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.replication.lease import LEASE_S
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import request
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.headers import SendMessageResponse
from rocketbed.world.real import real_world

pytestmark = pytest.mark.process
DEADLINE_S = 60
LOOK_S = 0.02
SENDERS = 8
MANY = 200
SETTINGS = {"mappedFileSizeCommitLog": str(1 << 20), "defaultTopicQueueNums": "4"}
Place = tuple[int | None, int | None]
"""Queue id and queue offset, as in an answer."""


class Sending:
    """Programs that send, and what was acknowledged to them as safe."""

    def __init__(self) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.is_over = False
        self._moved = trio.Event()

    async def run(self, producer: Producer, name: int) -> None:
        for number in count():
            if self.is_over:
                return
            body = b"%d of sender %d " % (number, name) * 20
            outcome = await producer.send(Message("T", body))
            if isinstance(outcome, Sent) and outcome.is_safe:
                self.note((outcome.queue.queue_id, outcome.queue_offset), body)

    def note(self, place: Place, body: bytes) -> None:
        assert place not in self.acknowledged, "two messages were acknowledged in one place"
        self.acknowledged[place] = body
        self._moved.set()
        self._moved = trio.Event()

    async def more(self) -> None:
        """Wait until `MANY` more are acknowledged."""
        end = len(self.acknowledged) + MANY
        while len(self.acknowledged) < end:
            await self._moved.wait()


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[LocalCluster, Sending, GroupStatus]]:
    """Three nodes in sync, to which messages are sent; at the end everything is compared."""
    cluster = LocalCluster.create(directory, slaves=2, failover=True, settings=SETTINGS)
    sending = Sending()
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            group = await until(cluster, is_whole)
            producer = Producer(nameservers=cluster.nameserver_address, timeout_s=10)
            async with producer, trio.open_nursery() as nursery:
                for number in range(SENDERS):
                    nursery.start_soon(sending.run, producer, number)
                await sending.more()
                yield cluster, sending, group
                sending.is_over = True
            await check(cluster, sending.acknowledged)


async def until(cluster: LocalCluster, holds: Callable[[GroupStatus], bool]) -> GroupStatus:
    """Wait until something can be said of the group."""
    while True:
        with suppress(RocketbedError):
            group = await cluster.group()
            if group is not None and holds(group):
                return group
        await trio.sleep(LOOK_S)


def is_whole(group: GroupStatus) -> bool:
    return group.leader is not None and len(group.in_sync) == 3


def is_led_by_another(former: GroupStatus, group: GroupStatus) -> bool:
    return group.leader not in (None, former.leader) and group.epoch > former.epoch


def leader_of(group: GroupStatus) -> str:
    return f"node-{group.leader}"


async def kill(cluster: LocalCluster, name: str) -> None:
    cluster.kill(name)
    await cluster.wait_ended(name)


async def check(cluster: LocalCluster, acknowledged: dict[Place, bytes]) -> None:
    """Check the logs and acknowledged messages after the producers have ended."""
    await until(cluster, is_whole)
    end = await confirmed_end(cluster)
    first, *other_logs = (log_of(cluster, name, end) for name in cluster.nodes)
    assert len(first) == end
    assert other_logs == [first, first]
    bodies = await messages(cluster)
    assert not {place for place, body in acknowledged.items() if bodies.get(place) != body}


async def confirmed_end(cluster: LocalCluster) -> int:
    """Wait until every node has everything, and knows it to be confirmed."""
    while True:
        rows = [row for row in await cluster.status() if row.member.is_node]
        names = ("commitLogMaxOffset", "rbConfirmedOffset")
        ends = {row.offset(name) for row in rows for name in names}
        if len(ends) == 1 and (end := ends.pop()) is not None:
            return end
        await trio.sleep(LOOK_S)


def log_of(cluster: LocalCluster, name: str, end: int) -> bytes:
    files = sorted((cluster.member_directory(name) / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


async def messages(cluster: LocalCluster) -> dict[Place, bytes]:
    """Return all messages that a consumer can read."""
    bodies: dict[Place, bytes] = {}
    async with Consumer(nameservers=cluster.nameserver_address, group="g") as consumer:
        for queue in await consumer.queues("T"):
            offset = 0
            while (pulled := await consumer.pull(queue, offset)).messages:
                offset = pulled.next_offset
                for message in pulled.messages:
                    bodies[queue.queue_id, message.queue_offset] = message.body
    return bodies


@pytest.mark.slow
async def test_a_killed_leader_is_replaced_and_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, sending, _):
        for _turn in range(2):
            group = await until(cluster, is_whole)
            await kill(cluster, leader_of(group))
            await until(cluster, partial(is_led_by_another, group))
            await sending.more()
            await cluster.start(leader_of(group))


async def send_to(connection: Connection, sending: Sending, number: int) -> int:
    """Send one message to just this node, leader or not; return the code of its answer, -1 if none
    comes.
    """
    body = b"%d by hand" % number
    fields = {
        "a": "by-hand", "b": "T", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
        "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{number:032X}",
    }  # fmt: skip
    command = request(RequestCode.SEND_MESSAGE_V2, fields, body)
    try:
        answer = await connection.request(command, timeout_s=DEADLINE_S)
    except RemotingError:
        return -1
    if answer.code == ResponseCode.SUCCESS:
        header = SendMessageResponse.decode(answer.raw_fields)
        sending.note((header.queueId, header.queueOffset), body)
    return answer.code


@pytest.mark.slow
async def test_a_leader_that_stood_still_acknowledges_nothing_falsely(tmp_path: Path) -> None:
    """Its pending requests are answered when another one leads."""
    async with running(tmp_path / "c") as (cluster, sending, group):
        paused = leader_of(group)
        linked = open_connection(real_world("test"), parse_address(cluster.address(paused)))
        async with linked as connection, trio.open_nursery() as nursery:
            assert await send_to(connection, sending, 0) == ResponseCode.SUCCESS
            cluster.pause(paused)
            for number in range(1, 100):
                nursery.start_soon(send_to, connection, sending, number)
            await until(cluster, partial(is_led_by_another, group))
            await sending.more()
            cluster.resume(paused)
        await sending.more()


@pytest.mark.slow
async def test_leader_hands_over_on_request_and_at_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, sending, group):
        after = await cluster.hand_over()
        assert is_led_by_another(group, after)
        await sending.more()
        to = leader_of(group)
        assert leader_of(await cluster.hand_over(to)) == to
        await sending.more()
        group = await until(cluster, is_whole)
        assert await cluster.stop(to)
        after = await until(cluster, partial(is_led_by_another, group))
        assert after.epoch == group.epoch + 1
        assert group.leader not in after.in_sync
        assert "not_handed_over" not in (cluster.member_directory(to) / "log").read_text()
        await sending.more()
        await cluster.start(to)


@pytest.mark.slow
async def test_group_continues_without_its_controller(tmp_path: Path) -> None:
    """Those in sync acknowledge; who leads is on the controller's disk."""
    async with running(tmp_path / "c") as (cluster, sending, group):
        await kill(cluster, NAMESERVER)
        lease_end = trio.current_time() + 2 * LEASE_S
        while trio.current_time() < lease_end:
            await sending.more()
        await cluster.start(NAMESERVER)
        after = await until(cluster, is_whole)
        assert (after.leader, after.epoch) == (group.leader, group.epoch)
        await sending.more()
        await kill(cluster, leader_of(group))
        await until(cluster, partial(is_led_by_another, group))
        await sending.more()
        await cluster.start(leader_of(group))


@pytest.mark.slow
async def test_second_process_of_a_replica_ends_with_a_reason(tmp_path: Path) -> None:
    """On the directory of the first one, and on its own: the first one goes on in both cases."""
    async with running(tmp_path / "c") as (cluster, sending, _):
        pids = {name: cluster.pid(name) for name in cluster.names}
        first = cluster.member_directory("node-1")
        settings = cluster.plan.node_settings(cluster.plan.member("node-1"), first)
        cases = {
            "same": (
                str(first / "store"),
                "is held by another process (its file `lock`): stop that broker",
            ),
            "other": (str(tmp_path / "other"), "a number that no replica had yet (rbReplica)"),
        }
        for name, (path, expected_text) in cases.items():
            (port,) = free_ports(0, 1)
            ports = {"listenPort": str(port), "haListenPort": str(port + 1)}
            own = tmp_path / f"{name}-process"
            own.mkdir()
            write_settings(own, {**settings, **ports, "storePathRootDir": path})
            process = ManagedProcess(name, rocketbed_command("node", "-c", CONFIG), own)
            process.start()
            assert await process.wait_ended() == 1
            assert expected_text in process.log_path.read_text().splitlines()[-1]
            await sending.more()
        assert {name: cluster.pid(name) for name in cluster.names} == pids


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dir", str(tmp_path / "c")]

    def run(command: str, *more: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["cluster", command, *more, *words]) == code
        return capsys.readouterr()[1 if code else 0]

    try:
        output = run("up", "--port", "0", "--failover")
        nameserver = output.splitlines()[-1].removeprefix("clients: -n ")
        client = ["-n", nameserver, "-t", "T"]
        assert main(["send", *client, "--body", "kept"]) == 0
        (group,) = json.loads(run("status", "--json"))["groups"]
        leader = run("handover").partition(": ")[2].partition(" ")[0]
        masters: list[str] = []
        while masters != [leader]:  # the nameserver hears of it from the new leader
            main(["cluster", "status", "--json", *words])
            status_read = json.loads(capsys.readouterr().out)
            masters = [row["name"] for row in status_read["members"] if row["role"] == "master"]
        assert status_read["groups"][0]["epoch"] == group["epoch"] + 1
        assert status_read["groups"][0]["leader"] != group["leader"]
        assert f"{leader} leads already" in run("handover", leader, code=1)
        assert "cluster handover" in run("promote", leader, code=1)
        stopped = run("down").splitlines()
        assert sorted(stopped) == sorted(f"{row['name']} stopped" for row in status_read["members"])
        run("up")
        assert "leads; in sync: " in run("status")
        assert main(["pull", *client, "--from", "first"]) == 0
        assert "kept" in capsys.readouterr().out
    finally:
        run("down")


@pytest.mark.slow
def test_status_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dir", str(tmp_path / "c")]

    def status() -> tuple[int, Any, list[str]]:
        """The exit code, what is told of the group, and what each node tells."""
        capsys.readouterr()
        code = main(["cluster", "status", "--json", *words])
        status_read = json.loads(capsys.readouterr().out)
        (group,) = status_read["groups"]
        remarks = [
            "".join(row["remarks"]) for row in status_read["members"] if row["role"] != NAMESERVER
        ]
        return code, group["error"] or group, remarks

    def until(remark: str, count: int) -> tuple[int, Any]:
        while True:
            code, group, remarks = status()
            if sum(remark in one for one in remarks) == count:
                return code, group

    try:
        assert main(["cluster", "up", "--port", "0", "--failover", *words]) == 0
        assert "not ready" not in capsys.readouterr().out
        code, group, remarks = status()
        assert (code, remarks) == (0, ["", "", ""])
        cluster = load(tmp_path / "c")
        cluster.kill(NAMESERVER)
        code, error = until("not ready: registered at no nameserver", 3)
        assert code == 1
        assert error.startswith(f"{cluster.nameserver_address} did not answer: ")
        assert main(["cluster", "status", *words]) == 1
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("the group's state is unknown: ")
        assert main(["cluster", "up", *words]) == 0
        for name in cluster.nodes:
            if name != f"node-{group['leader']}":
                cluster.kill(name)
        code, after = until("it leads and takes no messages: in-sync replicas not enough", 1)
        assert (code, after["leader"]) == (1, group["leader"])
        assert main(["cluster", "down", *words]) == 0
        (tmp_path / "c" / NAMESERVER / REGISTER).unlink()
        main(["cluster", "up", *words])
        code, error = until("not ready: no controller has taken it in yet", 3)
        assert code == 1
        assert error.startswith(f"the register has lost group {BROKER_NAME!r}: ")
    finally:
        main(["cluster", "down", *words])
