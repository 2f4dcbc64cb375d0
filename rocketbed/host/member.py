"""A process of a local cluster, started detached and found again by its pid file.

A pid alone may belong to another process by now. So the file also has the process's start time, and
a signal goes through a descriptor (`pidfd`) that was opened before the two were compared: it
reaches the member's process or none.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import trio

from rocketbed.host.files import write_whole
from rocketbed.host.janitor import processes
from rocketbed.wire.errors import RocketbedError

LOG: Final = "log"
"""File of a program's output, in its own directory."""
LOG_TAIL = 2000
"""Bytes of a log that an error shows."""


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this program started, ended or not, by pid. Not in `ManagedProcess`, since a
cluster may outlive the object that started it, and another object may see its end."""


class ProcessError(RocketbedError):
    """A process did not start, or is not the expected one; the message names its log."""


class Launched(Protocol):
    """A program on a machine of a cluster, for one life; signals and exit codes are POSIX's."""

    @property
    def log_path(self) -> Path:
        """File of its output, and that of earlier programs of this name."""

    async def launch(self) -> int:
        """Start it; return its pid on this system. Raises `RocketbedError`."""

    def pid(self) -> int | None:
        """Pid while it runs, else None."""

    async def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when it does not run."""

    async def wait_ended(self) -> int | None:
        """Wait for its end; return its exit code (negative: the signal)."""


class ManagedProcess:
    """A name, a command, a directory; and the process while it runs."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        """`directory` gets `pid` and `log`; it is the process's working directory."""
        self.name = name
        self.command = list(command)
        self.directory = directory
        self._pid: int | None = None
        """Pid of the last process seen."""

    @property
    def pid_path(self) -> Path:
        """File of two lines: the pid, and the start time in kernel ticks."""
        return self.directory / "pid"

    @property
    def log_path(self) -> Path:
        """File of the output of all its starts; older lines may be in `log.1`."""
        return self.directory / LOG

    def start(self) -> int:
        """Start it detached from the terminal; return its pid. Raises `ProcessError` if it runs."""
        running = self.pid()
        if running is not None:
            raise ProcessError(f"{self.name} is already running as process {running}")
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            child = subprocess.Popen(
                self.command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pid = self._pid = child.pid
        _children[pid] = child
        write_whole(self.pid_path, f"{pid}\n{processes.began(pid)}\n")
        return pid

    def pid(self) -> int | None:
        """Return the pid of the running process, None when there is none."""
        with self._opened() as descriptor:
            return None if descriptor is None else self._pid

    async def launch(self) -> int:
        return self.start()

    async def send(self, number: signal.Signals) -> bool:
        return self.signal(number)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process does not run."""
        with self._opened() as descriptor, suppress(ProcessLookupError):
            if descriptor is not None:
                signal.pidfd_send_signal(descriptor, number)
                return True
        return False

    async def wait_ended(self) -> int | None:
        """Wait until the process has ended.

        Returns its exit code (negative: the signal), or None when it was not started by this
        program.
        """
        with self._opened() as descriptor:
            if descriptor is not None:
                await trio.lowlevel.wait_readable(descriptor)
        with suppress(OSError, ValueError):
            if self._pid is None or self._stored()[0] == self._pid:
                self.pid_path.unlink()  # unless it is that of a later start
        child = None if self._pid is None else _children.get(self._pid)
        return None if child is None else child.wait()

    def log_tail(self) -> str:
        """Return the end of the log; empty when there is none."""
        data = self.log_path.read_bytes() if self.log_path.exists() else b""
        return data[-LOG_TAIL:].decode("utf-8", "replace").strip()

    def _stored(self) -> tuple[int, int]:
        pid, began = self.pid_path.read_text(encoding="ascii").split()
        return int(pid), int(began)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Yield a descriptor of the process, if it is still the one that was started."""
        with ExitStack() as stack:
            opened = None
            with suppress(OSError, ValueError):
                pid, began = self._stored()
                descriptor = stack.enter_context(processes.opened(pid))
                # After opening the descriptor: the pid cannot have passed to another process in
                # between.
                if processes.is_alive(pid, began):
                    self._pid, opened = pid, descriptor
            yield opened


def rocketbed_command(*arguments: str) -> list[str]:
    """Return the command line of a rocketbed program, with Python's safe path."""
    return [sys.executable, "-P", "-m", "rocketbed", *arguments]
