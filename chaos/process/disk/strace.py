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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rocketbed.chaos.process.disk.format import DiskFaultError, DiskRule, FlushRecord

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
LINE: Final = re.compile(r"^(?P<pid>\d+) +(?P<time>\d+\.\d+) (?P<rest>.*)$")
SYNC: Final = re.compile(r"^(?:fsync|fdatasync)\(\d+<(?P<path>.*?)>(?: <unfinished|\))")
SYNC_END: Final = re.compile(r"^<\.\.\. (?:fsync|fdatasync) resumed>\)")
WRITE: Final = re.compile(
    r"^pwrite64\(\d+<(?P<path>.*?)>, (?P<data>\".*?\"(?:\.\.\.)?), (?P<size>\d+), (?P<offset>\d+)"
)
RESULT: Final = re.compile(r"\) += (?P<result>-?\d+)(?P<notes>.*)$")

TOOK: Final = re.compile(r"<(?P<seconds>[0-9.]+)>$")


class StraceFaults:
    """Faults and trace of one node, over all its starts. A `DiskFaultProvider`."""

    def __init__(self, directory: Path, *, root: Path) -> None:
        """Raises `DiskFaultError` when there is no strace."""
        self._strace = shutil.which("strace")
        if self._strace is None:
            raise DiskFaultError("strace not found; install it, or gcc for the preloaded library")
        self.directory = directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self._attached = 0
        self._pid = 0
        self._rules: list[DiskRule] = []
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Nothing: strace stands outside."""
        return {}

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

    def clear(self) -> None:
        """No rules any more."""
        self.set_rules([])

    def flush_trace(self) -> list[FlushRecord]:
        """Every sync below the root so far."""
        ahead_ns = time.monotonic_ns() - time.time_ns()
        found: list[FlushRecord] = []
        ends: dict[str, int] = {}
        for number in range(1, self._attached + 1):
            try:
                lines = self._trace_path(number).read_text(errors="replace").split("\n")[:-1]
            except FileNotFoundError:
                continue
            found.extend(
                record
                for record in read_strace(lines, ends, ahead_ns)
                if record.path.startswith(f"{self.root}/") or record.path == str(self.root)
            )
        return found

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.communicate(timeout=ATTACH_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self._process = None

    def _trace_path(self, number: int) -> Path:
        return self.directory / f"strace.{number}"

    def _restart(self) -> None:
        self.close()
        self._attached += 1
        command = [
            str(self._strace),
            "-f",
            "-qq",
            "-y",
            "-ttt",
            "-T",
            "-s",
            "1",
            "-p",
            str(self._pid),
        ]
        command += ["-o", str(self._trace_path(self._attached)), "-e", f"trace={TRACED}"]
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


def read_strace(lines: Iterable[str], ends: dict[str, int], ahead_ns: int) -> Iterator[FlushRecord]:
    """Syncs in the output of `strace -f -y -ttt -T -s 1`; written ends are kept in `ends`.

    `ahead_ns` is what CLOCK_MONOTONIC is ahead of the wall clock.
    """
    open_syncs: dict[str, tuple[str, int, int]] = {}
    for line in lines:
        row = LINE.match(line)
        if row is None:
            continue
        rest = row["rest"]
        seconds, _, fraction = row["time"].partition(".")
        at = int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0")) + ahead_ns
        if write := WRITE.match(rest):
            result = RESULT.search(rest)
            size = int(write["size"]) if result is None else int(result["result"])
            end = int(write["offset"]) + size
            path = write["path"]
            if size > 0 and not write["data"].startswith('"\\0'):
                ends[path] = max(end, ends.get(path, 0))
        elif sync := SYNC.match(rest):
            open_syncs[row["pid"]] = (sync["path"], at, ends.get(sync["path"], 0))
        elif SYNC_END.match(rest) is None:
            continue
        result = RESULT.search(rest)
        if result is not None and row["pid"] in open_syncs and "pwrite" not in rest:
            path, began, end = open_syncs.pop(row["pid"])
            if at == began and (took := TOOK.search(rest)):
                at += round(float(took["seconds"]) * 1_000_000_000)
            yield FlushRecord(_kind(path, result), at, began, int(row["pid"]), end, path)


def _kind(path: str, result: re.Match[str]) -> str:
    if result["result"] != "0":
        return "failed"
    if "INJECTED" in result["notes"]:
        return "lost"
    return "directory" if os.path.isdir(path) else "file"


def _is_traced(pid: int, tracer: int) -> bool:
    """Whether every thread of a process is held."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return bool(threads) and all(
            f"TracerPid:\t{tracer}\n" in (thread / "status").read_text() for thread in threads
        )
    except OSError:
        return False
