"""Bad luck and bad input: what is said; nothing of ours stays, nothing else is touched."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.cli.servers import LOG_BYTES
from rocketbed.host.docker import image as images
from rocketbed.host.docker.client import LABEL, Daemon, DockerError
from rocketbed.host.janitor.record import Ledger
from rocketbed.host.ports import HOST, free_port
from tests.support.containers import ENDLESS, WAIT_S, wait_for
from tests.support.private_daemon import PrivateDaemon

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("image")]


def ours(daemon: Daemon) -> list[str]:
    rows = daemon.api.containers(all=True, filters={"label": LABEL})
    networks = daemon.api.networks(filters={"label": LABEL})
    return [row["Names"][0] for row in rows] + [row["Name"] for row in networks]


@contextmanager
def a_strangers_container(daemon: Daemon) -> Iterator[str]:
    """Somebody else's, with our image and no label of ours."""
    container = daemon.api.create_container(images.IMAGE, ["sleep", "infinity"], entrypoint=[])[
        "Id"
    ]
    daemon.api.start(container)
    try:
        yield container
        assert daemon.api.inspect_container(container)["State"]["Running"]
    finally:
        daemon.api.remove_container(container, force=True)


@contextmanager
def harness(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run that goes on until it is ended."""
    scenario = directory / "endless.toml"
    scenario.write_text(ENDLESS)
    command = [sys.executable, "-P", "-m", "rocketbed", "chaos", "run", str(scenario)]
    command += ["--backend", "docker", "--report", str(directory / "out"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.rstrip().endswith("faults"):
                    break
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("net", ["switch", "plain"])
def test_a_harness_that_is_ended_leaves_nothing(
    number: signal.Signals, net: str, daemon: Daemon, tmp_path: Path
) -> None:
    with a_strangers_container(daemon):
        with harness(tmp_path, "--net", net) as process:
            assert ours(daemon)
            process.send_signal(number)
            process.wait(WAIT_S)
        wait_for(lambda: not ours(daemon), "an empty daemon")


@pytest.mark.ci
def test_two_harnesses_at_once_do_not_meet(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with harness(tmp_path / "one") as first:
        alone = set(ours(daemon))
        with harness(tmp_path / "two") as two:
            assert alone < set(ours(daemon))
            two.send_signal(signal.SIGINT)
            two.wait(WAIT_S)
        assert set(ours(daemon)) == alone
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        first.wait(WAIT_S)
    assert not ours(daemon)


def test_container_that_dies_unexpectedly_is_a_finding(daemon: Daemon, tmp_path: Path) -> None:
    text = ENDLESS.replace("400s", "4s").replace('"at 300s kill leader"', "")
    scenario = tmp_path / "short.toml"
    scenario.write_text(text)
    command = [sys.executable, "-P", "-m", "rocketbed", "chaos", "run", str(scenario)]
    command += ["--backend", "docker", "--report", str(tmp_path / "out"), "--no-shrink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip().endswith("faults"):
                node = next(
                    name for name in ours(daemon) if "-b1-" in name and "machine" not in name
                )
                daemon.api.kill(node.removeprefix("/"))
        process.wait(WAIT_S)
    output = "".join(lines)
    assert process.returncode == 3, output
    assert "b1 ended by itself" in output
    assert not ours(daemon)


def rocketbed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "rocketbed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_a_cluster_by_one_command(daemon: Daemon, tmp_path: Path) -> None:
    port, directory = free_port(), str(tmp_path / "bed")
    options = ("--classic", "--docker", "--dir", directory, "--port", str(port))
    up = rocketbed("cluster", "up", *options)
    assert up.returncode == 0, up.stderr
    sent = rocketbed("topic", "create", "Greetings", "-n", f"{HOST}:{port}")
    assert sent.returncode == 0, sent.stderr
    log = tmp_path / "bed/master/log"
    os.truncate(log, LOG_BYTES)
    promoted = rocketbed("cluster", "promote", "slave-1", "--dir", directory)
    assert "slave-1 is now the master" in promoted.stdout, promoted.stderr
    assert log.stat().st_size < LOG_BYTES <= log.with_name("log.1").stat().st_size
    status = rocketbed("cluster", "status", "--dir", directory)
    assert status.stdout.count("serving") == 4, status.stdout
    down = rocketbed("cluster", "down", "--dir", directory)
    assert "stopped" in down.stdout, down.stderr
    assert "killed (did not stop in time)" not in down.stdout
    assert not ours(daemon)
    second_up = rocketbed("cluster", "up", "--dir", directory)
    assert second_up.returncode == 0, second_up.stderr
    assert rocketbed("cluster", "down", "--remove", "--dir", directory).returncode == 0
    assert not ours(daemon)
    assert not (tmp_path / "bed").exists()


def test_a_cluster_with_failover_by_one_command(daemon: Daemon, tmp_path: Path) -> None:
    place = ("--dir", str(tmp_path / "bed"))
    up = rocketbed("cluster", "up", "--docker", "--port", "0", *place)
    assert up.returncode == 0, up.stderr

    def group() -> dict[str, Any]:
        status = rocketbed("cluster", "status", "--json", *place)
        assert status.returncode == 0, status.stdout
        group_read: dict[str, Any] = json.loads(status.stdout)["groups"][0]
        return group_read

    first = group()
    handed = rocketbed("cluster", "handover", *place)
    assert handed.returncode == 0, handed.stderr
    second = group()
    assert second["epoch"] == first["epoch"] + 1
    assert second["leader"] != first["leader"]
    assert rocketbed("cluster", "down", "--remove", *place).returncode == 0
    assert not ours(daemon)


def test_remains_of_deleted_cluster_do_not_block_another(daemon: Daemon, tmp_path: Path) -> None:
    directory = tmp_path / "bed"
    options = ("--docker", "--slaves", "0", "--port", "0", "--dir", str(directory))
    assert rocketbed("cluster", "up", *options).returncode == 0
    remains = ours(daemon)
    assert remains
    subprocess.run(["rm", "-rf", str(directory)], check=True)
    second_up = rocketbed("cluster", "up", *options)
    assert second_up.returncode == 0, second_up.stderr
    assert len(ours(daemon)) == len(remains)
    assert rocketbed("cluster", "down", "--dir", str(directory)).returncode == 0
    assert not ours(daemon)


def test_a_port_that_is_taken_is_named(daemon: Daemon, tmp_path: Path) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        options = ("--docker", "--dir", str(tmp_path / "bed"), "--port", port)
        up = rocketbed("cluster", "up", *options)
    assert up.returncode == 1
    assert f"port {port} is in use" in up.stderr
    assert not ours(daemon)
    assert not (tmp_path / "bed").exists()


def test_an_image_that_does_not_build_says_why(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compose").mkdir()
    (tmp_path / "compose/Dockerfile").write_text(
        f"FROM {images.BASE} AS node\nRUN echo this is wrong >&2; exit 7\n"
    )
    monkeypatch.setattr(images, "ROOT", tmp_path)
    with pytest.raises(DockerError, match=r"cannot be built(.|\n)*this is wrong(.|\n)*code: 7"):
        images.build(daemon, "none")


def test_full_disk_of_the_daemon_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "source"
    (root / "compose").mkdir(parents=True)
    (root / "compose/Dockerfile").write_text("FROM scratch AS node\nCOPY big /big\n")
    (root / "big").write_bytes(os.urandom(48 << 20))
    monkeypatch.setattr(images, "ROOT", root)
    with Ledger.begin() as run:
        volume = Volume.create(tmp_path, run=run, size=40 << 20)
        try:
            with (
                PrivateDaemon(volume.path / "docker") as private,
                Daemon.connect(private.address) as small,
                pytest.raises(DockerError, match="no space left on device"),
            ):
                images.build(small, "none")
        finally:
            volume.destroy()


def test_directory_has_a_single_daemon(docker_host: str) -> None:
    directory = Path(__file__).parents[2] / ".docker"
    with (
        pytest.raises(DockerError, match=f"another program has .*{docker_host}"),
        PrivateDaemon(directory),
    ):
        pass


def test_the_doctor_says_what_there_is(docker_host: str) -> None:
    doctor = rocketbed("chaos", "doctor", "--json")
    assert '"docker"' in doctor.stdout
    assert f"at {docker_host}; {images.IMAGE} is there" in doctor.stdout


def test_interrupted_cluster_start_leaves_the_daemon_clean(daemon: Daemon, tmp_path: Path) -> None:
    directory = str(tmp_path / "bed")
    command = [sys.executable, "-P", "-m", "rocketbed", "cluster", "up", "--docker"]
    command += ["--dir", directory, "--port", "0"]
    with a_strangers_container(daemon):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_for(lambda: len(ours(daemon)) >= 3, "a network and two containers")
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130
        assert not ours(daemon)
        down = rocketbed("cluster", "down", "--remove", "--dir", directory)
        assert (down.returncode, down.stderr) == (0, ""), down.stderr
        assert not (tmp_path / "bed").exists()


def test_clusters_started_at_once_get_separate_networks(daemon: Daemon, tmp_path: Path) -> None:
    names = ("one", "two")
    command = [sys.executable, "-P", "-m", "rocketbed", "cluster", "up", "--docker"]
    command += ["--slaves", "0", "--port", "0", "--dir"]
    starting = [subprocess.Popen([*command, str(tmp_path / name)]) for name in names]
    assert [process.wait(WAIT_S) for process in starting] == [0, 0]
    assert len(ours(daemon)) == 6
    for name in names:
        assert rocketbed("cluster", "down", "--dir", str(tmp_path / name)).returncode == 0
    assert not ours(daemon)
