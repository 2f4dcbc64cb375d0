"""The compose files as a new user has them: up, send and pull from this system, verify, down."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketbed.blocking import Admin, Consumer
from rocketbed.host.docker.client import Daemon
from rocketbed.host.ports import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
UP_S = 120.0
JOB_S = 600.0
MESSAGES = 500


class Project:
    """A compose project of the tests' own."""

    def __init__(self, base: str, name: str) -> None:
        self.name = name
        self.port = free_port()
        self._environment = {
            **os.environ,
            "BASE": base,
            "COMPOSE_PROJECT_NAME": name,
            "NAMESERVER_PORT": str(self.port),
            "SPARK_UI_PORT": str(free_port({self.port})),
            "SUBNET": "10.99.255",
            "SEGMENT_BYTES": str(1 << 20),
        }

    def run(self, file: str, *arguments: str, **environment: str) -> str:
        """A command of docker-compose; what it printed."""
        assert shutil.which("docker-compose"), "apt-get install docker-compose"
        done = subprocess.run(
            ["docker-compose", "-f", str(ROOT / "compose" / file), *arguments],
            env={**self._environment, **environment},
            capture_output=True,
            text=True,
            timeout=JOB_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def down(self) -> None:
        """Take it down as a user does, data too."""
        for file in ("spark.yaml", "classic.yaml", "failover.yaml"):
            self.run(file, "down", "--volumes", "--remove-orphans")

    def container(self, service: str) -> str:
        return f"{self.name}_{service}_1"


@pytest.fixture(scope="module")
def project(base_image: str, docker_host: str) -> Iterator[Project]:
    started = Project(base_image, "rocketbedtest")
    yield started
    started.down()


def rocketbed(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rocketbed", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def state(daemon: Daemon, container: str) -> dict[str, Any]:
    state_read: dict[str, Any] = daemon.api.inspect_container(container)["State"]
    return state_read


def wait_health(daemon: Daemon, container: str, expected: str) -> None:
    until = time.monotonic() + UP_S
    while state(daemon, container)["Health"]["Status"] != expected:
        assert time.monotonic() < until, state(daemon, container)["Health"]
        time.sleep(0.1)


SERVICES = ("nameserver-1", "nameserver-2", "master", "slave-1", "slave-2")


@pytest.mark.ci
def test_a_cluster_is_used_from_this_system(project: Project, daemon: Daemon) -> None:
    project.run("classic.yaml", "up", "-d", "--build")
    for service in SERVICES:
        wait_health(daemon, project.container(service), "healthy")
        config = daemon.api.inspect_container(project.container(service))
        assert config["Config"]["User"] == "rocketbed"
        limits = config["HostConfig"]
        assert min(limits[name] for name in ("Memory", "NanoCpus", "PidsLimit")) > 0
        assert limits["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "5"}
    assert "send.body which=native" in project.run("classic.yaml", "logs", "master")
    nameserver = f"127.0.0.1:{project.port}"
    rocketbed("send", "-t", "Greetings", "--lines", "-n", nameserver, text="hello\n" * MESSAGES)
    assert "hello" in rocketbed("pull", "-t", "Greetings", "--from", "first", "-n", nameserver)
    assert "Greetings" in project.run("classic.yaml", "run", "--rm", "client", "topic", "list")


def health(daemon: Daemon, container: str, *words: str) -> tuple[int, str]:
    """Return code and output of `rocketbed health` in a container."""
    created = daemon.api.exec_create(container, ["rocketbed", "health", *words])
    output = daemon.api.exec_start(created["Id"]).decode().strip()
    return daemon.api.exec_inspect(created["Id"])["ExitCode"], output


@pytest.mark.ci
def test_master_without_slaves_is_not_ready(project: Project, daemon: Daemon) -> None:
    master, address = project.container("master"), "127.0.0.1:10911"
    lacks = f"{address} is not ready: 1 of 2 copies in sync (inSyncReplicas)"
    project.run("classic.yaml", "stop", "slave-1", "slave-2")
    assert health(daemon, master, address) == (1, lacks)
    assert health(daemon, master, "--live", address) == (0, f"{address} is live")
    project.run("classic.yaml", "start", "slave-1", "slave-2")
    for service in ("slave-1", "slave-2"):
        wait_health(daemon, project.container(service), "healthy")
    assert health(daemon, master, address) == (0, f"{address} is ready")


def test_spark_verifies_the_volumes_of_a_running_cluster(project: Project, daemon: Daemon) -> None:
    project.run("spark.yaml", "up", "-d", "--build", "spark-master", "spark-worker")
    mounts = daemon.api.inspect_container(project.container("spark-worker"))["Mounts"]
    assert all(not mount["RW"] for mount in mounts if mount["Destination"].startswith("/stores"))
    report = project.run("spark.yaml", "run", "--rm", "verify")
    assert report.startswith("GOOD  verify"), report
    assert f"records: {MESSAGES}" in report


def test_a_stop_is_clean(project: Project, daemon: Daemon) -> None:
    project.run("classic.yaml", "stop")
    for service in SERVICES:
        ended = state(daemon, project.container(service))
        assert (ended["Running"], ended["ExitCode"], ended["OOMKilled"]) == (False, 0, False)
    for service in ("master", "slave-1", "slave-2"):
        volume = daemon.api.inspect_volume(f"{project.name}_{service}")
        store = Path(volume["Mountpoint"]) / "store"
        assert (store / "commitlog").is_dir()
        assert not (store / "abort").exists()


def test_the_testbed_runs_in_a_container(project: Project, tmp_path: Path) -> None:
    project.run("chaos.yaml", "build", REPORT=str(tmp_path))
    arguments = ("chaos", "run", "power-lone", "--backend", "process", "--quick", "--json")
    output = project.run(
        "chaos.yaml",
        "run",
        "--rm",
        "chaos",
        *arguments,
        "--seed",
        "1",
        "--report",
        "/report",
        REPORT=str(tmp_path),
    )
    row = json.loads(output[output.index("{") :])
    assert (row["verdict"], row["exit_code"]) == ("pass", 0)
    assert (tmp_path / "power-lone-1-process" / "index.html").exists()


def test_a_group_fails_over_in_containers(project: Project, daemon: Daemon) -> None:
    project.down()
    project.run("failover.yaml", "up", "-d", "--build")
    nodes = ("node-1", "node-2", "node-3")
    for service in nodes:
        wait_health(daemon, project.container(service), "healthy")
    nameserver = f"127.0.0.1:{project.port}"
    half = "hello\n" * (MESSAGES // 2)
    rocketbed("send", "-t", "Greetings", "--lines", "-n", nameserver, text=half)
    with Admin(nameservers=nameserver) as admin:
        entry = admin.failover_groups()["broker-a"]["entry"]
        leader = f"node-{entry['leader']}"
        project.run("failover.yaml", "kill", leader)
        rocketbed("send", "-t", "Greetings", "--lines", "-n", nameserver, text=half)
        project.run("failover.yaml", "start", leader)
        wait_health(daemon, project.container(leader), "healthy")
        after = admin.failover_groups()["broker-a"]["entry"]
    assert after["epoch"] == entry["epoch"] + 1
    assert f"node-{after['leader']}" != leader
    with Consumer(nameservers=nameserver, group="readers") as consumer:
        consumer.subscribe("Greetings", start="first")
        count = 0
        while messages := consumer.poll(timeout_s=5):
            count += len(messages)
    assert count == 2 * (MESSAGES // 2)


def test_nothing_is_left_after_a_down_with_volumes(project: Project, daemon: Daemon) -> None:
    """Neither containers that were recreated nor the client's commands leave anything."""
    project.down()
    before = names_of_volumes(daemon)
    project.run("classic.yaml", "up", "-d")
    project.run("classic.yaml", "up", "-d", "--force-recreate", "nameserver-1", "master")
    project.run("classic.yaml", "run", "client", "send", "--help")
    assert names_of_volumes(daemon) - before == {
        f"{project.name}_{node}" for node in ("master", "slave-1", "slave-2")
    }
    project.down()
    assert names_of_volumes(daemon) == before
    label = {"label": f"com.docker.compose.project={project.name}"}
    assert daemon.api.containers(all=True, filters=label) == []
    assert daemon.api.networks(filters=label) == []


def names_of_volumes(daemon: Daemon) -> set[str]:
    return {row["Name"] for row in daemon.api.volumes()["Volumes"] or []}
