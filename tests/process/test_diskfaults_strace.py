"""Faults by strace in a running process, and what its output says."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.chaos.process.disk.faults import DiskFaultError, DiskRule
from rocketbed.chaos.process.disk.strace import StraceFaults, injection, read_strace

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
    faults = StraceFaults(tmp_path / "faults", root=tmp_path)
    yield faults
    faults.close()


def step(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_errors_come_and_go_and_the_trace_tells(
    child: subprocess.Popen[str], faults: StraceFaults, tmp_path: Path
) -> None:
    faults.attach(child.pid)
    assert step(child) == "ok"
    faults.set_rules([DiskRule(operation="sync", times=1, path=str(tmp_path / "log"))])
    assert [step(child), step(child)] == ["5", "ok"]
    faults.set_rules([DiskRule(operation="sync", effect="lose")])
    assert step(child) == "ok"
    faults.clear()
    assert step(child) == "ok"
    faults.close()
    trace = faults.flush_trace()
    assert [(one.kind, one.end) for one in trace] == [
        ("file", 100),
        ("failed", 200),
        ("file", 300),
        ("lost", 400),
        ("file", 500),
    ]
    assert {one.path for one in trace} == {str(tmp_path / "log")}
    assert all(one.began_ns <= one.time_ns for one in trace)


@pytest.mark.slow
def test_a_crash_point_and_a_delay(child: subprocess.Popen[str], faults: StraceFaults) -> None:
    faults.set_rules([DiskRule(operation="sync", effect="delay", delay_ms=50, times=1)])
    faults.attach(child.pid)
    assert step(child) == "ok"
    faults.set_rules([DiskRule(operation="sync", effect="crash", skip=1)])
    assert [step(child), step(child)] == ["ok", ""]
    assert child.wait(10) == -signal.SIGKILL
    first = faults.flush_trace()[0]
    assert first.time_ns - first.began_ns >= 50_000_000
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


def test_syncs_of_several_threads_in_one_trace() -> None:
    lines = [
        '10 100.000001 pwrite64(3</a>, "x"..., 100, 0) = 100',
        "11 100.000002 fdatasync(3</a> <unfinished ...>",
        '10 100.000003 pwrite64(3</a>, "y"..., 100, 100) = 100',
        '10 100.000004 pwrite64(3</a>, "\\0"..., 900, 200) = 900',
        "12 100.000005 fsync(4</b>) = -1 EIO (Input/output error) (INJECTED)",
        "11 100.000006 <... fdatasync resumed>) = 0 <0.000004>",
        "11 100.000007 fdatasync(3</a>) = 0 (INJECTED)",
        "10 +++ killed by SIGKILL +++",
    ]
    found = list(read_strace(lines, {}, 5))
    assert [(one.kind, one.path, one.end, one.pid) for one in found] == [
        ("failed", "/b", 0, 12),
        ("file", "/a", 100, 11),
        ("lost", "/a", 200, 11),
    ]
    assert (found[1].began_ns, found[1].time_ns) == (100_000_002_005, 100_000_006_005)


def test_without_strace_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(DiskFaultError, match="install it"):
        StraceFaults(tmp_path, root=Path(os.sep))
