"""The self-tests behind `doctor`: each makes its fault once and looks whether it happened.

They say what works how well. `Missing` is for what is not there (no root, no tool, no device);
whatever else goes wrong means that the thing is there and broken. Faults, commands, numbers:
chaos.md 3.2.
"""

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocketbed.chaos.docker.client import Daemon, DockerError
from rocketbed.chaos.docker.image import IMAGE
from rocketbed.chaos.host.janitor.record import Ledger
from rocketbed.chaos.process.disk.faults import DiskFaults, join_environments
from rocketbed.chaos.process.disk.format import DiskRule
from rocketbed.chaos.process.disk.volume import Volume, check_power_cut
from rocketbed.chaos.process.machine import limits
from rocketbed.chaos.process.machine.clock import ClockFaultError, ClockFaults, find_library

SIZE: Final = 16 << 20
ANSWER_S: Final = 5.0
DAY_S: Final = 86_400
ECHO: Final = """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
while sys.stdin.readline():
    began = time.monotonic()
    try:
        os.pwrite(f, b"x" * 1000, 0)
        os.fdatasync(f)
        answer = 0
    except OSError as error:
        answer = error.errno
    while len(sys.argv) > 2 and time.process_time() < float(sys.argv[2]):
        pass
    print(answer, time.time(), time.monotonic() - began, flush=True)
"""
"""Writes, syncs, optionally burns CPU seconds; answers with errno, wall time, duration."""


class Missing(Exception):
    """Something the fault needs is not there; the message says how to get it."""


class Broken(Exception):
    """All is there, and the fault did not happen."""


class Echo:
    """A process that does what is asked once a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, seconds: float = ANSWER_S) -> list[str] | None:
        """Errno, wall time, duration; None when there is no answer in time."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer(seconds)

    def answer(self, seconds: float = ANSWER_S) -> list[str] | None:
        """The answer to what was asked before."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().split() if ready else None


@contextmanager
def echo(
    run: Ledger, file: Path, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Echo]:
    """An `Echo` on a file; `environment` is added to its own."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", ECHO, str(file), *arguments],
        env=join_environments(os.environ, run.environment(), environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Echo(process)
        finally:
            process.kill()


@contextmanager
def volume(run: Ledger, name: str) -> Iterator[Volume]:
    """A small volume. Raises `Missing`."""
    need_root()
    if not os.path.exists("/dev/loop-control"):
        raise Missing("no /dev/loop-control: the kernel or the container has no loop devices")
    if shutil.which("mkfs.ext4") is None:
        raise Missing("no mkfs.ext4; install e2fsprogs")
    made = Volume.create(run.directory / f"doctor-{name}", run=run, size=SIZE)
    try:
        yield made
    finally:
        made.destroy()


def need_root() -> None:
    """Raises `Missing`."""
    if os.geteuid() != 0:
        raise Missing("needs root")


def need_group(controller: str) -> None:
    """Raises `Missing` without a version 1 controller."""
    need_root()
    if not (limits.ROOT / controller / "cgroup.procs").exists():
        raise Missing(f"no {controller} controller of control groups version 1")


def probe_power_cut(run: Ledger) -> str:
    """Loop device, ext4, shutdown ioctl."""
    with volume(run, "cut") as disk:
        wrong = check_power_cut(disk)
        began = time.perf_counter()
        disk.power_cut()
        disk.remount()
        cycle_ms = 1000 * (time.perf_counter() - began)
    if wrong:
        raise Broken(wrong)
    return f"ext4 on a loop device; a cycle takes {cycle_ms:.1f} ms"


def probe_full(run: Ledger) -> str:
    with volume(run, "full") as disk:
        disk.fill()
        with echo(run, disk.path / "file") as process:
            full = process.ask()
            disk.free()
            free = process.ask()
    if not (_says(full, errno.ENOSPC) and _says(free, 0)):
        raise Broken(f"a full volume answered {full}, and {free} when it had space again")
    return "a filler file takes all space"


def probe_read_only(run: Ledger) -> str:
    """The file system turns read-only under an open file."""
    with volume(run, "readonly") as disk, echo(run, disk.path / "file") as process:
        before = process.ask()
        disk.force_read_only()
        after = process.ask()
    if not (_says(before, 0) and _says(after, errno.EROFS)):
        raise Broken(f"before {before}, then {after} instead of EROFS")
    return "writes fail with EROFS"


def probe_disk_freeze(run: Ledger) -> str:
    """Writes hang while the file system is frozen."""
    with volume(run, "freeze") as disk, echo(run, disk.path / "file") as process:
        return _stands_still(process, disk.freeze, disk.thaw, "writes wait for the thaw")


def probe_slow(run: Ledger) -> str:
    need_root()
    if not (limits.BLKIO / "blkio.throttle.write_bps_device").exists():
        raise Missing("no blkio controller of control groups version 1")
    with volume(run, "slow") as disk:
        with limits.DiskLimit(disk, run=run, write_bytes_per_s=1 << 20):
            seconds = _synced_write(disk.path / "file", 256 << 10)
        freely = _synced_write(disk.path / "file", 256 << 10)
    if seconds < 0.1:
        raise Broken(f"256 KiB at 1 MiB/s took {seconds:.3f} s")
    return f"256 KiB took {seconds:.2f} s at 1 MiB/s, {freely:.3f} s without a limit"


def _synced_write(path: Path, size: int) -> float:
    with path.open("wb") as file:
        file.write(os.urandom(size))
        file.flush()
        began = time.monotonic()
        os.fsync(file.fileno())
    return time.monotonic() - began


def probe_preload(run: Ledger) -> str:
    """A failing sync in a child, and the trace of the good one."""
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        raise Missing("no C compiler; install gcc and libc6-dev")
    root = _own_directory(run, "preload")
    faults = DiskFaults(run.directory / "doctor-preload-faults", root=root)
    with echo(run, root / "file", environment=faults.environment()) as process:
        good = process.ask()
        faults.set_rules([DiskRule(operation="sync")])
        bad = process.ask()
    traced = [(one.kind, one.end) for one in faults.flush_trace()]
    if not (_says(good, 0) and _says(bad, errno.EIO)):
        raise Broken(f"without a rule {good}, with one {bad}")
    if traced != [("file", 1000), ("failed", 1000)]:
        raise Broken(f"the trace of syncs says {traced}")
    return "a library inside the process fails syncs and traces them"


def probe_clock(run: Ledger) -> str:
    try:
        find_library()
    except ClockFaultError as exc:
        raise Missing(str(exc)) from exc
    directory = _own_directory(run, "clock")
    clock = ClockFaults(directory, run=run)
    clock.jump(DAY_S)
    with echo(run, directory / "file", environment=clock.environment()) as process:
        clock.attach(process.process.pid)
        answer = process.ask()
    clock.close()
    if answer is None or abs(float(answer[1]) - time.time() - DAY_S) > 60:
        raise Broken(f"a day on, the process said {answer}")
    return "libfaketime; timers are left alone"


def probe_pause(run: Ledger) -> str:
    with echo(run, _own_directory(run, "pause") / "file") as process:
        send = process.process.send_signal
        return _stands_still(
            process,
            lambda: send(signal.SIGSTOP),
            lambda: send(signal.SIGCONT),
            "SIGSTOP and SIGCONT",
        )


def probe_freezer(run: Ledger) -> str:
    need_group("freezer")
    with (
        echo(run, _own_directory(run, "freezer") / "file") as process,
        limits.Freezer("doctor", run=run) as freezer,
    ):
        freezer.add(process.process.pid)
        works_how = "freezer of control groups version 1"
        return _stands_still(process, freezer.freeze, freezer.thaw, works_how)


def _stands_still(
    process: Echo, stop: Callable[[], None], resume: Callable[[], None], how: str
) -> str:
    """Whether a process does nothing from `stop` on, and what it was asked after `resume`."""
    process.ask()
    stop()
    try:
        during = process.ask(0.05)
    finally:
        resume()
    after = process.answer() if during is None else None
    if during is not None or after is None:
        raise Broken(f"stopped it answered {during}, afterwards {after}")
    return how


def probe_memory(run: Ledger) -> str:
    need_group("memory")
    program = "import sys; sys.stdin.readline(); held = b'x' * (128 << 20)"
    with (
        subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE) as process,
        limits.MemoryLimit("doctor", run=run, limit=32 << 20) as memory,
    ):
        memory.add(process.pid)
        timer = threading.Timer(ANSWER_S, process.kill)
        timer.start()
        process.communicate(b"\n")
        timer.cancel()
        kills = memory.kills()
    if not kills:
        raise Broken(f"128 MiB under a limit of 32 MiB ended with {process.returncode}")
    return "memory of control groups version 1; the kernel kills above the limit"


def probe_cpu(run: Ledger) -> str:
    need_group("cpu")
    with (
        limits.CpuLimit("doctor", run=run, share=0.2) as cpu,
        echo(run, _own_directory(run, "cpu") / "file", "0.1") as process,
    ):
        cpu.add(process.process.pid)
        answer = process.ask()
    if answer is None or float(answer[2]) < 0.15:
        raise Broken(f"some 80 ms of work at a fifth of a CPU: {answer}")
    return "quota of control groups version 1"


def probe_docker() -> str:
    """A daemon that answers; no image is built for it."""
    try:
        with Daemon.connect() as daemon:
            version = daemon.api.version()["Version"]
            has_image = bool(daemon.api.images(IMAGE))
    except DockerError as exc:
        raise Missing(str(exc)) from exc
    image = f"{IMAGE} is there" if has_image else f"{IMAGE} will be built at first use"
    return f"Docker {version} at {daemon.address}; {image}"


def _says(answer: list[str] | None, number: int) -> bool:
    return answer is not None and int(answer[0]) == number


def _own_directory(run: Ledger, name: str) -> Path:
    directory = run.directory / f"doctor-{name}"
    directory.mkdir()
    return directory
