"""Control groups at work: slow disk, little memory, little CPU."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.limits import THROTTLE, DiskLimit, MemoryLimit
from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.chaos.backends.process.machine.limits import CpuLimit
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

pytestmark = pytest.mark.slow

EATER = "import sys; sys.stdin.readline(); held = b'x' * (256 << 20); print(len(held))\n"
SPINNER = (
    "import sys, time; sys.stdin.readline(); b = time.monotonic(); c = time.process_time()\n"
    "while time.process_time() - c < 0.05: pass\n"
    "print(time.monotonic() - b)\n"
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        yield run


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


@pytest.mark.ci
def test_a_process_above_its_memory_is_killed(run: Ledger) -> None:
    with child(EATER) as process, MemoryLimit("b1", run=run, limit=64 << 20) as memory:
        memory.add(process.pid)
        ask(process)
        assert process.wait(30) == -signal.SIGKILL


def test_tenth_of_a_cpu_takes_ten_times_as_long(run: Ledger) -> None:
    with child(SPINNER) as process, CpuLimit("b1", run=run, share=0.1) as cpu:
        cpu.add(process.pid)
        ask(process)
        assert process.stdout is not None
        assert float(process.stdout.readline()) > 0.2
        cpu.limit(None)
        with pytest.raises(HostError, match="must be positive"):
            cpu.limit(0.0)


def test_slow_disk_takes_the_time_of_its_rate(run: Ledger) -> None:
    volume = Volume.create(run.directory / "b1", run=run, size=32 << 20)

    def seconds() -> float:
        with (volume.path / "a").open("wb") as file:
            file.write(os.urandom(512 << 10))
            file.flush()
            began = time.monotonic()
            os.fsync(file.fileno())
            return time.monotonic() - began

    with DiskLimit(volume, run=run, write_bytes_per_s=1 << 20) as limit:
        assert limit.device in THROTTLE.read_text()
        assert seconds() > 0.25
    assert limit.device not in THROTTLE.read_text()
    assert any(seconds() < 0.25 for _ in range(400))
    volume.destroy()


def test_end_of_a_run_removes_limits_and_groups(tmp_path: Path) -> None:
    with child(EATER) as process:
        with Ledger.begin(tmp_path / "runs", guard=False) as run:
            volume = Volume.create(run.directory / "b1", run=run, size=16 << 20)
            limit = DiskLimit(volume, run=run, write_bytes_per_s=1 << 20)
            cpu = CpuLimit("b1", run=run, share=0.5)
            cpu.add(process.pid)
        assert process.wait(10) == -signal.SIGKILL
    assert limit.device not in THROTTLE.read_text()
    assert not cpu.path.exists()
    assert not run.directory.exists()
    volume.destroy()
