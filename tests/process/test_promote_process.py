"""Failover by hand with real processes: promote, send, and the former master follows."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.cluster.cluster import LocalCluster
from rocketbed.chaos.cluster.plan import ClusterError
from rocketbed.cli.main import main
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.inspect import check_store, open_directory

pytestmark = pytest.mark.process
DEADLINE_S = 60
LOOK_S = 0.02


async def send(cluster: LocalCluster, first: int, end: int) -> None:
    async with Producer(nameservers=cluster.nameserver_address, timeout_s=8) as sender:
        for number in range(first, end):
            assert isinstance(await sender.send(Message("T", b"%d" % number)), Sent)


async def wait_equal(cluster: LocalCluster) -> int:
    """Until every node has the same log end, which is returned."""
    while True:
        rows = [row for row in await cluster.status() if row.member.is_node]
        ends = {row.offset("commitLogMaxOffset") for row in rows}
        (first, *others) = ends
        if first is not None and not others and all(row.is_serving for row in rows):
            return first
        await trio.sleep(LOOK_S)


def log_of(cluster: LocalCluster, name: str, end: int) -> bytes:
    files = sorted((cluster.member_directory(name) / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


async def test_the_former_master_loses_its_tail_and_follows(tmp_path: Path) -> None:
    """The slaves are stopped by a signal while the master takes messages, then it is killed."""
    cluster = LocalCluster.create(tmp_path / "c", slaves=2, sync=False)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 20)
            common = await wait_equal(cluster)
            for name in ("slave-1", "slave-2"):
                await cluster.stop(name)
            await send(cluster, 1000, 1010)
            cluster.kill("master")
            await cluster.wait_ended("master")
            assert await cluster.promote("slave-2") == ["slave-2"]
            await send(cluster, 20, 40)
            await cluster.start("master", "slave-1")
            end = await wait_equal(cluster)
            logs = {name: log_of(cluster, name, end) for name in cluster.nodes}
            assert logs["master"] == logs["slave-1"] == logs["slave-2"]
            cut = cluster.member_directory("master") / "store" / "rocketbed.cut"
            assert [path.name for path in cut.iterdir()] == [f"{common:020d}"]
            assert "replication.cut" in (cluster.member_directory("master") / "log").read_text()
            roles = {
                row.member.name: (row.role, row.member.broker_id) for row in await cluster.status()
            }
            assert roles == {
                "nameserver": ("nameserver", -1),
                "master": ("slave", 2),
                "slave-1": ("slave", 1),
                "slave-2": ("master", 0),
            }
    for name in cluster.nodes:
        with closing(open_directory(str(cluster.member_directory(name) / "store"))) as opened:
            report = check_store(opened)
        assert report.verdict == "good", (name, report.findings)


async def test_a_paused_master_is_fenced_and_everyone_goes_on(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=2)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 20)
            await wait_equal(cluster)
            cluster.pause("master")
            again = await cluster.promote("slave-1")
            assert again == ["slave-1", "master", "slave-2"]
            await send(cluster, 20, 30)
            end = await wait_equal(cluster)
            assert log_of(cluster, "master", end) == log_of(cluster, "slave-1", end)
            await cluster.promote("master")
            await send(cluster, 30, 40)
            await wait_equal(cluster)
            pids = {name: cluster.pid(name) for name in cluster.nodes}
            cluster.kill("nameserver")
            await cluster.wait_ended("nameserver")
            with pytest.raises(ClusterError, match="nameserver is not running"):
                await cluster.promote("slave-2")
            assert {name: cluster.pid(name) for name in cluster.nodes} == pids


async def test_a_slave_that_lacks_messages_is_refused(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=2)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await wait_equal(cluster)
            await cluster.stop("slave-1")
            await send(cluster, 0, 5)
            cluster.pause("master")
            pids = {name: cluster.pid(name) for name in cluster.names}
            for has in ("does not answer", "only 0"):
                with pytest.raises(ClusterError, match=f"slave-1 {has}.* promote slave-2, or"):
                    await cluster.promote("slave-1")
                assert {name: cluster.pid(name) for name in pids} == pids
                if pids["slave-1"] is None:
                    await cluster.start("slave-1")
                    pids["slave-1"] = cluster.pid("slave-1")
            assert await cluster.promote("slave-2") == ["slave-2", "master", "slave-1"]
            assert await wait_equal(cluster) > 0
            assert log_of(cluster, "slave-1", 500) == log_of(cluster, "slave-2", 500)


async def test_what_a_slave_lacks_can_be_given_up(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=2)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await wait_equal(cluster)
            await cluster.stop("slave-1")
            await send(cluster, 0, 5)
            assert (await cluster.promote("slave-1", force=True))[0] == "slave-1"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dir", str(tmp_path / "c")]
    try:
        assert main(["cluster", "up", "--port", "0", "--slaves", "1", *words]) == 0
        assert main(["cluster", "promote", "slave-1", *words]) == 0
        shown = capsys.readouterr().out
        assert "slave-1 is now the master, master is its slave" in shown
        assert main(["cluster", "status", "--json", *words]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert (rows["slave-1"]["role"], rows["slave-1"]["brokerId"]) == ("master", 0)
        assert (rows["master"]["role"], rows["master"]["state"]) == ("slave", "serving")
        assert main(["cluster", "promote", "slave-1", *words]) == 1
        assert "is already the master" in capsys.readouterr().err
        assert main(["cluster", "down", *words]) == 0
        assert main(["cluster", "up", *words]) == 0
        assert main(["cluster", "status", *words]) == 0
    finally:
        main(["cluster", "down", *words])
