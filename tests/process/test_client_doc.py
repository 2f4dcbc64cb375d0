"""The programs of README.md and docs/guides/client.md run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbed.cluster.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/client.md"


def programs() -> dict[str, str]:
    """Name -> text of each program of the page."""
    findall = re.findall(r"```python\n# (\w+\.py) NAMESERVERS\n(.*?)```", PAGE.read_text(), re.S)
    return dict(findall)


def run(program: str, nameservers: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, nameservers],
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
    page = programs()
    assert list(page) == ["send.py", "read.py", "listen.py", "aio.py", "admin.py"]
    async with LocalCluster.create(
        tmp_path / "cluster", slaves=0, sync=False, tied=True
    ) as cluster:
        await cluster.start()
        servers = cluster.nameserver_address
        assert "stored at" in run(page["send.py"], servers)
        assert "coffee one coffee" in run(page["read.py"], servers)
        lines = run(page["listen.py"], servers).splitlines()
        assert "handled one coffee times before: 0" in lines
        assert len(lines) == len(set(lines)) == 7
        assert run(page["aio.py"], servers) == "brought the bill, please\n"
        output = run(page["admin.py"], servers)
        assert output.startswith("['Orders']\n")
        assert [line.split(" ", 1)[1] for line in output.splitlines()[1:]] == [
            "one coffee",
            "ordered",
            "paid",
            "served",
        ]


@pytest.mark.process
async def test_the_readmes_example(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    async with LocalCluster.create(
        tmp_path / "cluster", slaves=0, sync=False, tied=True
    ) as cluster:
        await cluster.start()
        servers = cluster.nameserver_address
        assert run(program.replace("127.0.0.1:9876", servers), servers) == "[b'hello']\n"
