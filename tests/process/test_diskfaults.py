"""The preloaded library: each fault in a real process, and a trace that says what was synced."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketbed.chaos.backends.process.disk import faults as diskfaults
from rocketbed.chaos.backends.process.disk.faults import DiskFaults, build_shim, join_environments
from rocketbed.chaos.backends.process.disk.format import DiskRule, read_flush_trace
from rocketbed.host.errors import HostError
from tests.support.shim import WrittenEnd, events, fired, written_ends

pytestmark = pytest.mark.slow  # needs a C compiler

PRELUDE = """
import os, sys
def op(name, *rest):
    sys.stdin.readline()
    try:
        print(name, getattr(os, name)(*rest), flush=True)
    except OSError as error:
        print(name, error.errno, flush=True)
f = os.open("log", os.O_RDWR | os.O_CREAT, 0o644)
"""


class Child:
    """A process under faults that does one call of `os` at each `step`."""

    def __init__(self, faults: DiskFaults, *calls: str) -> None:
        code = PRELUDE + "".join(f"op({call})\n" for call in calls)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=faults.root,
            env=join_environments(os.environ, faults.environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Child]


@pytest.fixture
def faults(tmp_path: Path) -> DiskFaults:
    (tmp_path / "data").mkdir()
    return DiskFaults(tmp_path / "faults", root=tmp_path / "data")


@pytest.fixture
def start(faults: DiskFaults) -> Iterator[Start]:
    children = []

    def begin(*calls: str) -> Child:
        children.append(Child(faults, *calls))
        return children[-1]

    yield begin
    for child in children:
        child.close()


WRITE = "'pwrite', f, b'x' * 4096, 0"
SYNC = "'fdatasync', f"


@pytest.mark.ci
def test_trace_has_the_written_end_at_a_syncs_begin(faults: DiskFaults, start: Start) -> None:
    child = start(
        "'pwrite', f, b'a' * 100, 0",
        SYNC,
        "'pwritev', f, [b'b' * 50, b'c' * 50], 100",
        "'fsync', f",
        "'write', f, b'short'",
        SYNC,
    )
    before = time.monotonic_ns()
    answers = [child.step() for _ in range(6)]
    assert answers == [
        "pwrite 100",
        "fdatasync None",
        "pwritev 100",
        "fsync None",
        "write 5",
        "fdatasync None",
    ]
    trace = faults.flush_trace()
    assert [(one.kind, one.end) for one in trace] == [("file", 100), ("file", 200), ("file", 200)]
    assert {one.path for one in trace} == {str(faults.root / "log")}
    assert {one.pid for one in trace} == {child.process.pid}
    times = [at for one in trace for at in (one.began_ns, one.time_ns)]
    times = [before, *times, time.monotonic_ns()]
    assert times == sorted(times)


@pytest.mark.ci
def test_unsynced_writes_are_known_after_sigkill(faults: DiskFaults, start: Start) -> None:
    child = start("'pwrite', f, b'a' * 100, 0", SYNC, "'pwrite', f, b'a' * 100, 100")
    for _ in range(3):
        child.step()
    child.close()
    ends = written_ends(faults)[str(faults.root / "log")]
    assert (ends.written, ends.synced) == (200, 100)
    assert ends.synced_ns == faults.flush_trace()[0].time_ns
    assert events(faults) == 3


def test_zeros_over_the_end_and_truncation_lower_it(faults: DiskFaults, start: Start) -> None:
    child = start(
        "'posix_fallocate', f, 0, 8192",
        "'pwrite', f, b'a' * 1000, 0",
        "'pwrite', f, bytes(7692), 500",
        "'pwrite', f, b'b', 600",
        "'ftruncate', f, 80",
    )
    ends = []
    for _ in range(5):
        child.step()
        ends.append(written_ends(faults)[str(faults.root / "log")].written)
    assert ends == [0, 1000, 500, 601, 80]


def test_an_error_as_often_as_asked(faults: DiskFaults, start: Start) -> None:
    faults.set_rules([DiskRule(operation="sync", path="*log", times=1, skip=1)])
    child = start(WRITE, SYNC, SYNC, SYNC)
    answers = [child.step() for _ in range(4)]
    assert answers == ["pwrite 4096", "fdatasync None", "fdatasync 5", "fdatasync None"]
    assert [one.kind for one in faults.flush_trace()] == ["file", "failed", "file"]
    (met,) = fired(faults)
    assert (met.rule, met.operation, met.path) == (1, "sync", str(faults.root / "log"))


def test_a_rule_for_another_file_does_nothing(faults: DiskFaults, start: Start) -> None:
    faults.set_rules([DiskRule(operation="sync", path="*/consumequeue/*")])
    child = start(SYNC)
    assert child.step() == "fdatasync None"


def test_a_read_fails_and_is_no_event(faults: DiskFaults, start: Start) -> None:
    """Rules for anything are not for reads, which change nothing."""
    read, vectored = "'pread', f, 2, 0", "'preadv', f, [bytearray(2)], 0"
    child = start(WRITE, read, read, vectored, read)
    faults.set_rules([DiskRule(operation="*", effect="error", skip=1)])
    assert [child.step() for _ in range(2)] == ["pwrite 4096", "pread b'xx'"]
    faults.set_rules([DiskRule(operation="read", path="*log", times=2)])
    assert [child.step() for _ in range(3)] == ["pread 5", "preadv 5", "pread b'xx'"]
    assert [one.operation for one in fired(faults)] == ["read", "read"]


def test_rules_change_while_the_process_runs(faults: DiskFaults, start: Start) -> None:
    child = start(SYNC, SYNC, SYNC)
    assert child.step() == "fdatasync None"
    faults.set_rules([DiskRule(operation="sync", error=errno.EROFS)])
    assert child.step() == f"fdatasync {errno.EROFS}"
    faults.set_rules([])
    assert child.step() == "fdatasync None"


def test_a_rule_that_stays_keeps_its_count(faults: DiskFaults, start: Start) -> None:
    limited = DiskRule(operation="sync", times=1)
    faults.set_rules([limited])
    child = start(SYNC, SYNC)
    assert child.step() == "fdatasync 5"
    faults.set_rules([DiskRule(operation="write"), limited])
    assert child.step() == "fdatasync None"


def test_lost_sync_succeeds_and_is_traced_as_lost(faults: DiskFaults, start: Start) -> None:
    faults.set_rules([DiskRule(operation="sync", effect="lose")])
    child = start(WRITE, SYNC)
    assert [child.step(), child.step()] == ["pwrite 4096", "fdatasync None"]
    assert [one.kind for one in faults.flush_trace()] == ["lost"]
    assert written_ends(faults)[str(faults.root / "log")] == WrittenEnd(4096, 0, 0)


def test_a_delay(faults: DiskFaults, start: Start) -> None:
    faults.set_rules([DiskRule(operation="sync", effect="delay", delay_ms=60)])
    child = start(SYNC)
    child.step()
    (sync,) = faults.flush_trace()
    assert sync.time_ns - sync.began_ns >= 60_000_000


def test_full_disk_shortens_a_write_then_refuses(faults: DiskFaults, start: Start) -> None:
    faults.set_rules([DiskRule(operation="write", error=errno.ENOSPC, after_bytes=5000)])
    child = start(WRITE, WRITE, WRITE, SYNC)
    answers = [child.step() for _ in range(4)]
    assert answers == ["pwrite 4096", "pwrite 904", f"pwrite {errno.ENOSPC}", "fdatasync None"]


@pytest.mark.parametrize(
    ("number", "expected"), [(1, b""), (2, b"x" * 4096), (3, b"x" * 4096), (4, b"x" * 100)]
)
def test_a_crash_point_dies_before_the_event(
    faults: DiskFaults, start: Start, number: int, expected: bytes
) -> None:
    faults.set_rules([DiskRule(effect="crash", skip=number - 1)])
    child = start(WRITE, SYNC, "'ftruncate', f, 100", "'rename', 'log', 'moved'")
    answers = [child.step() for _ in range(number)]
    assert answers[-1] == ""
    assert child.process.wait(10) == -signal.SIGKILL
    assert (faults.root / "log").read_bytes() == expected
    assert events(faults) == number


def test_names_and_directories_are_events_too(faults: DiskFaults, start: Start) -> None:
    child = start(
        WRITE,
        "'replace', 'log', 'moved'",
        "'fsync', os.open('.', os.O_RDONLY)",
        SYNC,
        "'unlink', 'moved'",
        SYNC,
    )
    for _ in range(4):
        child.step()
    assert [(one.kind, Path(one.path).name) for one in faults.flush_trace()] == [
        ("directory", "data"),
        ("file", "moved"),
    ]
    assert written_ends(faults)[str(faults.root / "moved")].synced == 4096
    child.step()
    assert str(faults.root / "moved") not in written_ends(faults)
    child.step()
    assert events(faults) == 6


def test_a_replaced_file_begins_anew(faults: DiskFaults, start: Start) -> None:
    rounds = []
    for _ in range(3):
        rounds += [
            "'pwrite', os.open('t', os.O_RDWR | os.O_CREAT), b'new', 0",
            "'replace', 't', 'config'",
        ]
    child = start(*rounds)
    for _ in rounds:
        child.step()
    ends = written_ends(faults)
    assert list(ends) == [str(faults.root / "config")]
    assert ends[str(faults.root / "config")].written == 3


def test_files_elsewhere_are_ignored(faults: DiskFaults, start: Start) -> None:
    faults.set_rules([DiskRule(operation="write")])
    outside = faults.root.parent / "outside"
    child = start(f"'pwrite', os.open({str(outside)!r}, os.O_RDWR | os.O_CREAT), b'x', 0")
    assert child.step() == "pwrite 1"
    assert written_ends(faults) == {}


def test_second_start_continues_the_trace(faults: DiskFaults, start: Start) -> None:
    start(WRITE, SYNC).step()
    first = start(SYNC)
    first.step()
    assert [one.pid for one in faults.flush_trace()] == [first.process.pid]
    assert written_ends(faults)[str(faults.root / "log")].written == 0


def test_incomplete_trace_line_is_not_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert read_flush_trace(trace) == []
    trace.write_bytes(b"B 1 2\nF 9 2 8 4096 /a b/log\nF 10 2 9 81")
    (flush,) = read_flush_trace(trace)
    assert (flush.time_ns, flush.pid, flush.began_ns, flush.end, flush.path) == (
        9,
        2,
        8,
        4096,
        "/a b/log",
    )


def test_too_many_rules(faults: DiskFaults) -> None:
    with pytest.raises(HostError, match="at most 64"):
        faults.set_rules([DiskRule(operation="sync", skip=number) for number in range(65)])


def test_missing_compiler_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(HostError, match="install gcc"):
        build_shim(tmp_path)
    (tmp_path / "broken.c").write_text("int main(")
    monkeypatch.undo()
    monkeypatch.setattr(diskfaults, "SOURCE", tmp_path / "broken.c")
    with pytest.raises(HostError, match=r"cannot build broken\.c"):
        build_shim(tmp_path)


def test_environments_join_their_libraries() -> None:
    joined = join_environments({"LD_PRELOAD": "a", "X": "1"}, {"X": "2"}, {"LD_PRELOAD": "b"})
    assert joined == {"LD_PRELOAD": "a:b", "X": "2"}
