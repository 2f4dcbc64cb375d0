"""A master whose disk lost what was acknowledged: it says so, is healed from its slave, serves."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.plan import ClusterError

pytestmark = pytest.mark.process
DEADLINE_S = 120
COUNT = 60


async def send(cluster: LocalCluster) -> None:
    async with Producer(nameservers=cluster.nameserver_address, timeout_s=8) as sender:
        for number in range(COUNT):
            message = Message("T", b"%d" % number + bytes(500))
            assert isinstance(await sender.send(message), Sent)


async def count(cluster: LocalCluster) -> int:
    """Messages that can be pulled."""
    count_read = 0
    async with Consumer(nameservers=cluster.nameserver_address, group="g") as reader:
        for queue in await reader.queues("T"):
            end = await reader.offsets.max_offset(queue)
            offset = await reader.offsets.min_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                count_read += len(pulled.messages)
                offset = pulled.next_offset
    return count_read


def last_segment(store: Path) -> Path:
    """The last segment that holds anything."""
    files = sorted((store / "commitlog").iterdir())
    return [path for path in files if path.read_bytes().strip(b"\0")][-1]


def zero_the_tail(path: Path) -> None:
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    path.write_bytes(data[: used // 2].ljust(len(data), b"\0"))


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("damage", [Path.unlink, zero_the_tail])
async def test_a_damaged_master_is_healed_from_its_slave(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    cluster = LocalCluster.create(
        tmp_path / "c", slaves=1, sync=True, settings={"mappedFileSizeCommitLog": "8192"}
    )
    store = cluster.member_directory("master") / "store"
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            await send(cluster)
            assert await cluster.stop("master")
            whole = last_segment(store).read_bytes()
            path = last_segment(store)
            damage(path)
            with pytest.raises(ClusterError):
                await cluster.start("master")
            log_text = (cluster.member_directory("master") / "log").read_text()
            assert "Nothing was changed" in log_text
            # Exactly what is printed, without the node's configuration.
            printed = re.findall(f"`rocketbed (store heal {store} .*?)`", log_text)[-1]
            host, _, port = cluster.address("slave-1").rpartition(":")
            command = printed.replace("HOST:PORT", f"{host}:{int(port) + 1}").split()
            done = await trio.run_process(
                [sys.executable, "-m", "rocketbed", *command], capture_stdout=True
            )
            assert b"the log is whole; 1 ranges were copied" in done.stdout
            assert path.read_bytes() == whole
            await cluster.start("master")
            assert await count(cluster) == COUNT
