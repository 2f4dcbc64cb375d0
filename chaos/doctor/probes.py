"""The self-tests of `doctor`: each makes its fault once and checks that it happened.

They return what works how well. `Missing` is for what is not there (no root, no tool, no device);
any other error means that it is there and broken. Faults, commands, numbers: chaos.md 3.2.
"""

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rocketbed.chaos.backends.process.disk.faults import DiskFaults, join_environments
from rocketbed.chaos.backends.process.disk.format import DiskRule
from rocketbed.chaos.backends.process.disk.volume import Volume, check_power_cut
from rocketbed.chaos.backends.process.machine import limits
from rocketbed.chaos.backends.process.machine.clock import ClockFaults, find_library
from rocketbed.host.docker.client import Daemon, DockerError
from rocketbed.host.docker.image import IMAGE
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

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
    """Something that the fault needs is missing; the message says how to get it."""


class Broken(Exception):
    """Everything is there, and the fault did not happen."""


class Echo(subprocess.Popen[str]):
    """A process that writes to a file once for each line of its input, until its block ends."""

    def __init__(
        self,
        run: Ledger,
        file: Path,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`environment` is added to its own."""
        super().__init__(
            [sys.executable, "-S", "-c", ECHO, str(file), *arguments],
            env=join_environments(os.environ, run.environment(), environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __exit__(self, *exception: Any) -> None:
        self.kill()
        super().__exit__(*exception)

    def ask(self, seconds: float = ANSWER_S) -> list[str] | None:
        """Request a write. Return errno, wall time, duration; None if there is no answer in
        time."""
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()
        return self.answer(seconds)

    def answer(self, seconds: float = ANSWER_S) -> list[str] | None:
        """Return the answer to the last request."""
        assert self.stdout is not None
        ready, _, _ = select.select([self.stdout], [], [], seconds)
        return self.stdout.readline().split() if ready else None


def need_root() -> None:
    """Raise `Missing` without root."""
    if os.geteuid() != 0:
        raise Missing("needs root")


def probe_power_cut(run: Ledger) -> str:
    """Cut the power: loop device, ext4, shutdown ioctl."""
    need_root()
    if not os.path.exists("/dev/loop-control"):
        raise Missing("no /dev/loop-control: the kernel or the container has no loop devices")
    if shutil.which("mkfs.ext4") is None:
        raise Missing("no mkfs.ext4; install e2fsprogs")
    disk = Volume.create(run.directory / "doctor-cut", run=run, size=SIZE)
    try:
        wrong = check_power_cut(disk)
        began = time.perf_counter()
        disk.power_cut()
        disk.remount()
        cycle_ms = 1000 * (time.perf_counter() - began)
    finally:
        disk.destroy()
    if wrong:
        raise Broken(wrong)
    return f"ext4 on a loop device; a cycle takes {cycle_ms:.1f} ms"


def probe_preload(run: Ledger) -> str:
    """Fail a sync in a child, and check the trace of a good one."""
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        raise Missing("no C compiler; install gcc and libc6-dev")
    root = _own_directory(run, "preload")
    faults = DiskFaults(run.directory / "doctor-preload-faults", root=root)
    with Echo(run, root / "file", environment=faults.environment()) as process:
        good = process.ask()
        faults.set_rules([DiskRule(operation="sync")])
        bad = process.ask()
    traced = [(sync.kind, sync.end) for sync in faults.flush_trace()]
    if not (_has_number(good, 0) and _has_number(bad, errno.EIO)):
        raise Broken(f"without a rule {good}, with one {bad}")
    if traced != [("file", 1000), ("failed", 1000)]:
        raise Broken(f"the trace of syncs says {traced}")
    return "a library inside the process fails syncs and traces them"


def probe_clock(run: Ledger) -> str:
    try:
        find_library()
    except HostError as exc:
        raise Missing(str(exc)) from exc
    directory = _own_directory(run, "clock")
    clock = ClockFaults(directory, run=run)
    clock.jump(DAY_S)
    with Echo(run, directory / "file", environment=clock.environment()) as process:
        clock.attach(process.pid)
        answer = process.ask()
    clock.close()
    if answer is None or abs(float(answer[1]) - time.time() - DAY_S) > 60:
        raise Broken(f"a day on, the process said {answer}")
    return "libfaketime; timers are left alone"


def probe_pause(run: Ledger) -> str:
    with Echo(run, _own_directory(run, "pause") / "file") as process:
        process.ask()
        process.send_signal(signal.SIGSTOP)
        during = process.ask(0.05)
        process.send_signal(signal.SIGCONT)
        after = process.answer() if during is None else None
    if during is not None or after is None:
        raise Broken(f"stopped it answered {during}, afterwards {after}")
    return "SIGSTOP and SIGCONT"


def probe_cpu(run: Ledger) -> str:
    need_root()
    if not (limits.ROOT / "cpu" / "cgroup.procs").exists():
        raise Missing("no cpu controller of control groups version 1")
    with (
        limits.CpuLimit("doctor", run=run, share=0.2) as cpu,
        Echo(run, _own_directory(run, "cpu") / "file", "0.1") as process,
    ):
        cpu.add(process.pid)
        answer = process.ask()
    if answer is None or float(answer[2]) < 0.15:
        raise Broken(f"some 80 ms of work at a fifth of a CPU: {answer}")
    return "quota of control groups version 1"


def probe_docker() -> str:
    """Find a daemon that answers; no image is built for it."""
    try:
        with Daemon.connect() as daemon:
            version = daemon.api.version()["Version"]
            has_image = bool(daemon.api.images(IMAGE))
    except DockerError as exc:
        raise Missing(str(exc)) from exc
    image = f"{IMAGE} is there" if has_image else f"{IMAGE} will be built at first use"
    return f"Docker {version} at {daemon.address}; {image}"


def _has_number(answer: list[str] | None, number: int) -> bool:
    return answer is not None and int(answer[0]) == number


def _own_directory(run: Ledger, name: str) -> Path:
    directory = run.directory / f"doctor-{name}"
    directory.mkdir()
    return directory
