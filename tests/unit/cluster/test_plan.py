"""Plans of local clusters, and the processes of their members."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.lifecycle import load
from rocketbed.cluster.plan import ClusterError, change_settings, make_plan, read_plan
from rocketbed.cluster.promotion import changes_role
from rocketbed.host.member import ManagedProcess, ProcessError
from rocketbed.host.ports import (
    HOST,
    PORTS_VARIABLE,
    PortRangeError,
    connection_ports_begin,
    free_node_port,
    free_port,
    free_ports,
    is_free,
    node_ports,
)
from rocketbed.node.config.node_config import make_config, settings_from_text


def test_ports_of_a_plan_do_not_collide() -> None:
    plan = make_plan(slaves=5)
    ports = [plan.member("nameserver").port]
    for member in plan.members:
        if member.is_node:
            ports += node_ports(member.port)
    assert len(set(ports)) == len(ports) == 19
    assert [member.broker_id for member in plan.members] == [-1, 0, 1, 2, 3, 4, 5]


def test_a_fixed_port_gives_the_usual_ones() -> None:
    port = next(port for port in range(20_000, 60_000, 100) if _all_free(port))
    plan = make_plan(slaves=1, port=port)
    assert [member.port for member in plan.members] == [port, port + 1035, port + 1045]


def _all_free(port: int) -> bool:
    needed = [port, *node_ports(port + 1035), *node_ports(port + 1045)]
    return all(is_free(one) for one in needed)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(ClusterError, match=f"(ports in use: .*{port}|no room)"):
            make_plan(slaves=0, port=port)


def test_free_ports_are_outside_the_ephemeral_range() -> None:
    end = connection_ports_begin()
    assert 1024 < end < 65_536
    for _ in range(50):
        assert all(port < end for port in node_ports(free_node_port()))


def test_ports_are_in_the_range_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "21000-21099")
    port_range = range(21_000, 21_100)
    for _ in range(50):
        assert all(port in port_range for port in node_ports(free_node_port()))
        assert free_port() in port_range
    assert all(member.port in port_range for member in make_plan(slaves=2).members)


def test_full_range_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "21000-21099")
    with pytest.raises(PortRangeError, match="among those of ROCKETBED_PORTS=21000-21099: give"):
        free_ports(0, 40)


@pytest.mark.parametrize(
    "text", ["", "21000", "21000-", "a-b", "80-1000", "21000-21098", "64950-65049", "3-1"]
)
def test_invalid_port_range_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, text)
    with pytest.raises(PortRangeError, match="such as 20000-21999"):
        free_port()


def test_free_ports_avoid_those_taken() -> None:
    port = free_node_port()
    assert free_node_port(node_ports(port)) != port
    assert free_port({port}) != port


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"slaves": -1}, "0 to 16"),
        ({"slaves": 17}, "0 to 16"),
        ({"groups": 0}, "1 to 7"),
        ({"groups": 8}, "1 to 7"),
        ({"port": 64_500}, "no room"),
    ],
)
def test_plans_that_cannot_be(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ClusterError, match=reason):
        make_plan(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("sync", [True, False])
def test_nodes_understand_their_settings(sync: bool, flush: str, tmp_path: Path) -> None:
    cluster = LocalCluster.create(
        tmp_path / "c", slaves=1, sync=sync, flush=flush, settings={"fileReservedTime": "1"}
    )  # fmt: skip
    for name in cluster.nodes:
        text = (cluster.member_directory(name) / "broker.conf").read_text()
        config, warnings = make_config(settings_from_text(text, name))
        assert warnings == []
        assert config.address == cluster.address(name)
        assert config.store.sync_flush is (flush == "sync")
        assert config.store.reserved_ms == 3_600_000
        if name == "master":
            assert config.broker_role == ("SYNC_MASTER" if sync else "ASYNC_MASTER")
            assert config.in_sync_replicas == (2 if sync else 1)
        else:
            assert (config.broker_role, config.broker_id) == ("SLAVE", 1)


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    created = LocalCluster.create(tmp_path, slaves=2, flush="sync", settings={"a": "b"})
    assert read_plan(tmp_path) == created.plan
    assert load(tmp_path).names == ["nameserver", "master", "slave-1", "slave-2"]
    with pytest.raises(ClusterError, match="already"):
        LocalCluster.create(tmp_path)
    with pytest.raises(ClusterError, match="unknown member slave-3; known: nameserver"):
        created.address("slave-3")


def test_promotion_changes_roles_and_keeps_edits(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, slaves=2)
    conf = cluster.member_directory("slave-2") / "broker.conf"
    conf.write_text(conf.read_text() + "fileReservedTime=9\n")
    plan = cluster.plan.promoted("slave-2")
    assert [(member.name, member.broker_id) for member in plan.members[1:]] == [
        ("master", 2),
        ("slave-1", 1),
        ("slave-2", 0),
    ]
    assert (plan.master().name, plan.promotions) == ("slave-2", {"broker-a": 1})
    cluster.plan = plan
    for name in cluster.nodes:
        assert changes_role(cluster, plan, name)
        change_settings(cluster.member_directory(name), plan.role_settings(plan.member(name)))
        assert not changes_role(cluster, plan, name)
        text = (cluster.member_directory(name) / "broker.conf").read_text()
        config, warnings = make_config(settings_from_text(text, name))
        assert warnings == []
        assert config.broker_id == plan.member(name).broker_id
        assert config.broker_role == ("SYNC_MASTER" if name == "slave-2" else "SLAVE")
        assert config.diverged == "cut:1"
        assert config.store.reserved_ms == (9 if name == "slave-2" else 72) * 3_600_000
    plan.save(tmp_path)
    assert load(tmp_path).plan == plan
    assert plan.promoted("master").master().name == "master"
    for name, reason in (("slave-2", "is already the master"), ("nameserver", "is a nameserver")):
        with pytest.raises(ClusterError, match=reason):
            plan.promoted(name)


@pytest.mark.parametrize("failover", [True, False])
def test_each_of_several_groups_is_a_broker_name(failover: bool, tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, slaves=2, groups=2, failover=failover)
    words = ["node-1", "node-2", "node-3"] if failover else ["master", "slave-1", "slave-2"]
    assert cluster.nodes == [f"{letter}-{word}" for letter in "ab" for word in words]
    assert cluster.plan.brokers == ["broker-a", "broker-b"]
    assert read_plan(tmp_path) == cluster.plan
    assert len({cluster.address(name) for name in cluster.names}) == 7
    for broker in cluster.plan.brokers:
        members = cluster.plan.nodes(broker)
        assert [one.broker_id for one in members] == ([1, 2, 3] if failover else [0, 1, 2])
        for member in members:
            text = (cluster.member_directory(member.name) / "broker.conf").read_text()
            config, warnings = make_config(settings_from_text(text, member.name))
            assert warnings == []
            assert config.broker_name == broker
            if failover:
                assert (config.replica, config.replicas) == (member.broker_id, 3)
            else:
                assert config.broker_id == member.broker_id


def test_a_promotion_is_its_groups_affair() -> None:
    plan = make_plan(slaves=1, groups=2)
    after = plan.promoted("b-slave-1")
    assert (after.master("broker-a").name, after.master("broker-b").name) == (
        "a-master",
        "b-slave-1",
    )
    for name in ("a-master", "a-slave-1"):
        assert after.role_settings(after.member(name)) == plan.role_settings(plan.member(name))
    assert after.role_settings(after.member("b-master")) == {
        "brokerId": "1",
        "brokerRole": "SLAVE",
        "rbDiverged": "cut:1",
    }
    assert after.promoted("b-master").promoted("a-slave-1").promotions == {
        "broker-a": 1,
        "broker-b": 2,
    }


def test_single_group_keeps_its_usual_names() -> None:
    names = [member.name for member in make_plan(slaves=2, failover=True, groups=1).members]
    assert names == ["nameserver", "node-1", "node-2", "node-3"]


def test_a_plan_of_a_former_version_is_read(tmp_path: Path) -> None:
    plan = make_plan(slaves=1).promoted("slave-1")
    plan.save(tmp_path)
    value = json.loads((tmp_path / "cluster.json").read_text())
    value["promotions"] = 1
    for member in value["members"]:
        del member["broker"]
    (tmp_path / "cluster.json").write_text(json.dumps(value))
    assert read_plan(tmp_path) == plan


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broker-b", ("broker-b", -1)),
        ("b-node-2", ("broker-b", 2)),
        ("a-node-2", ("broker-a", 2)),
    ],
)
def test_new_leader_is_named_by_node_or_group(
    name: str, expected: tuple[str, int], tmp_path: Path
) -> None:
    cluster = LocalCluster.create(tmp_path, slaves=2, groups=2, failover=True)
    assert cluster._led_by(name) == expected
    with pytest.raises(ClusterError, match="or one of its groups: broker-a, broker-b"):
        cluster._led_by(None)
    with pytest.raises(ClusterError, match="'node-2' is no node of it: a-node-1"):
        cluster._led_by("node-2")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"members": 3}', '{"members": [{"name": "x"}]}', '{"members": []}']
)
def test_a_plan_that_is_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ClusterError):
        read_plan(tmp_path)


def test_no_plan(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"cluster\.json is missing"):
        load(tmp_path / "nowhere")


# --- processes


def sleeper(directory: Path, program: str = "import time; time.sleep(600)") -> ManagedProcess:
    return ManagedProcess("sleeper", [sys.executable, "-c", program], directory)


async def test_a_process_is_started_found_again_and_ended(tmp_path: Path) -> None:
    process = sleeper(tmp_path / "p")
    assert process.pid() is None
    pid = process.start()
    try:
        assert process.pid() == pid
        assert os.getsid(pid) == pid
        same_process = sleeper(tmp_path / "p")
        assert same_process.pid() == pid
        with pytest.raises(ProcessError, match=f"already running as process {pid}"):
            same_process.start()
        assert same_process.signal(signal.SIGTERM)
        assert await process.wait_ended() == -signal.SIGTERM
    finally:
        process.signal(signal.SIGKILL)
    assert process.pid() is None
    assert not process.signal(signal.SIGTERM)
    assert not process.pid_path.exists()
    assert await process.wait_ended() == -signal.SIGTERM


async def test_observer_sees_the_end_of_a_foreign_process(tmp_path: Path) -> None:
    process = sleeper(tmp_path / "p")
    process.start()
    observer = sleeper(tmp_path / "p")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(observer.wait_ended)
            process.signal(signal.SIGKILL)
    assert await process.wait_ended() == -signal.SIGKILL


async def test_output_of_a_process_is_kept(tmp_path: Path) -> None:
    process = sleeper(tmp_path / "p", "import sys; print('out'); sys.exit('failed')")
    for _ in range(2):
        process.start()
        assert await process.wait_ended() == 1
    assert process.log_tail().split() == ["out", "failed"] * 2 or "failed" in process.log_tail()


def test_reused_pid_is_not_touched(tmp_path: Path) -> None:
    """The number in the pid file was given to another process since."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        process = sleeper(tmp_path)
        process.pid_path.write_text(f"{stranger.pid}\n1\n")
        assert process.pid() is None
        assert not process.signal(signal.SIGKILL)
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("text", ["", "x", "12", "0\n0\n", "-1\n5\n", "99999999\n1\n"])
def test_pid_files_that_mean_nothing(text: str, tmp_path: Path) -> None:
    process = sleeper(tmp_path)
    process.pid_path.write_text(text)
    assert process.pid() is None


def test_cluster_json_is_for_people_too(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path, slaves=0)
    value = json.loads((tmp_path / "cluster.json").read_text())
    assert [member["name"] for member in value["members"]] == ["nameserver", "master"]
    assert value["sync"] is False
