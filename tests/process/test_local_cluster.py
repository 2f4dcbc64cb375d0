"""Local clusters of real processes: kills, restarts, what a start that fails says."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
import trio

from rocketbed.cli.servers import LOG_BYTES
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Refused, Sent, Unknown
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.lifecycle import load
from rocketbed.cluster.plan import ClusterError
from rocketbed.host.member import ProcessError
from rocketbed.inspect import check_store, open_directory

pytestmark = pytest.mark.process
DEADLINE_S = 60


async def read_all(cluster: LocalCluster, topic: str) -> list[bytes]:
    bodies = []
    async with Consumer(nameservers=cluster.nameserver_address, group="g") as reader:
        for queue in await reader.queues(topic):
            end = await reader.offsets.max_offset(queue)
            offset = await reader.offsets.min_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                bodies += [message.body for message in pulled.messages]
                offset = pulled.next_offset
    return bodies


@pytest.mark.slow
async def test_acknowledged_messages_survive_kill_of_master_and_slave(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=1)
    sent: list[bytes] = []
    doubtful: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            async with Producer(nameservers=cluster.nameserver_address, timeout_s=8) as sender:

                async def send(count: int) -> None:
                    for _ in range(count):
                        body = b"%d" % (len(sent) + len(doubtful))
                        outcome = await sender.send(Message("T", body))
                        (sent if isinstance(outcome, Sent) else doubtful).append(body)

                await send(50)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send, 200)
                    cluster.kill("master")
                    assert await cluster.wait_ended("master") == -signal.SIGKILL
                    assert cluster.pid("master") is None
                    with trio.fail_after(20):
                        await cluster.start("master")
                cluster.kill("slave-1")
                await cluster.wait_ended("slave-1")
                await cluster.start("slave-1")
                last = await sender.send(Message("T", b"last"))
                assert isinstance(last, Sent)
            bodies = await read_all(cluster, "T")
            status = {row.member.name: row for row in await cluster.status()}
            assert all(row.is_serving for row in status.values())
            assert [row.role for row in status.values()] == ["nameserver", "master", "slave"]
    assert len(sent) > 50
    assert set(sent) | {b"last"} <= set(bodies)
    for name in cluster.nodes:
        with closing(open_directory(str(cluster.member_directory(name) / "store"))) as opened:
            report = check_store(opened)
        assert report.verdict == "good", (name, report.findings)


@pytest.mark.slow
async def test_send_to_a_dying_broker_is_unknown_or_refused(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with LocalCluster.create(tmp_path / "c", slaves=0) as cluster:
            await cluster.start()
            async with Producer(
                nameservers=cluster.nameserver_address, timeout_s=1, retry_unknown=False
            ) as sender:
                assert isinstance(await sender.send(Message("T", b"1")), Sent)
                cluster.pause("master")
                paused = await sender.send(Message("T", b"2"))
                assert isinstance(paused, Unknown)
                cluster.resume("master")
                cluster.kill("master")
                await cluster.wait_ended("master")
                assert isinstance(await sender.send(Message("T", b"3")), Unknown | Refused)
                outcome = await sender.send(Message("T", b"3"))
                assert isinstance(outcome, Refused)
                await cluster.start("master")
                assert isinstance(await sender.send(Message("T", b"4"), timeout_s=10), Sent)
            bodies = await read_all(cluster, "T")
            assert {b"1", b"4"} <= set(bodies)
            assert b"3" not in bodies


async def test_a_cluster_is_taken_up_again(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with LocalCluster.create(tmp_path / "c", slaves=0) as first:
            await first.start()
            second = load(tmp_path / "c")
            assert second.pid("master") == first.pid("master")
            with pytest.raises(ProcessError, match="already running"):
                second.launch("master")
            assert await second.close() == []
            assert [second.pid(name) for name in second.names] == [None, None]
            with pytest.raises(ClusterError, match="master is not running"):
                second.kill("master")


async def test_a_member_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    settings = {"flushDiskType": "MAYBE"}
    with trio.fail_after(DEADLINE_S):
        async with LocalCluster.create(tmp_path / "c", slaves=0, settings=settings) as cluster:
            with pytest.raises(ClusterError) as caught:
                await cluster.start()
    message = str(caught.value)
    assert "master ended with code 64" in message
    assert "flushDiskType=MAYBE" in message
    assert str(cluster.member_directory("master") / "log") in message


async def test_full_log_is_rotated_and_its_end_still_shown(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with LocalCluster.create(tmp_path / "c", slaves=0) as cluster:
            for name in cluster.names:
                path = cluster.member_directory(name) / "log"
                path.touch()
                os.truncate(path, LOG_BYTES)
            await cluster.start()
            assert all(row.is_serving for row in await cluster.status())
            logs = {name: cluster.member_directory(name) / "log" for name in cluster.names}
            for log in logs.values():
                assert 0 < log.stat().st_size < LOG_BYTES <= log.with_name("log.1").stat().st_size
            assert "node.serving" in logs["master"].read_text()
            await cluster.stop("master")
            log_files = cluster.member_directory("master") / "store" / "commitlog"
            log_files.rename(tmp_path / "commitlog")
            log_files.touch()
            os.truncate(logs["master"], LOG_BYTES)
            with pytest.raises(ClusterError, match=r"rocketbed: .*commitlog"):
                await cluster.start("master")
            assert logs["master"].with_name("log.2").exists()


async def test_hanging_member_is_killed_at_last(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with LocalCluster.create(tmp_path / "c", slaves=0) as cluster:
            await cluster.start()
            cluster.pause("master")
            with pytest.raises(ClusterError, match=r"is not serving after 0\.3 s"):
                await cluster.wait_serving("master", timeout_s=0.3)
            assert not await cluster.stop("master", timeout_s=0.2)
            assert cluster.pid("master") is None
