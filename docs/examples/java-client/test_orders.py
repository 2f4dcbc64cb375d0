"""The Java program's own tests, while its master dies under it."""

import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync")


def test_no_acknowledged_order_is_lost_when_the_master_dies(cluster, chaos, tmp_path):
    cluster.create_topic("orders")
    marker = tmp_path / "a-third-is-sent"
    namesrv, target = cluster.nameserver_address, tmp_path / "target"
    maven = subprocess.Popen(
        ["mvn", "-q", "-B", "test", f"-Dnamesrv={namesrv}", f"-Dmarker={marker}",
         f"-DbuildDirectory={target}"],
        cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        while not marker.exists() and maven.poll() is None:
            time.sleep(0.05)
        with chaos.during(chaos.kill("leader")):
            text, _ = maven.communicate()
    finally:
        maven.kill()
    assert maven.returncode == 0, text
    cluster.settled()
