"""Runs small suites of tests with the plugin, as a user would: pytest in a process of its own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT_S: Final = 180
HEAD: Final = "import pytest\nimport trio\n"
SERVERS: Final = ("CI", "BUILD_NUMBER")
"""Where one is set, pytest's summary repeats whole messages."""
EXAMPLE = """
pytestmark = pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync", seeds=20)

async def test_orders_survive_failover(cluster, chaos):
    p, c = await cluster.producer("orders"), await cluster.consumer("orders", group="billing")
    await p.send_all(range(100))
    async with chaos.during(chaos.kill("leader")):         # heals on exit
        await p.send_all(range(100, 200), retry=True)
    await cluster.settled()                                # predicate wait, not sleep
    assert await c.read_all() >= set(range(200))
    chaos.check()                                          # all default checkers
"""
"""The first test of docs/guides/plugin.md, as a user writes it."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A session of pytest that has ended."""

    code: int
    text: str

    def counts(self) -> dict[str, int]:
        """`{"passed": 2, "failed": 1}`, from the last line."""
        counted = re.findall(r"(\d+) (passed|failed|skipped|xfailed|error|deselected)", self.text)
        return {word: int(number) for number, word in counted}


def run_suite(place: Path, *options: str, **files: str) -> Ran:
    """Write `test_NAME.py` files (dots in names by `__`) and run pytest there."""
    for name, text in files.items():
        path = place / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name.endswith("conftest") else HEAD + text, encoding="utf-8")
    return run_pytest(place, *options)


def run_pytest(place: Path, *options: str) -> Ran:
    """pytest with nothing of this project's own settings."""
    if not (place / "pytest.ini").exists() and not (place / "pyproject.toml").exists():
        (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        command(*options),
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout)


def command(*options: str) -> list[str]:
    """Command of pytest, as `python -m pytest` outside any directory of ours."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *options]


def environment() -> dict[str, str]:
    """Without what changes the output of pytest; our commands are found."""
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("PYTEST_") and key not in SERVERS
    }
    return own | {"PATH": f"{Path(sys.executable).parent}:{own.get('PATH', os.defpath)}"}
