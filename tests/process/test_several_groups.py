"""Several groups with failover in one cluster: while one is without a leader, clients go on."""

import json
from pathlib import Path

import pytest
import trio

from rocketbed.cli.main import main
from rocketbed.client.admin import Admin
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.lifecycle import load

pytestmark = pytest.mark.process
DEADLINE_S = 60
LOOK_S = 0.02


def test_two_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dir", str(tmp_path / "c")]
    try:
        assert main(["cluster", "up", "--port", "0", "--groups", "2", *words]) == 0
        output = capsys.readouterr().out.splitlines()
        nameserver = output[-1].removeprefix("clients: -n ")
        cluster = load(tmp_path / "c")
        for broker in cluster.plan.brokers:
            trio.run(wait_led, cluster, broker)
        create = ["topic", "create", "T", "--queues", "2", "-n", nameserver]
        assert main(create) == 0
        assert "broker-a, broker-b" in capsys.readouterr().out
        trio.run(over_a_kill, cluster)
        capsys.readouterr()
        assert main(["cluster", "status", *words]) == 1  # one of them is down
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("broker-a: epoch 2: a-node-") for line in lines) == 1
        assert sum(line.startswith("broker-b: epoch 1: b-node-") for line in lines) == 1
        assert main(["cluster", "up", *words]) == 0
        capsys.readouterr()
        assert main(["cluster", "handover", "broker-b", *words]) == 0
        assert capsys.readouterr().out.startswith("epoch 2: b-node-")
        main(["cluster", "status", "--json", *words])
        groups = json.loads(capsys.readouterr().out)["groups"]
        assert {group["brokerName"]: group["epoch"] for group in groups} == {
            "broker-a": 2,
            "broker-b": 2,
        }
        without_a_directory(nameserver, capsys)
    finally:
        assert main(["cluster", "down", *words]) == 0
    assert capsys.readouterr().out.count(" stopped") == 7


def without_a_directory(nameserver: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`rocketbed failover` needs the nameserver only."""
    server = ["-n", nameserver]
    assert main(["failover", "status", "--json", *server]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [group["error"] for group in status["groups"]] == [None, None]
    group = status["groups"][0]
    assert group["brokerName"] == "broker-a"
    (leader,) = (row for row in group["replicas"] if row["state"] == "leads")
    assert (leader["replica"], leader["lag"]) == (group["leader"], 0)
    assert leader["confirmedOffset"] is not None
    assert main(["failover", "handover", "broker-a", *server]) == 0
    assert capsys.readouterr().out.startswith(f"epoch {group['epoch'] + 1}: replica ")
    assert main(["failover", "status", *server]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"broker-a: epoch {group['epoch'] + 1}: replica ")
    assert sum("leads" in line.split() for line in lines if line[0].isdigit()) == 2
    expected_text = "knows of no group broker-c: broker-a, broker-b"
    assert main(["failover", "handover", "broker-c", *server]) == 1
    assert expected_text in capsys.readouterr().err
    assert main(["failover", "force-leader", "broker-a", "1", "--accept-loss", *server]) == 1
    assert "have lost nothing, and are there" in capsys.readouterr().err


async def wait_led(cluster: LocalCluster, broker: str) -> None:
    """Wait until the nameserver has a leader of the group."""
    with trio.fail_after(DEADLINE_S):
        async with cluster.admin() as admin:
            while True:
                if 0 in (await admin.cluster()).broker_addr_table[broker].broker_addrs:
                    return
                await trio.sleep(LOOK_S)


async def over_a_kill(cluster: LocalCluster) -> None:
    """Sends go round both groups, and to both again after one of them has another leader."""
    names = cluster.nameserver_address
    with trio.fail_after(DEADLINE_S):
        async with Producer(nameservers=names) as producer, Admin(nameservers=names) as admin:
            assert await brokers_of_sends(producer, 8) == {"broker-a", "broker-b"}
            former = (await admin.cluster()).broker_addr_table["broker-a"].broker_addrs[0]
            (leader,) = (name for name in cluster.nodes if cluster.address(name) == former)
            cluster.kill(leader)
            await cluster.wait_ended(leader)
            # The route of the dead leader is in the client's hands still.
            assert "broker-b" in await brokers_of_sends(producer, 8)
            while await brokers_of_sends(producer, 8) != {"broker-a", "broker-b"}:
                pass


async def brokers_of_sends(producer: Producer, count: int) -> set[str]:
    """Return the brokers that got the sends; each is acknowledged as safe."""
    brokers = set()
    for _ in range(count):
        outcome = await producer.send(Message("T", b"body"))
        assert isinstance(outcome, Sent), outcome
        assert outcome.is_safe
        brokers.add(outcome.queue.broker_name)
    return brokers
