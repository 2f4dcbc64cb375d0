"""Three workers with a network and files of their own each, and no rocketbed but what is sent."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocketbed import __version__
from tests.support.deployed import MESSAGES
from tests.support.hosts import PREFIX, ROOT, Host, hosts
from tests.support.standalone import daemon, master, worker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NAMES = ("w1", "w2", "w3")
PORT = 7077
JOB_S = 900.0


@dataclass(frozen=True)
class Cluster:
    hub: Host
    address: str
    own: Path
    shared: Path

    def run(self, *words: str | Path, **more: str) -> "subprocess.CompletedProcess[str]":
        """A program of the driver's host."""
        command = self.hub.command(sys.executable, "-P", "-m", *words)
        return subprocess.run(
            command,
            env=environment(self.hub) | {"PYTHONPATH": str(ROOT)} | more,
            cwd=self.own,
            capture_output=True,
            text=True,
            timeout=JOB_S,
            check=False,
        )


def environment(host: Host) -> dict[str, str]:
    path = f"{PREFIX}/bin:{os.environ['PATH']}"
    own = {"SPARK_LOCAL_IP": host.address, "SPARK_DAEMON_MEMORY": "256m", "PATH": path}
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | own


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    with ExitStack() as stack:
        hub, workers = stack.enter_context(hosts(NAMES, tmp_path, shared=shared))
        address = f"spark://{hub.address}:{PORT}"

        def start(host: Host, sign: str, command: list[str], **more: str) -> None:
            log = tmp_path / f"{host.name}.log"
            stack.enter_context(daemon(log, sign, host.command(*command), environment(host) | more))

        start(hub, "I have been elected leader", master(hub.address, PORT))
        for host in workers:
            command = worker(host.address, address, cores=1, memory="1g")
            places = {"SPARK_WORKER_DIR": "/tmp/work", "SPARK_LOCAL_DIRS": "/tmp/local"}
            start(host, "Successfully registered with master", command, **places)
        yield Cluster(hub, address, own, shared)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive as docs/guides/spark.md makes one."""
    pip = (sys.executable, "-m", "pip", "-q")
    site = tmp_path / "site"
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("rocketbed-*.whl")
    packages = ("--constraint", ROOT / "requirements.lock", f"{wheel}[chaos]")
    subprocess.run([*pip, "install", "--target", site, *packages], check=True)
    packed = tmp_path / "own" / "rocketbed.tar.gz"
    subprocess.run(["tar", "-C", site, "-czf", packed, "."], check=True)
    return packed


def options(cluster: Cluster) -> Iterator[str | Path]:
    yield from ("--master", cluster.address)
    for name in ("host", "bindAddress"):
        yield f"--conf=spark.driver.{name}={cluster.hub.address}"


@pytest.mark.ci
def test_cluster_without_rocketbed_or_a_shared_folder(cluster: Cluster, archive: Path) -> None:
    campaign = ("rocketbed", "pipeline", "campaign", "sync-failover", "--seeds", "1")
    done = cluster.run(
        *campaign,
        "--out",
        cluster.own / "none",
        *options(cluster),
        PYSPARK_PYTHON=f"python3.{sys.version_info[1]}",
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "has no module rocketbed: install it on all machines, or give --archive" in done.stderr

    place = (archive, cluster.own, cluster.shared)
    done = cluster.run("tests.support.deployed", cluster.address, cluster.hub.address, *place)
    assert done.returncode == 0, done.stdout + done.stderr
    results: Mapping[str, Any] = dict(map(json.loads, done.stdout.splitlines()))
    local = "on w1, w2, w3 is not the directory of this machine: give one that all machines share"
    assert results["reads"] == MESSAGES
    for job in ("exports", "streams"):
        assert local in results[job]["own"]
        assert (results[job]["shared"], results[job]["rows"]) == ("", MESSAGES)
    assert "no nameserver answered: cannot connect to 127.0.0.1" in results["cannot_reach"]
    assert results["cannot_reach"].endswith(tuple(f" (on {name})" for name in NAMES))
    squares = [number * number for number in range(6)]
    assert results["loses_an_executor"] == {"error": "", "answers": squares, "repeated": True}
    assert f"has rocketbed {__version__} (" in results["meets_another_build"]
    assert "the driver 0.0.9: install the same there, or give" in results["meets_another_build"]
    seeds = results["campaigns"]
    assert (seeds["error"], seeds["replays"], seeds["hosts"]) == ("", 3, list(NAMES))
    assert seeds["counts"] == {"runs": 4, "seeds": 3, "stalled": 3, "run twice": 1}
    assert all(row["cpu_s"] > 0 and row["wall_s"] > 0 for row in seeds["rows"])
