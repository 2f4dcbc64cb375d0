"""Disk faults from outside by strace, where no library can be preloaded. The second choice.

strace stops the process twice for every system call, so everything in it is several times slower.
It can fail, delay and fake syncs and writes, and kill at the n-th; it cannot tear a write, fill a
disk or hang. Rules take one whole path, or all files; while they name a path, no other is traced.
Source: chaos.md 3.2 no. 14.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rocketbed.chaos.process.disk.format import DiskFaultError, DiskRule

CALLS: Final = {
    "sync": "fsync,fdatasync",
    "sync_dir": "fsync,fdatasync",
    "write": "pwrite64,pwritev,pwritev2",
    "truncate": "ftruncate",
    "allocate": "fallocate",
    "rename": "rename,renameat,renameat2",
    "unlink": "unlink,unlinkat",
}
TRACED: Final = ",".join(sorted({*",".join(CALLS.values()).split(",")}))
ATTACH_S: Final = 5.0


@contextmanager
def strace_faults(pid: int, rules: Sequence[DiskRule]) -> Iterator[None]:
    """Faults in a running process while inside. Raises `DiskFaultError`."""
    strace = shutil.which("strace")
    if strace is None:
        raise DiskFaultError("strace not found; install it, or gcc for the preloaded library")
    if len({rule.path for rule in rules}) > 1:
        raise DiskFaultError("strace takes one path for all rules, or all files")
    command = [strace, "-f", "-qq", "-p", str(pid), "-o", os.devnull, "-e", f"trace={TRACED}"]
    for rule in rules:
        command += ["-e", f"inject={injection(rule)}"]
        if rule.path != "*":
            command += ["-P", rule.path]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _wait_attached(pid, process)
            yield
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=ATTACH_S)
        finally:
            process.kill()


def _wait_attached(pid: int, strace: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + ATTACH_S
    while not _is_traced(pid, strace.pid):
        if strace.poll() is not None or time.monotonic() > until:
            strace.kill()
            _, errors = strace.communicate()
            reason = errors.decode(errors="replace").strip() or "it takes too long"
            raise DiskFaultError(f"strace cannot attach to process {pid}: {reason}")
        time.sleep(0.001)


def injection(rule: DiskRule) -> str:
    """A rule in strace's words. Raises `DiskFaultError` for what strace cannot do."""
    if rule.effect in ("torn", "hang") or rule.after_bytes:
        what = "after_bytes" if rule.after_bytes else rule.effect
        raise DiskFaultError(f"strace cannot do {what}; the preloaded library can (install gcc)")
    if rule.path != "*" and re.search(r"[*?\[]", rule.path):
        raise DiskFaultError(f"strace takes whole paths, not the pattern {rule.path!r}")
    calls = TRACED if rule.operation == "*" else CALLS[rule.operation]
    effects = {
        "error": f"error={errno.errorcode.get(rule.error, rule.error)}",
        "lose": "retval=0",
        "delay": f"delay_enter={rule.delay_ms * 1000}",
        "crash": "signal=KILL",
    }
    first = rule.skip + 1
    when = f"{first}+" if rule.times is None else f"{first}..{rule.skip + rule.times}"
    return f"{calls}:{effects[rule.effect]}:when={when}"


def _is_traced(pid: int, tracer: int) -> bool:
    """Whether every thread of a process is held."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return bool(threads) and all(
            f"TracerPid:\t{tracer}\n" in (thread / "status").read_text() for thread in threads
        )
    except OSError:
        return False
