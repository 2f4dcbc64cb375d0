"""The programs of docs/guides/client.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbed.cluster.cluster import LocalCluster

PAGE = Path(__file__).parents[2] / "docs/guides/client.md"


def programs() -> dict[str, str]:
    """Name -> text of each program of the page."""
    found = re.findall(r"```python\n# (\w+\.py) NAMESERVERS\n(.*?)```", PAGE.read_text(), re.S)
    return dict(found)


def run(name: str, nameservers: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", programs()[name], nameservers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.process
async def test_the_pages_programs(tmp_path: Path) -> None:
    assert list(programs()) == ["send.py", "read.py", "listen.py", "aio.py", "admin.py"]
    async with LocalCluster.create(
        tmp_path / "cluster", slaves=0, sync=False, tied=True
    ) as cluster:
        await cluster.start()
        servers = cluster.nameserver_address
        assert "stored at" in run("send.py", servers)
        assert "coffee one coffee" in run("read.py", servers)
        heard = run("listen.py", servers).splitlines()
        assert "handled one coffee times before: 0" in heard
        assert len(heard) == len(set(heard)) == 7
        assert run("aio.py", servers) == "brought the bill, please\n"
        found = run("admin.py", servers)
        assert found.startswith("['Orders']\n")
        assert [line.split(" ", 1)[1] for line in found.splitlines()[1:]] == [
            "one coffee",
            "ordered",
            "paid",
            "served",
        ]
