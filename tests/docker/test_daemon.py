"""A daemon that dies: what a run says, and that nothing of its containers goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketbed.host.docker.client import LABEL, Daemon
from rocketbed.host.docker.image import IMAGE, ready_image
from rocketbed.host.loop_device import mounts_at_or_below
from tests.support.containers import ENDLESS, WAIT_S, wait_for
from tests.support.docker_daemon import ROOT

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "tests/support/private_daemon.py"


@contextmanager
def private_daemon(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`private_daemon.py DIRECTORY` as a program, and its address."""
    command = [sys.executable, "-P", str(PROGRAM), str(directory)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip().removeprefix("export DOCKER_HOST=")
        finally:
            process.terminate()
            process.wait(WAIT_S)


def programs(address: str) -> list[int]:
    """Pids of what runs in containers."""
    with Daemon.connect(address) as daemon:
        rows = daemon.api.containers()
        return [int(daemon.api.inspect_container(row["Id"])["State"]["Pid"]) for row in rows]


def is_over(pid: int) -> bool:
    """True if a process has ended, waited for or not."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.fixture(scope="module")
def directory(docker_host: str, image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a daemon that has the image too."""
    created = tmp_path_factory.mktemp("daemon") / "docker"
    with Daemon.connect(docker_host) as built:
        ready_image(built)  # the name may be that of an image of docker-compose's by now
    with private_daemon(created) as (_, address):
        save = ["docker", "--host", docker_host, "save", IMAGE]
        with subprocess.Popen(save, stdout=subprocess.PIPE) as saving:
            load = ["docker", "--host", address, "load", "--quiet"]
            subprocess.run(load, stdin=saving.stdout, check=True, capture_output=True)
    return created


@pytest.mark.ci
def test_dead_daemon_ends_the_run_with_one_sentence(directory: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "endless.toml"
    scenario.write_text(ENDLESS.replace("at 300s", "at 2s"))
    command = [sys.executable, "-P", "-m", "rocketbed", "chaos", "run", str(scenario)]
    command += ["--backend", "docker", "--report", str(tmp_path / "out"), "--no-shrink"]
    with private_daemon(directory) as (serving, address):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "DOCKER_HOST": address}
        ) as run:
            assert run.stdout is not None
            lines = []
            for line in run.stdout:
                lines.append(line)
                if line.rstrip().endswith("faults"):
                    break
            pids = programs(address)
            assert len(pids) == 4, lines  # a node, a nameserver, and the machines of both
            pid = Path(address.removeprefix("unix://")).with_name("pid").read_text()
            os.kill(int(pid), signal.SIGKILL)
            output = run.stdout.read()
        assert run.returncode == 4
        assert "the Docker daemon does not answer" in output
        assert "Traceback" not in output
        assert serving.wait(WAIT_S) == 1
        assert serving.stderr is not None
        assert "dockerd exited with code -9" in serving.stderr.read()
    assert all(map(is_over, pids))
    assert not [*mounts_at_or_below(directory)]


@pytest.mark.ci
def test_killed_daemon_takes_its_containers_along(directory: Path) -> None:
    """Those that it left as rows of its own are gone once it serves again."""
    with private_daemon(directory) as (serving, address):
        with Daemon.connect(address) as daemon:
            labels = {LABEL: "of-a-killed-run"}
            for own in (labels, {}):
                container = daemon.api.create_container(
                    IMAGE, ["sleep", "infinity"], entrypoint=[], labels=own
                )
                daemon.api.start(container["Id"])
        pids = programs(address)
        assert len(pids) == 2
        serving.kill()
        wait_for(lambda: all(map(is_over, pids)), "the end of the containers")
        state = Path(address.removeprefix("unix://")).parent
        wait_for(lambda: not state.exists(), "the end of the reaper's work")
    assert not [*mounts_at_or_below(directory)]
    with private_daemon(directory) as (_, address), Daemon.connect(address) as daemon:
        (row,) = daemon.api.containers(all=True)
        assert LABEL not in row["Labels"]
