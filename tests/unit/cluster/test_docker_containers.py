"""Containers and networks at the wrong moment: ended, paused, named or numbered by others."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.cli.main import main
from rocketbed.cluster.docker import cluster as clusters
from rocketbed.cluster.docker import member as members
from rocketbed.cluster.docker.cluster import DockerCluster, name_of
from rocketbed.cluster.docker.member import ContainerMember
from rocketbed.cluster.lifecycle import load
from rocketbed.cluster.plan import (
    FILE,
    ClusterError,
    ClusterMember,
    ClusterPlan,
    make_plan,
    read_plan,
)
from rocketbed.host.docker.client import LABEL, Daemon, DockerError
from rocketbed.host.docker.container import Container, Spec
from rocketbed.host.docker.network import has_network, make_network
from rocketbed.host.docker.owner import MEMORY
from rocketbed.host.janitor.record import Ledger
from tests.support.docker_api import FakeApi, daemon_of, free_ranges, refused


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        yield run


@pytest.fixture
def container(api: FakeApi, keeper: Ledger, tmp_path: Path) -> Container:
    spec = Spec(image="image", command=["node"], network="none", directory=tmp_path)
    return Container(daemon_of(api), keeper, "b1", spec)


# --- a container of a run


async def test_a_container_is_paused_once_and_resumed_once(
    api: FakeApi, container: Container
) -> None:
    await container.launch()
    api.requests.clear()
    for number in (signal.SIGSTOP, signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT):
        assert await container.send(number)
    assert [what for what in api.requests if what != "inspect"] == ["pause", "unpause"]


@pytest.mark.parametrize(
    ("number", "call_name"),
    [(signal.SIGSTOP, "pause"), (signal.SIGCONT, "unpause"), (signal.SIGKILL, "kill")],
)
async def test_signal_to_an_ended_container_reports_not_running(
    number: signal.Signals, call_name: str, api: FakeApi, container: Container
) -> None:
    await container.launch()
    if number == signal.SIGCONT:
        await container.send(signal.SIGSTOP)
    api.before[call_name] = api.end
    assert await container.send(number) is False
    assert await container.wait_ended() == -signal.SIGKILL
    assert await container.send(number) is False
    assert not api.rows


async def test_signal_refused_by_the_daemon_is_an_error(api: FakeApi, container: Container) -> None:
    await container.launch()

    def refuse(name: str) -> None:
        raise refused("no")

    api.before["pause"] = refuse
    with pytest.raises(DockerError, match="b1: SIGSTOP: no"):
        await container.send(signal.SIGSTOP)


async def test_container_is_ended_without_its_daemon(api: FakeApi, container: Container) -> None:
    await container.launch()

    def fail(name: str) -> None:
        raise ConnectionRefusedError("no listener")

    api.before["kill"] = fail
    with pytest.raises(DockerError, match="b1: SIGKILL: the Docker daemon does not answer"):
        await container.send(signal.SIGKILL)
    (row,) = api.rows.values()
    assert row["process"].wait() == -signal.SIGKILL
    assert container.pid() is None


async def test_limit_for_an_ended_container_does_nothing(
    api: FakeApi, container: Container
) -> None:
    await container.launch()
    api.before["update"] = api.end
    await container.limit_cpu(0.5)
    assert container.pid() is None


async def test_program_ended_before_inspection_has_a_code_and_no_pid(
    api: FakeApi, container: Container
) -> None:
    api.is_born_dead = True
    assert await container.launch() == 0
    assert container.pid() is None
    assert await container.wait_ended() == -signal.SIGKILL
    assert not api.rows


@pytest.mark.parametrize("call_name", ["start", "inspect"])
async def test_container_that_fails_to_start_is_removed(
    call_name: str, api: FakeApi, container: Container
) -> None:
    def refuse(name: str) -> None:
        raise refused("no such runtime")

    api.before[call_name] = refuse
    with pytest.raises(DockerError, match="b1 does not start: no such runtime"):
        await container.launch()
    assert not api.rows


# --- networks


def test_range_taken_between_two_steps_is_left_alone(api: FakeApi) -> None:
    def take(name: str) -> None:
        api.networks_made.setdefault("theirs", free_ranges()[0])

    api.before["network on"] = take
    subnet = make_network(daemon_of(api), "ours", "run")
    assert subnet == free_ranges()[1]
    assert api.networks_made == {"theirs": free_ranges()[0], "ours": free_ranges()[1]}


def test_another_refusal_is_not_tried_again(api: FakeApi) -> None:
    def refuse(name: str) -> None:
        raise refused("no bridge for you", 500)

    api.before["network on"] = refuse
    with pytest.raises(DockerError, match="no bridge for you"):
        make_network(daemon_of(api), "ours", "run")
    assert not api.networks_made


def test_networks_with_longer_names_are_others(api: FakeApi) -> None:
    api.networks_made["ours-too"] = "10.77.0.0/24"
    assert not has_network(daemon_of(api), "ours")
    make_network(daemon_of(api), "ours", "run")
    assert has_network(daemon_of(api), "ours")
    make_network(daemon_of(api), "ours", "run")  # one that was left goes
    assert api.networks_made["ours-too"] == "10.77.0.0/24"


# --- a member of a cluster that stays


@pytest.fixture
def member(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerMember:
    monkeypatch.setattr(members, "ready_image", lambda daemon: "image")
    monkeypatch.setattr(members, "give", lambda directory: None)
    slave = ClusterMember(name="slave-1", port=1, broker_id=1)
    return ContainerMember(daemon_of(api), "bed", slave, ["node"], tmp_path / "slave-1", {})


@pytest.mark.parametrize(
    ("number", "call_name"), [(signal.SIGSTOP, "pause"), (signal.SIGTERM, "kill")]
)
async def test_a_member_that_ends_meanwhile_does_not_run(
    number: signal.Signals, call_name: str, api: FakeApi, member: ContainerMember
) -> None:
    assert member.start() == member.pid()
    api.before[call_name] = api.end
    assert member.signal(number) is False
    assert await member.wait_ended() == -signal.SIGKILL


async def test_a_member_that_somebody_removes_has_ended(
    api: FakeApi, member: ContainerMember
) -> None:
    member.start()
    api.before["wait"] = lambda name: api.rows.pop(name)["process"].kill()
    api.end("bed-slave-1")
    assert await member.wait_ended() is None


def test_member_leaves_a_name_just_taken_alone(api: FakeApi, member: ContainerMember) -> None:
    def take(name: str) -> None:
        del api.before["create"]
        api.create_container("image", name=name, labels={LABEL: "bed"})

    api.before["create"] = take
    with pytest.raises(DockerError, match=r"slave-1 does not start: .* in use"):
        member.start()
    assert list(api.rows) == ["bed-slave-1"]


def test_a_member_has_limits(api: FakeApi, member: ContainerMember) -> None:
    member.start()
    host_config = api.rows["bed-slave-1"]["HostConfig"]
    assert (host_config["mem_limit"], host_config["pids_limit"]) == (MEMORY, members.PIDS)
    (limit,) = host_config["ulimits"]
    assert (limit.name, limit.soft, limit.hard) == ("nofile", members.NOFILE, members.NOFILE)


# --- a cluster


@pytest.fixture
def docker(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The daemon of clusters."""
    monkeypatch.setattr(Daemon, "connect", classmethod(lambda cls, address=None: daemon_of(api)))
    monkeypatch.setattr(api, "close", lambda: None)
    monkeypatch.setattr(clusters, "ready_image", lambda daemon: "image")
    return api


def test_new_cluster_has_a_network_and_its_daemon_in_the_plan(
    docker: FakeApi, tmp_path: Path
) -> None:
    cluster = DockerCluster.create_in_docker(tmp_path / "bed", slaves=1)
    assert list(docker.networks_made) == [name_of(tmp_path / "bed")]
    plan = read_plan(tmp_path / "bed")
    assert plan == cluster.plan
    assert (plan.daemon, plan.subnet) == ("unix:///nowhere/socket", free_ranges()[0])


def test_several_groups_have_an_address_for_each_member(docker: FakeApi, tmp_path: Path) -> None:
    cluster = DockerCluster.create_in_docker(tmp_path / "bed", slaves=2, groups=2, failover=True)
    assert cluster.nodes == [f"{letter}-node-{number}" for letter in "ab" for number in (1, 2, 3)]
    assert len({cluster.address(name).partition(":")[0] for name in cluster.names}) == 7
    assert read_plan(tmp_path / "bed") == cluster.plan


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_unwritten_cluster_leaves_nothing(
    error: type[BaseException], docker: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cluster: DockerCluster) -> None:
        raise error("now")

    monkeypatch.setattr(ClusterPlan, "save", lambda plan, directory: fail(plan))
    with pytest.raises((error, ClusterError)):
        DockerCluster.create_in_docker(tmp_path / "bed", slaves=1)
    assert not docker.networks_made
    assert not (tmp_path / "bed").exists()


def test_other_files_in_the_directory_stay(
    docker: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "master" / "store"
    own.mkdir(parents=True)

    def fail(plan: object, directory: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(ClusterPlan, "save", fail)
    with pytest.raises(ClusterError, match="no space"):
        DockerCluster.create_in_docker(tmp_path, slaves=0)
    assert own.is_dir()
    assert not (tmp_path / FILE).exists()
    assert not (tmp_path / "master/broker.conf").exists()


def test_directory_behind_a_link_is_the_same_cluster(docker: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "bed")
    DockerCluster.create_in_docker(tmp_path / "bed", slaves=0)
    loaded = load(tmp_path / "link")
    assert loaded.directory == tmp_path / "bed"
    assert name_of(tmp_path / "link") == name_of(tmp_path / "bed")


def test_cluster_with_taken_addresses_gets_others(docker: FakeApi, tmp_path: Path) -> None:
    cluster = DockerCluster.create_in_docker(tmp_path / "bed", slaves=1)
    path = tmp_path / "bed/master/broker.conf"
    path.write_text(path.read_text() + "byHand=yes\n")
    docker.networks_made = {"theirs": cluster.plan.subnet}
    cluster.prepare()
    assert cluster.plan.subnet == free_ranges()[1]
    assert read_plan(tmp_path / "bed") == cluster.plan
    address = cluster.address("master").partition(":")[0]
    assert address.startswith(free_ranges()[1].removesuffix("0/24"))
    lines = path.read_text().splitlines()
    assert {f"brokerIP1={address}", f"bindAddress={address}", "byHand=yes"} <= set(lines)
    assert f"namesrvAddr={cluster.nameserver_address}" in lines


async def test_last_member_given_up_removes_the_network(
    docker: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ready_image", lambda daemon: "image")
    monkeypatch.setattr(members, "give", lambda directory: None)
    cluster = DockerCluster.create_in_docker(tmp_path / "bed", slaves=1)
    for name in cluster.names:
        cluster.launch(name)
    await cluster.give_up(["slave-1"])
    assert [name for name in cluster.names if cluster.pid(name)] == ["nameserver", "master"]
    assert docker.networks_made
    await cluster.give_up(cluster.names)
    assert not docker.rows
    assert not docker.networks_made
    assert read_plan(tmp_path / "bed") == cluster.plan


def test_directory_of_a_process_cluster_gets_no_containers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_plan(slaves=0).save(tmp_path)
    before = (tmp_path / FILE).read_text()
    assert main(["cluster", "up", "--docker", "--dir", str(tmp_path)]) == 1
    assert "runs as processes: choose another --dir" in capsys.readouterr().err
    assert (tmp_path / FILE).read_text() == before


def test_cluster_without_its_daemon_reports_it(tmp_path: Path) -> None:
    plan = ClusterPlan(members=(ClusterMember(name="nameserver", port=1),), subnet="10.5.0.0/24")
    replace(plan, daemon=f"unix://{tmp_path}/socket").save(tmp_path)
    with pytest.raises(DockerError, match=f"no Docker daemon runs at {tmp_path}/socket.*delete"):
        load(tmp_path)
