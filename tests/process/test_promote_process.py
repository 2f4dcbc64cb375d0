"""Failover by hand with real processes: promote, send, and the former master follows."""

import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest
import trio

from rocketbed.cli.main import main
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.lifecycle import load
from rocketbed.cluster.plan import ClusterError
from rocketbed.cluster.promotion import Promotion
from rocketbed.inspect import check_store, open_directory
from tests.support.logs import STORE_MS, Log
from tests.support.logs import Message as Stored

pytestmark = pytest.mark.process
DEADLINE_S = 60
LOOK_S = 0.02


async def send(cluster: LocalCluster, first: int, end: int) -> None:
    async with Producer(nameservers=cluster.nameserver_address, timeout_s=8) as sender:
        for number in range(first, end):
            assert isinstance(await sender.send(Message("T", b"%d" % number)), Sent)


async def wait_equal(cluster: LocalCluster) -> int:
    """Wait until every node serves and has the same log end, which is returned."""
    return await wait_equal_of(cluster, *cluster.nodes)


async def wait_equal_of(cluster: LocalCluster, *names: str) -> int:
    """The same of these."""
    while True:
        rows = [row for row in await cluster.status() if row.member.name in names]
        ends = {row.offset("commitLogMaxOffset") for row in rows}
        (first, *other_ends) = ends
        if first is not None and not other_ends and all(row.is_serving for row in rows):
            return first
        await trio.sleep(LOOK_S)


async def kill(cluster: LocalCluster, name: str) -> None:
    cluster.kill(name)
    await cluster.wait_ended(name)


def log_of(cluster: LocalCluster, name: str, end: int) -> bytes:
    files = sorted((cluster.member_directory(name) / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


@pytest.mark.slow
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
            await cluster.start("slave-2")
            with pytest.raises(ClusterError, match=r"master \(stopped\) has .*, slave-2 only"):
                await cluster.promote("slave-2")
            assert await cluster.promote("slave-2", force=True) == ["slave-2"]
            await send(cluster, 20, 40)
            await cluster.start("master", "slave-1")
            end = await wait_equal(cluster)
            logs = {name: log_of(cluster, name, end) for name in cluster.nodes}
            assert logs["master"] == logs["slave-1"] == logs["slave-2"]
            cut = cluster.member_directory("master") / "store" / "rocketbed.cut"
            assert [path.name for path in cut.iterdir()] == [f"{common:020d}"]
            assert "replication.cut" in (cluster.member_directory("master") / "log").read_text()
            rows = {row.member.name: row for row in await cluster.status()}
            (remark,) = rows["master"].remarks
            assert remark.startswith(
                f"{next(cut.iterdir()).stat().st_size} bytes that were truncated"
            )
            roles = {name: (row.role, row.member.broker_id) for name, row in rows.items()}
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


@pytest.mark.slow
async def test_paused_master_is_fenced_and_the_group_continues(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=2)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 20)
            await wait_equal(cluster)
            cluster.pause("master")
            order = await cluster.promote("slave-1")
            assert order == ["slave-1", "master", "slave-2"]
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


@pytest.mark.slow
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
            for pattern in (
                "slave-1 does not answer: start it",
                r"slave-2 \(running\) has .*, slave-1 only 0: .*; or use --force",
            ):
                with pytest.raises(ClusterError, match=pattern):
                    await cluster.promote("slave-1")
                assert {name: cluster.pid(name) for name in pids} == pids
                if pids["slave-1"] is None:
                    await cluster.start("slave-1")
                    pids["slave-1"] = cluster.pid("slave-1")
            assert await cluster.promote("slave-2") == ["slave-2", "master", "slave-1"]
            assert await wait_equal(cluster) > 0
            assert log_of(cluster, "slave-1", 500) == log_of(cluster, "slave-2", 500)


async def remake_topic(cluster: LocalCluster) -> None:
    """Messages of topic T, its deletion, and messages of another T; all in one queue."""
    async with cluster.admin() as admin:
        for first in (0, 10):
            await admin.create_topic("T", queues=1)
            await send(cluster, first, first + 10)
            if not first:
                await admin.delete_topic("T")


@pytest.mark.slow
async def test_recreated_topic_fails_over(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=1)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await remake_topic(cluster)
            await cluster.promote("slave-1")
            async with Consumer(nameservers=cluster.nameserver_address, group="g") as consumer:
                (queue,) = await consumer.queues("T")
                pulled = await consumer.pull(queue, 0)
    assert [message.body for message in pulled.messages] == [b"%d" % n for n in range(10, 20)]


@pytest.mark.slow
async def test_unqueued_messages_are_not_promoted_silently(tmp_path: Path) -> None:
    """The slave has lost its mark, and the master that could tell of the deletion is gone."""
    cluster = LocalCluster.create(tmp_path / "c", slaves=1)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await remake_topic(cluster)
            for name in ("master", "slave-1"):
                await kill(cluster, name)
            for name in ("rocketbed.ckpt", "rocketbed.flushed", "checkpoint"):
                (cluster.member_directory("slave-1") / "store" / name).unlink()
            await cluster.start("slave-1")
            with pytest.raises(
                ClusterError, match=r"10 good records stand in no queue \(T: 10 from"
            ):
                await cluster.promote("slave-1")
            assert await cluster.promote("slave-1", force=True) == ["slave-1"]


@pytest.mark.slow
async def test_logs_of_stopped_members_and_the_master_count(tmp_path: Path) -> None:
    """The slave that helped to acknowledge is down; its files, and the master, tell."""
    cluster = LocalCluster.create(tmp_path / "c", slaves=2, flush="sync")
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 5)
            before = await wait_equal(cluster)
            await kill(cluster, "slave-2")
            await send(cluster, 5, 15)
            await kill(cluster, "slave-1")
            with pytest.raises(ClusterError, match="slave-2 does not answer: start it"):
                await cluster.promote("slave-2")
            assert cluster.pid("master") is not None
            await kill(cluster, "master")
            await cluster.start("slave-2")
            pattern = rf"slave-1 \(stopped\) has \d+ bytes of log, slave-2 only {before}: "
            with pytest.raises(ClusterError, match=pattern):
                await cluster.promote("slave-2")
            shutil.rmtree(cluster.member_directory("slave-1") / "store")
            with pytest.raises(ClusterError, match="nothing can be known of the log of slave-1"):
                await cluster.promote("slave-2")
            await cluster.start("master")
            await wait_equal_of(cluster, "master", "slave-2")
            cluster.pause("master")
            with pytest.raises(ClusterError, match=r"slave-1 \(stopped\)"):
                await cluster.promote("slave-2")


async def lose_end(cluster: LocalCluster, copy: Path, first: int, end: int) -> int:
    """Let the master lose messages that a slave has: stop it, with its store as before. Return the
    former end of the log."""
    store = cluster.member_directory("master") / "store"
    await cluster.stop("master")
    shutil.copytree(store, copy)
    await cluster.start("master")
    await send(cluster, first, end)
    before = await wait_equal_of(cluster, "master", "slave-1")
    await cluster.stop("master")
    shutil.rmtree(store)
    shutil.move(copy, store)
    return before


@pytest.mark.slow
async def test_diverged_slave_is_not_promoted_silently(tmp_path: Path) -> None:
    """The master lost its end, and has taken messages since, though not as many."""
    cluster = LocalCluster.create(tmp_path / "c", slaves=1, sync=False)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 5)
            await wait_equal(cluster)
            before = await lose_end(cluster, tmp_path / "old", 5, 15)
            await cluster.start("master")
            await send(cluster, 20, 23)
            pattern = r"master \(running\) has other messages than slave-1 .*; or use --force"
            with pytest.raises(ClusterError, match=pattern):
                await cluster.promote("slave-1")
            await cluster.stop("master")
            with pytest.raises(ClusterError, match=r"master \(stopped\) has other messages"):
                await cluster.promote("slave-1")
            await cluster.start("master")
            assert await cluster.promote("slave-1", force=True) == ["slave-1", "master"]
            assert await wait_equal(cluster) >= before
            cut = cluster.member_directory("master") / "store" / "rocketbed.cut"
            assert list(cut.iterdir())


async def test_diverged_log_of_a_stopped_slave_counts(tmp_path: Path) -> None:
    """The master lost its end and went on with its other slave; then both are down."""
    cluster = LocalCluster.create(tmp_path / "c", slaves=2)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 5)
            await wait_equal(cluster)
            await cluster.stop("slave-2")
            await lose_end(cluster, tmp_path / "old", 5, 8)
            await cluster.start("master", "slave-2")
            await send(cluster, 20, 40)
            await wait_equal_of(cluster, "master", "slave-2")
            for name in ("master", "slave-2"):
                await kill(cluster, name)
            with pytest.raises(ClusterError, match=r"slave-2 \(stopped\) has other messages"):
                await cluster.promote("slave-1")
            await cluster.start("master", "slave-2")
            await cluster.stop("slave-1")  # what it has was given up by the master before
            assert await cluster.promote("slave-2") == ["slave-2", "master"]


async def test_stale_end_counts_unless_the_targets_master_left_it(
    tmp_path: Path,
) -> None:
    """Three stopped nodes are compared by their files; letters are messages."""
    for case, (master, target, slave) in enumerate(
        (("aBC", "aB", "aX"), ("aBC", "aA", "aBX"), ("aBC", "aA", "aBC"))
    ):
        cluster = LocalCluster.create(tmp_path / f"{case}", slaves=2)
        for name, log in (("master", master), ("slave-1", target), ("slave-2", slave)):
            stored = [Stored(body=one.encode() * 99, store_ms=STORE_MS + ord(one)) for one in log]
            Log(cluster.member_directory(name) / "store", segment=1 << 20).append(stored)
        ends = await Promotion(cluster, "slave-1").ends()
        parted = {end.name for end in ends if end.diverged}
        assert parted == ({"slave-2"} if case else set()), (case, ends)


@pytest.mark.slow
async def test_master_that_acknowledges_alone_until_stopped(tmp_path: Path) -> None:
    """Messages it took between the first look and its stop are seen by the second look."""
    cluster = LateMessages.create(tmp_path / "c", slaves=1, sync=False)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster, 0, 5)
            await wait_equal(cluster)
            pattern = "slave-1 does not answer.*master took messages until it was stopped"
            with pytest.raises(ClusterError, match=pattern):
                await cluster.promote("slave-1")
            assert cluster.plan.master().name == "master"
            cluster.resume("slave-1")
            await wait_equal(cluster)


class LateMessages(LocalCluster):
    """Takes messages that its slave does not get, just before the master is fenced."""

    async def stop(self, name: str, *, timeout_s: float = 10.0) -> bool:
        if name != "master" or "has_taken" in vars(self):
            return await super().stop(name, timeout_s=timeout_s)
        self.has_taken = True
        self.pause("slave-1")
        await send(self, 5, 15)
        return await super().stop(name, timeout_s=timeout_s)


@pytest.mark.slow
async def test_missing_messages_of_a_slave_can_be_given_up(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", slaves=2)
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await wait_equal(cluster)
            await cluster.stop("slave-1")
            await send(cluster, 0, 5)
            assert (await cluster.promote("slave-1", force=True))[0] == "slave-1"


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dir", str(tmp_path / "c")]
    try:
        assert main(["cluster", "up", "--port", "0", "--slaves", "1", *words]) == 0
        assert main(["cluster", "promote", "slave-1", *words]) == 0
        output = capsys.readouterr().out
        assert "slave-1 is now the master, master is its slave" in output
        assert main(["cluster", "status", "--json", *words]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["members"]}
        assert (rows["slave-1"]["role"], rows["slave-1"]["brokerId"]) == ("master", 0)
        assert (rows["master"]["role"], rows["master"]["state"]) == ("slave", "serving")
        assert main(["cluster", "promote", "slave-1", *words]) == 1
        assert "is already the master" in capsys.readouterr().err
        cluster = load(tmp_path / "c")
        os.kill(cluster.pid("slave-1") or 0, signal.SIGKILL)
        assert main(["cluster", "promote", "master", *words]) == 0
        lacks = capsys.readouterr().err
        assert "master refuses every send until 2 copies are in sync, and 1 of 2 nodes run" in lacks
        assert str(cluster.member_directory("master") / "broker.conf") in lacks
        assert main(["cluster", "down", *words]) == 0
        assert main(["cluster", "up", *words]) == 0
        assert main(["cluster", "status", *words]) == 0
    finally:
        main(["cluster", "down", *words])
