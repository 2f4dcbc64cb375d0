"""Disk faults from outside by strace, where no library can be preloaded. The second choice.

strace stops the process twice for every system call, so everything in it is several times slower.
It can fail, delay and fake syncs and writes, and kill at the n-th; it cannot tear a write, fill a
disk or hang. Rules take one whole path, or all files; while they name a path, no other is traced.
Each change of the rules attaches strace anew.
Source: chaos.md 3.2 no. 14.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
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


class StraceFaults:
    """Faults of one node, over all its starts."""

    def __init__(self) -> None:
        """Raises `DiskFaultError` when there is no strace."""
        self._strace = shutil.which("strace")
        if self._strace is None:
            raise DiskFaultError("strace not found; install it, or gcc for the preloaded library")
        self._pid = 0
        self._rules: list[DiskRule] = []
        self._process: subprocess.Popen[bytes] | None = None

    def attach(self, pid: int) -> None:
        """Take hold of the process; call it at each start. Raises `DiskFaultError`."""
        self._pid = pid
        self._restart()

    def set_rules(self, rules: Iterable[DiskRule]) -> None:
        """Replace the rules; counts begin anew. Raises `DiskFaultError`."""
        wanted = list(rules)
        for rule in wanted:
            injection(rule)
        if len({rule.path for rule in wanted}) > 1:
            raise DiskFaultError("strace takes one path for all rules, or all files")
        self._rules = wanted
        if self._pid:
            self._restart()

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.communicate(timeout=ATTACH_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self._process = None

    def _restart(self) -> None:
        self.close()
        command = [str(self._strace), "-f", "-qq", "-p", str(self._pid), "-o", os.devnull]
        command += ["-e", f"trace={TRACED}"]
        for rule in self._rules:
            command += ["-e", f"inject={injection(rule)}"]
            if rule.path != "*":
                command += ["-P", rule.path]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        until = time.monotonic() + ATTACH_S
        while not _is_traced(self._pid, self._process.pid):
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                _, errors = self._process.communicate()
                self._process = None
                reason = errors.decode(errors="replace").strip() or "it takes too long"
                raise DiskFaultError(f"strace cannot attach to process {self._pid}: {reason}")
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
