"""RocketMQ's own tools on a rocketbed cluster: what they ask first is answered."""

import subprocess
from pathlib import Path

import pytest
import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from tests.support.peer.installation import Installation

TOPIC, GROUP, OTHER = "ToolTopic", "tool-group", "tool-other"
COUNT = 10
TOOL_S = 120
MEMORY_MIB = 128


class Tools:
    """`mqadmin`, a process for each command."""

    def __init__(self, installation: Installation, home: Path, nameserver: str) -> None:
        self._installation = installation
        self._home = home
        self._nameserver = nameserver
        home.mkdir()

    async def __call__(self, *words: str) -> list[list[str]]:
        """The words of each line that a command prints."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        command = self._installation.command(
            main, *words, "-n", self._nameserver, home=self._home, memory_mib=MEMORY_MIB
        )
        with trio.fail_after(TOOL_S):
            done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT)
        text = done.stdout.decode()
        assert "Exception" not in text, text[-3000:]
        lines = [line.split() for line in text.splitlines() if "|-" not in line]
        return [line for line in lines if line]


def rows(lines: list[list[str]], first: str) -> list[list[str]]:
    return [line for line in lines if line[0] == first]


@pytest.mark.ci
async def test_topics_groups_members_and_positions(
    installation: Installation, tmp_path: Path
) -> None:
    async with LocalCluster.create(tmp_path / "cluster", slaves=0, tied=True) as cluster:
        await cluster.start()
        nameserver = cluster.nameserver_address
        tools = Tools(installation, tmp_path / "tools", nameserver)
        async with (
            Producer(nameservers=nameserver, group="tool-producer") as producer,
            Consumer(nameservers=nameserver, group=GROUP) as consumer,
            Consumer(nameservers=nameserver, group=OTHER) as second_consumer,
        ):
            for number in range(COUNT):
                await producer.send(Message(TOPIC, b"x", keys=[f"k{number}"]))
            await consumer.subscribe(TOPIC, start="first")
            await second_consumer.subscribe(TOPIC, start="last")
            count = 0
            while count < COUNT:
                count += len(await consumer.poll())
            await consumer.commit()

            status = rows(await tools("topicStatus", "-t", TOPIC), "broker-a")
            assert sum(int(row[3]) for row in status) == COUNT
            progress = rows(await tools("consumerProgress", "-g", GROUP), TOPIC)
            assert [sum(int(row[at]) for row in progress) for at in (3, 4, 5)] == [COUNT, COUNT, 0]
            (online,) = rows(await tools("consumerProgress"), GROUP)
            assert online[1] == "1"
            listed = [row[1:] for row in await tools("topicList", "-c") if TOPIC in row]
            assert sorted(row[1] for row in listed) == [GROUP, OTHER]
            members = await tools("consumerConnection", "-g", GROUP)
            assert rows(members, TOPIC) == [[TOPIC, "*"]]
            assert any("PYTHON" in row for row in members)
            client = next(row[0] for row in members if "PYTHON" in row)
            status_rows = await tools("consumerStatus", "-g", GROUP, "-i", client)
            queues = [
                row for row in status_rows if row[:2] == [TOPIC, "broker-a"] and len(row) == 4
            ]
            assert sum(int(row[3]) for row in queues) == COUNT, status_rows
            assert any(
                "PYTHON" in row
                for row in await tools("producerConnection", "-g", "tool-producer", "-t", TOPIC)
            )

            # A consumer that runs is told, and reads all of it again.
            assert rows(
                await tools("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0"), "broker-a"
            )
            reread_count = 0
            with trio.fail_after(60):
                while reread_count < COUNT:
                    reread_count += len(await consumer.poll())
            await tools("cloneGroupOffset", "-s", GROUP, "-d", OTHER, "-t", TOPIC)
