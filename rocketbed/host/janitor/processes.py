"""Processes by pid, told from others that got the same pid later. Standard library only.

A pid is compared together with the time its process began, and signals go through a descriptor
opened before that comparison, so that they reach the process that was meant or nobody.
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
"""Environment variable that names the run a process belongs to; its children inherit it."""
PROC: Final = Path("/proc")
EXEC_S: Final = 0.05
"""How long a process may seem to have no environment: it is just beginning another program."""
KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD of linux/sched.h."""


def began(pid: int) -> int:
    """When a process began, kernel ticks since boot. Raises `OSError` when there is none."""
    return int(_fields(pid)[19])


def is_alive(pid: int, began_ticks: int) -> bool:
    """Whether this very process runs still; one that ended and was not waited for does not."""
    try:
        fields = _fields(pid)
    except OSError:
        return False
    return int(fields[19]) == began_ticks and fields[0] not in "ZX"


def marked(run_id: str) -> Iterator[int]:
    """Processes whose environment says that they belong to a run; never this one."""
    wanted = f"{MARK}={run_id}".encode()
    own = os.getpid()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != own and _is_marked(int(entry.name), wanted):
            yield int(entry.name)


def kill_marked(run_id: str) -> list[int]:
    """SIGKILL to every process of a run and to what they started; the pids that got one.

    The program of a container has no mark; it is a child of one that has (a shim of the daemon's).
    """
    found = {}
    for pid in marked(run_id):
        with suppress(OSError):
            found[pid] = began(pid)
    below = dict(_below(list(found))) if found else {}
    # By when they began: one that was marked a moment ago may be another program by now.
    return [pid for pid, ticks in {**below, **found}.items() if kill(pid, ticks)]


@contextmanager
def opened(pid: int) -> Iterator[int]:
    """A descriptor of a process, which nobody else gets. Raises `OSError` when there is none."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def kill(pid: int, began_ticks: int) -> bool:
    """SIGKILL, if the process is the one that began then. False when it is not, or is gone."""
    with suppress(OSError), opened(pid) as descriptor:
        if is_alive(pid, began_ticks):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
    return False


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Wait for processes to end; returns those still alive at the timeout (seconds)."""
    until = time.monotonic() + seconds
    left = []
    for pid in pids:
        with suppress(OSError), opened(pid) as descriptor:
            if not has_ended(descriptor, max(0.0, until - time.monotonic())):
                left.append(pid)
    return left


def has_ended(descriptor: int, seconds: float = 0.0) -> bool:
    """Whether the process of a descriptor ends within this time."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(1000 * seconds))


def _below(pids: list[int]) -> Iterator[tuple[int, int]]:
    """Children of processes, and theirs, as (pid, began); never this one, nor those themselves."""
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


def _is_marked(pid: int, wanted: bytes) -> bool:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
        until = time.monotonic() + EXEC_S
        while not environment and _begins_a_program(pid) and time.monotonic() < until:
            time.sleep(0.001)
            environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return wanted in environment.split(b"\0")


def _begins_a_program(pid: int) -> bool:
    """Whether one without an environment may be within `exec`: no kernel thread, not ended."""
    fields = _fields(pid)
    return fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def _fields(pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat` after the name, the state first."""
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
