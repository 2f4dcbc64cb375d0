"""Configuration of a RocketMQ, and the meaning of its log and answers."""

import json
from pathlib import Path
from typing import cast

import pytest

from rocketbed.chaos.backends.foreign.installation import Installation
from rocketbed.chaos.backends.foreign.rocketmq import GET_BROKER_EPOCH_CACHE, Mode, RocketMQSoftware
from rocketbed.chaos.backends.foreign.settings import CONTROLLER_PORT, SMALL
from rocketbed.chaos.backends.foreign.target import ForeignHost
from rocketbed.chaos.backends.process.network.base import Network
from rocketbed.chaos.backends.process.samples import Asker, size_at_most
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan, Producers, Shape
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.wire.bodies import HaClientRuntimeInfo, HaRuntimeInfo
from rocketbed.wire.command import Command, answer, request
from rocketbed.wire.properties_text import parse_properties
from rocketbed.world.api import Address

INSTALLATION = Installation("5.3.3", Path("/jars"))
BOOT = b"""12:00:00.1 INFO RocketmqStore - last shutdown abnormally, store path root dir: /s
12:00:00.2 INFO RocketmqStore - message store recover end, and the max phy offset = 4711
"""
BEGUN = b"12:00:00.3 INFO RocketmqStore - /s/abort already exists\n"


class Switched:
    """The part of a network that commands need."""

    name = "switch"

    def address(self, machine: str) -> Address:
        port = 9876 if machine.startswith("ns") else 10911
        return f"10.98.0.{machine[-1]}", port


class KnownAnswers:
    """An asker whose answers are known."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    async def look(self, address: Address) -> tuple[dict[str, str], HaRuntimeInfo] | None:
        table = cast("dict[str, str]", self.answers["table"])
        return table, cast(HaRuntimeInfo, self.answers["ha"])

    async def ask(
        self, address: Address, code: int, fields: dict[str, str] | None = None
    ) -> Command | None:
        if code == GET_BROKER_EPOCH_CACHE:
            rows = [{"epoch": 1, "startOffset": 0}, {"epoch": 2, "startOffset": 700}]
            return answer(request(code), body=json.dumps({"epochList": rows}).encode())
        fields = cast("dict[str, str] | None", self.answers["replicas"])
        return None if fields is None else answer(request(code), fields=fields)


def software(mode: Mode = "classic", nameservers: int = 1) -> RocketMQSoftware:
    producers = Producers(prefix="load", topics=1, queues=8)
    plan = Plan(name="x", seed=1, shape=Shape(nameservers=nameservers), producers=producers)
    return RocketMQSoftware(INSTALLATION, mode, cast(Network, Switched()), plan)


def lines(store: Path, **more: str) -> dict[str, str]:
    return {
        "brokerId": "0",
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "listenPort": "10911",
        "storePathRootDir": str(store),
        "rbDiverged": "cut",
        **more,
    }


def written(path: Path) -> dict[str, str]:
    return {key: value for _, key, value in parse_properties(path.read_text())}


def test_a_classic_broker_is_what_the_operator_says(tmp_path: Path) -> None:
    command = software().node_command("b1", tmp_path, lines(tmp_path / "store"))
    assert "org.apache.rocketmq.broker.BrokerStartup" in command
    settings = written(tmp_path / "broker.conf")
    assert (settings["brokerId"], settings["brokerRole"]) == ("0", "SYNC_MASTER")
    assert settings["haListenPort"] == "10912"
    assert settings["storePathCommitLog"] == f"{tmp_path}/store/commitlog"
    assert SMALL.items() <= settings.items()
    assert not [key for key in settings if key.startswith("rb") or "ontroller" in key]
    assert not (tmp_path / "store").exists()


def test_a_slave_begins_with_the_topics(tmp_path: Path) -> None:
    slave = lines(tmp_path / "store", brokerRole="SLAVE", brokerId="1")
    software().node_command("b2", tmp_path, slave)
    path = tmp_path / "store" / "config" / "topics.json"
    topic = json.loads(path.read_text())["topicConfigTable"]["load-1"]
    assert (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"]) == (8, 8, 6)
    path.write_text("its own by now")
    software().node_command("b2", tmp_path, slave)
    assert path.read_text() == "its own by now"


def test_elected_broker_has_no_configured_role(tmp_path: Path) -> None:
    software("controller").node_command("b1", tmp_path, lines(tmp_path / "store"))
    settings = written(tmp_path / "broker.conf")
    assert (settings["brokerId"], settings["brokerRole"]) == ("-1", "SLAVE")
    assert settings["enableControllerMode"] == "true"
    assert settings["controllerAddr"] == f"10.98.0.1:{CONTROLLER_PORT}"
    assert (settings["minInSyncReplicas"], settings["allAckInSyncStateSet"]) == ("2", "true")


@pytest.mark.parametrize(("nameservers", "hosts"), [(1, 1), (2, 1), (3, 3)])
def test_controllers_are_one_or_can_lose_one(tmp_path: Path, nameservers: int, hosts: int) -> None:
    controller = software("controller", nameservers)
    own = {"listenPort": "9876", "bindAddress": "10.98.0.1"}
    for number in range(nameservers):
        controller.nameserver_command(f"ns{number + 1}", tmp_path, own)
        settings = written(tmp_path / "namesrv.conf")
        assert settings["listenPort"] == "9876"
        if number < hosts:
            assert settings["controllerDLegerSelfId"] == f"n{number}"
            assert len(settings["controllerDLegerPeers"].split(";")) == hosts
        else:
            assert "controllerDLegerPeers" not in settings


def test_recovery_is_reported_when_the_store_has_begun() -> None:
    broker = software()
    assert broker.recovered(BOOT) is None
    assert broker.recovered(BOOT + BEGUN) == {"end": 4711, "clean": False}
    begun = (
        (BOOT + BEGUN).replace(b"abnormally", b"normally").replace(b"already exists", b"create OK")
    )
    assert broker.recovered(begun) == {"end": 4711, "clean": True}
    assert broker.recovered(b"") is None
    log = b"10:0 INFO RocketmqStore - Truncate slave log to 100 success, change to transfer state\n"
    assert [dict(cut) for cut in broker.cuts(log * 2)] == [{"to": 100}, {"to": 100}]


def test_why_it_ended() -> None:
    broker = software()
    log = "x\njava.lang.RuntimeException: Lock failed,MQ already started\n\tat org.apache.A.b\n"
    assert broker.reason(log, 253).startswith("java.lang.RuntimeException: Lock failed")
    assert broker.reason("bad luck\n", 1) == "bad luck (exit code 1)"
    assert broker.reason("", None) == " (exit code None)"
    assert [code for code in (0, 1, 137, 143, -9, None) if broker.is_clean(code)] == [0, 143]


def test_faults_that_would_show_nothing_are_named() -> None:
    assert "mappings" in str(software().lacks("disk.faults"))
    assert software().lacks("disk.powercut") is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("0 B", 0), ("512 B", 512), ("1.2 KiB", 1280), ("2.0 MiB", 2149581), ("", 0), ("77", 77)],
)
def test_a_size_for_people_is_rounded_up(text: str, size: int) -> None:
    assert size_at_most(text) == size


async def test_slave_follows_while_its_master_reports() -> None:
    table = {"commitLogMaxOffset": "5000", "remainHowManyDataToFlush": "1.0 KiB"}
    for last_read_ms, is_following in ((0, False), (1795190000000, True)):
        slave = HaClientRuntimeInfo(last_read_timestamp=last_read_ms)
        ha = HaRuntimeInfo(master=False, ha_client_runtime_info=slave)
        sample = await software().observe(cast(Asker, KnownAnswers(table=table, ha=ha)), ("h", 1))
        assert sample is not None
        assert (sample.written, sample.is_master) == (5000, False)
        assert sample.flushed == 5000 - 1076
        assert sample.is_following == is_following


async def test_election_needs_controller_and_master_start() -> None:
    fields = {"masterAddress": "10.98.0.5:10911", "masterEpoch": "2", "masterBrokerId": "2"}
    asker = cast(Asker, KnownAnswers(replicas=fields))
    broker = software("controller")
    assert await broker.elected(asker, "b") == (("10.98.0.5", 10911), 2, 700)
    assert (
        await broker.elected(cast(Asker, KnownAnswers(replicas={"masterEpoch": "3"})), "b") is None
    )
    assert await broker.elected(cast(Asker, KnownAnswers(replicas=None)), "b") is None
    assert await software().elected(asker, "b") is None


def test_a_proxy_has_no_place_for_rocketmq() -> None:
    host = ForeignHost(INSTALLATION)
    plan = load_scenario("sync-failover").plan(1, "process")
    with Ledger.begin(guard=False) as run:
        assert host.network("plain", plan, run).name == "plain"
        with pytest.raises(HostError, match="choose --net switch"):
            host.network("proxy", plan, run)
