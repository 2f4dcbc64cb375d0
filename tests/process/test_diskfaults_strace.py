"""Faults by strace in a running process, and what its output says."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.chaos.process.disk.format import DiskFaultError, DiskRule
from rocketbed.chaos.process.disk.strace import StraceFaults, injection

PROGRAM = """
import os, sys
f = os.open("log", os.O_RDWR | os.O_CREAT, 0o644)
print("ready", flush=True)
end = 0
while sys.stdin.readline():
    try:
        end += os.pwrite(f, b"x" * 100, end)
        os.fdatasync(f)
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[StraceFaults]:
    faults = StraceFaults()
    yield faults
    faults.close()


def step(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_errors_come_and_go(
    child: subprocess.Popen[str], faults: StraceFaults, tmp_path: Path
) -> None:
    faults.attach(child.pid)
    assert step(child) == "ok"
    faults.set_rules([DiskRule(operation="sync", times=1, path=str(tmp_path / "log"))])
    assert [step(child), step(child)] == ["5", "ok"]
    faults.set_rules([DiskRule(operation="sync", effect="lose")])
    assert step(child) == "ok"
    faults.set_rules([])
    assert step(child) == "ok"
    faults.close()


@pytest.mark.slow
def test_a_crash_point_and_a_delay(child: subprocess.Popen[str], faults: StraceFaults) -> None:
    faults.set_rules([DiskRule(operation="sync", effect="delay", delay_ms=50, times=1)])
    faults.attach(child.pid)
    began = time.monotonic()
    assert step(child) == "ok"
    assert time.monotonic() - began >= 0.05
    faults.set_rules([DiskRule(operation="sync", effect="crash", skip=1)])
    assert [step(child), step(child)] == ["ok", ""]
    assert child.wait(10) == -signal.SIGKILL
    with pytest.raises(DiskFaultError, match="cannot attach"):
        faults.attach(child.pid)


def test_rules_in_its_words() -> None:
    assert injection(DiskRule(operation="sync", times=1)) == "fsync,fdatasync:error=EIO:when=1..1"
    lost = DiskRule(operation="sync", effect="lose", skip=2)
    assert injection(lost) == "fsync,fdatasync:retval=0:when=3+"
    for rule in (
        DiskRule(operation="write", effect="torn"),
        DiskRule(operation="sync", effect="hang"),
        DiskRule(operation="write", after_bytes=4),
        DiskRule(operation="sync", path="*log*"),
    ):
        with pytest.raises(DiskFaultError, match="strace"):
            injection(rule)


def test_without_strace_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(DiskFaultError, match="install it"):
        StraceFaults()
