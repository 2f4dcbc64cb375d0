"""Processes by pid, distinguished from later ones with the same pid. Standard library only.

A pid is compared together with its process's start time, and signals go through a descriptor opened
before that comparison, so that they reach the intended process or none.
"""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MARK: Final = "ROCKETBED_RUN"
"""Environment variable that names the run of a process; its children inherit it."""
PROC: Final = Path("/proc")
EXEC_S: Final = 0.05
"""Time, seconds, for which a process may seem to have no environment, during `exec`."""
KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD of linux/sched.h."""


def began(pid: int) -> int:
    """Return a process's start time, kernel ticks since boot. Raises `OSError` when there is
    none."""
    return int(_fields(pid)[19])


def is_alive(pid: int, began_ticks: int) -> bool:
    """True if this very process still runs; a zombie does not count."""
    try:
        fields = _fields(pid)
    except OSError:
        return False
    return int(fields[19]) == began_ticks and fields[0] not in "ZX"


def marked(run_id: str) -> Iterator[int]:
    """Yield the processes whose environment names a run; never this one."""
    entry_text = f"{MARK}={run_id}".encode()
    own = os.getpid()
    for entry in PROC.iterdir():
        if (
            entry.name.isdigit()
            and int(entry.name) != own
            and _is_marked(int(entry.name), entry_text)
        ):
            yield int(entry.name)


def kill_marked(run_id: str) -> list[int]:
    """Send SIGKILL to every process of a run and its descendants; return the pids that got one.

    The program of a container has no mark; it is a child of a marked process (a shim of the
    daemon's).
    """
    marked_pids = {}
    for pid in marked(run_id):
        with suppress(OSError):
            marked_pids[pid] = began(pid)
    descendants = dict(_descendants(list(marked_pids))) if marked_pids else {}
    # Check the start times: the pid of a process marked a moment ago may be another's by now.
    return [pid for pid, ticks in {**descendants, **marked_pids}.items() if kill(pid, ticks)]


@contextmanager
def opened(pid: int) -> Iterator[int]:
    """Yield a descriptor of a process, closed on exec. Raises `OSError` when there is none."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def kill(pid: int, began_ticks: int) -> bool:
    """Send SIGKILL if the process has this start time. False if it does not, or has ended."""
    with suppress(OSError), opened(pid) as descriptor:
        if is_alive(pid, began_ticks):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
    return False


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Wait for processes to end; returns those still alive at the timeout (seconds)."""
    until = time.monotonic() + seconds
    alive = []
    for pid in pids:
        with suppress(OSError), opened(pid) as descriptor:
            if not has_ended(descriptor, max(0.0, until - time.monotonic())):
                alive.append(pid)
    return alive


def has_ended(descriptor: int, seconds: float = 0.0) -> bool:
    """True if the process of a descriptor ends within this time."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(1000 * seconds))


def _descendants(pids: list[int]) -> Iterator[tuple[int, int]]:
    """Yield descendants of processes as (pid, start time); never this process, nor those
    themselves."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                fields = _fields(int(entry.name))
                children.setdefault(int(fields[1]), []).append((int(entry.name), int(fields[19])))
    waiting = list(pids)
    while waiting:
        for pid, ticks in children.pop(waiting.pop(), []):
            if pid not in pids:
                waiting.append(pid)
                yield pid, ticks


def _is_marked(pid: int, entry_text: bytes) -> bool:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
        until = time.monotonic() + EXEC_S
        while not environment and _begins_a_program(pid) and time.monotonic() < until:
            time.sleep(0.001)
            environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return entry_text in environment.split(b"\0")


def _begins_a_program(pid: int) -> bool:
    """True if a process without an environment may be within `exec`: no kernel thread, not
    ended."""
    fields = _fields(pid)
    return fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def _fields(pid: int) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` after the name, the state first."""
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
