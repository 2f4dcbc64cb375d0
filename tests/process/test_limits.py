"""Control groups at work: slow disk, little memory, little CPU, frozen processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketbed.chaos.host.janitor.cleaners import members
from rocketbed.chaos.host.janitor.record import Ledger
from rocketbed.chaos.process.disk.volume import Volume
from rocketbed.chaos.process.machine.limits import (
    BLKIO,
    CpuLimit,
    DiskLimit,
    Freezer,
    LimitError,
    MemoryLimit,
)

pytestmark = pytest.mark.slow

COUNTER = "import sys\nwhile sys.stdin.readline():\n    sys.stdout.write('.'); sys.stdout.flush()\n"
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


def answers(process: subprocess.Popen[bytes], seconds: float) -> bool:
    import select

    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return bool(ready) and process.stdout.read(1) == b"."


def test_a_frozen_process_stands_still_until_the_thaw(run: Ledger) -> None:
    with child(COUNTER) as process, Freezer("b1", run=run) as freezer:
        freezer.add(process.pid)
        assert members(freezer.path) == [process.pid]
        freezer.freeze()
        ask(process)
        os.kill(process.pid, signal.SIGCONT)
        assert not answers(process, 0.1)
        freezer.thaw()
        assert answers(process, 10.0)
    assert not freezer.path.exists()


def test_a_process_above_its_memory_is_killed(run: Ledger) -> None:
    with child(EATER) as process, MemoryLimit("b1", run=run, limit=64 << 20) as memory:
        memory.add(process.pid)
        ask(process)
        assert process.wait(30) == -signal.SIGKILL
        assert memory.kills() == 1


def test_a_tenth_of_a_cpu_takes_ten_times_as_long(run: Ledger) -> None:
    with child(SPINNER) as process, CpuLimit("b1", run=run, share=0.1) as cpu:
        cpu.add(process.pid)
        ask(process)
        assert process.stdout is not None
        assert float(process.stdout.readline()) > 0.2
        cpu.limit(None)
        with pytest.raises(LimitError, match="must be positive"):
            cpu.limit(0.0)


def test_a_slow_disk_takes_as_long_as_its_rate_says(run: Ledger) -> None:
    volume = Volume.create(run.directory / "b1", run=run, size=32 << 20)
    rule = BLKIO / "blkio.throttle.write_bps_device"

    def seconds() -> float:
        with (volume.path / "a").open("wb") as file:
            file.write(os.urandom(512 << 10))
            file.flush()
            began = time.monotonic()
            os.fsync(file.fileno())
            return time.monotonic() - began

    with DiskLimit(volume, run=run, write_bytes_per_s=1 << 20):
        assert volume.device_numbers in rule.read_text()
        assert seconds() > 0.25
    assert volume.device_numbers not in rule.read_text()
    assert seconds() < 0.25
    volume.destroy()


def test_the_end_of_a_run_takes_limits_and_groups_along(tmp_path: Path) -> None:
    rule = BLKIO / "blkio.throttle.write_bps_device"
    with child(COUNTER) as process:
        with Ledger.begin(tmp_path / "runs", guard=False) as run:
            volume = Volume.create(run.directory / "b1", run=run, size=16 << 20)
            DiskLimit(volume, run=run, write_bytes_per_s=1 << 20)
            freezer = Freezer("b1", run=run)
            freezer.add(process.pid)
            freezer.freeze()
            numbers = volume.device_numbers
        assert process.wait(10) == -signal.SIGKILL
    assert numbers not in rule.read_text()
    assert not freezer.path.exists()
    assert not run.directory.exists()
    volume.destroy()
