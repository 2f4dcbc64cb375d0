"""Faults by strace in a running process, and what its output says."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.chaos.process.disk.format import DiskFaultError, DiskRule
from rocketbed.chaos.process.disk.strace import injection, strace_faults

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


def step(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_errors_come_and_go(child: subprocess.Popen[str], tmp_path: Path) -> None:
    with strace_faults(child.pid, []):
        assert step(child) == "ok"
    rule = DiskRule(operation="sync", times=1, path=str(tmp_path / "log"))
    with strace_faults(child.pid, [rule]):
        assert [step(child), step(child)] == ["5", "ok"]
    with strace_faults(child.pid, [DiskRule(operation="sync", effect="lose")]):
        assert step(child) == "ok"
    assert step(child) == "ok"


@pytest.mark.slow
def test_a_crash_point_and_a_delay(child: subprocess.Popen[str]) -> None:
    delay = DiskRule(operation="sync", effect="delay", delay_ms=50, times=1)
    with strace_faults(child.pid, [delay]):
        began = time.monotonic()
        assert step(child) == "ok"
        assert time.monotonic() - began >= 0.05
    with strace_faults(child.pid, [DiskRule(operation="sync", effect="crash", skip=1)]):
        assert [step(child), step(child)] == ["ok", ""]
        assert child.wait(10) == -signal.SIGKILL
    with pytest.raises(DiskFaultError, match="cannot attach"), strace_faults(child.pid, []):
        pass


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


def test_without_strace_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(DiskFaultError, match="install it"), strace_faults(1, []):
        pass
