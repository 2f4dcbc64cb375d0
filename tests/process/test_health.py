"""`rocketbed health` as a script calls it, against real processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from rocketbed.cluster.cluster import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]
WAIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A master that waits for its one slave; its processes end with this one."""
    created = LocalCluster.create(tmp_path / "cluster", slaves=1, sync=True, tied=True)
    trio.run(created.start)
    try:
        yield created
    finally:
        trio.run(created.close)


def health(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-P", "-m", "rocketbed", "health", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def wait_for(expected: tuple[int, str], address: str) -> None:
    """Wait until the health endpoint gives the expected answer; on a timeout fail with the last
    one.
    """
    until = time.monotonic() + WAIT_S
    while (answer := health(address)) != expected:
        assert time.monotonic() < until, answer


@pytest.mark.ci
def test_each_member_is_ready_until_it_lacks_another(cluster: LocalCluster) -> None:
    master, slave = cluster.address("master"), cluster.address("slave-1")
    nameserver = cluster.nameserver_address
    for address in (nameserver, master, slave):
        wait_for((0, f"{address} is ready"), address)
    cluster.kill("slave-1")
    lacks = "1 of 2 copies in sync (inSyncReplicas)"
    wait_for((1, f"{master} is not ready: {lacks}"), master)
    assert health(slave) == (1, f"{slave} is not ready: Connection refused")
    cluster.launch("slave-1")
    wait_for((0, f"{master} is ready"), master)
    cluster.kill("nameserver")
    wait_for((1, f"{master} is not ready: registered at no nameserver: {nameserver}"), master)
    assert health("--live", master) == (0, f"{master} is live")
