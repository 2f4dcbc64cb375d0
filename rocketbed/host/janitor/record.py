"""Records of resources that outlive a process, written before they are created, so that none is
left over.

A run owns a directory `<temporary directory>/rocketbed-runs/<run id>`: `owner.json` names the
process it belongs to (pid, start time, boot, pid namespace), `records` has one JSON line for each
mount, loop device, control group, ... created or removed. `sweep` removes the resources of runs
whose owner is dead, and nothing else; it runs at each start of a run and in `rocketbed chaos doctor
--sweep`. A reaper process (`janitor.reaper`) does the same as soon as the owner dies, even by
SIGKILL. Standard library only, so that the reaper process starts fast.
"""

import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, Self

from rocketbed.host.closing import Closing
from rocketbed.host.janitor.cleaners import REMOVERS, faketime_files, victims
from rocketbed.host.janitor.processes import (
    MARK,
    began,
    is_alive,
    kill,
    kill_marked,
    wait_gone,
)

REAPER: Final = "rocketbed.host.janitor.reaper"
OWNER: Final = "owner.json"
RECORDS: Final = "records"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
DIE_S: Final = 5.0
"""Time for killed processes to end, seconds."""


def runs_directory() -> Path:
    return Path(tempfile.gettempdir()) / "rocketbed-runs"


@dataclass(slots=True)
class Swept:
    """Result of cleaning up one run."""

    run_id: str
    removed: list[str] = field(default_factory=list)
    """`kind value` of each resource that existed and was removed."""
    not_removed: list[str] = field(default_factory=list)
    """Resources that could not be removed, with the reason; their records stay for the next
    sweep."""


class Ledger(Closing):
    """A run of a harness: a directory of its own, and records of the resources it creates.

        with Ledger.begin() as run:
            number = run.note("cgroup", path)

    At the end all recorded resources are removed, with the directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """Directory for files of the run; it is removed at the end."""
        self.id = directory.name
        self._records = os.open(
            directory / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._numbers = count(1)
        self._reaper = -1

    @classmethod
    def begin(cls, root: Path | None = None, *, guard: bool = True) -> Self:
        """Begin a run of this process, after a sweep. Raises `OSError`."""
        root = (root or runs_directory()).resolve()
        sweep(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = root / f"{os.getpid()}-{secrets.token_hex(4)}"
        unborn = root / f".{os.getpid()}-{began(os.getpid())}-{secrets.token_hex(4)}"
        reaper = _start_reaper(directory, unborn) if guard else -1
        try:
            # The directory appears together with its owner file.
            unborn.mkdir(mode=0o700)
            owner = {
                "pid": os.getpid(),
                "began": began(os.getpid()),
                "boot": _boot(),
                "pid_namespace": _pid_namespace(),
            }
            (unborn / OWNER).write_text(json.dumps(owner), encoding="ascii")
            (unborn / RECORDS).touch(mode=0o600)
            unborn.rename(directory)
            run = cls(directory)
        except BaseException:
            shutil.rmtree(unborn, ignore_errors=True)
            if reaper >= 0:
                os.close(reaper)
            raise
        run._reaper = reaper
        return run

    def environment(self) -> dict[str, str]:
        """Variables to add to the environment of every process that is started for this run."""
        return {MARK: self.id}

    def note(self, kind: str, value: str | Path) -> int:
        """Record a resource before it is created; return the number to pass to `forget`.

        Kinds are those of `cleaners.REMOVERS`: `mount` (a path), `loop` (an image), `cgroup` (a
        path), `throttle` (major:minor), `netns` (a name), `directory`, `file`.
        """
        if kind not in REMOVERS:
            raise ValueError(f"unknown kind of record {kind}; one of {', '.join(REMOVERS)}")
        number = next(self._numbers)
        self._write({"number": number, "kind": kind, "value": str(value)})
        return number

    def forget(self, number: int) -> None:
        """Record that a resource was removed. After the end of the run this does nothing."""
        if self._records >= 0:
            self._write({"gone": number})

    def close(self) -> Swept:
        """Remove all recorded resources, kill marked processes, dismiss the reaper process."""
        if self._records < 0:
            return Swept(self.id)
        swept = clean(self.directory)
        os.close(self._records)
        self._records = -1
        if self._reaper >= 0:
            os.close(self._reaper)
            self._reaper = -1
        return swept

    def _write(self, row: dict[str, object]) -> None:
        if self._records < 0:
            raise ValueError(f"run {self.id} is over")
        os.write(self._records, json.dumps(row).encode() + b"\n")


def sweep(root: Path | None = None) -> list[Swept]:
    """Clean up after every run whose owner is dead; one entry for each such run."""
    root = (root or runs_directory()).resolve()
    if not root.is_dir():
        return []
    done = []
    for directory in sorted(root.iterdir()):
        if directory.name.startswith("."):
            remove_unborn(directory)
        elif owner_is_dead(directory):
            done.append(clean(directory))
    return done


def owner_is_dead(directory: Path) -> bool:
    """True if a run is a leftover of this system. False in all doubtful cases."""
    try:
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            return False
        owner = json.loads((directory / OWNER).read_text(encoding="ascii"))
        if owner["boot"] != _boot():
            return True
        if owner["pid_namespace"] != _pid_namespace():
            return False
        return not is_alive(owner["pid"], owner["began"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def clean(directory: Path) -> Swept:
    """Remove all recorded resources of a run, then its directory. One process at a time."""
    swept = Swept(directory.name)
    try:
        lock = os.open(directory / RECORDS, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return swept
    try:
        # Owner, reaper process and a sweep may all come here; those that waited find nothing to do.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / RECORDS).exists():
            return swept
        rows = _open_records(directory / RECORDS)
        # Processes first: they keep mounts and control groups busy. Then in reverse order, since a
        # mount needs its loop device, and that its file.
        _end_processes(directory.name, rows, swept)
        for number, kind, value in reversed(rows):
            try:
                if REMOVERS[kind](value):
                    swept.removed.append(f"{kind} {value}")
            except (OSError, ValueError) as error:
                swept.not_removed.append(f"{kind} {value}: {error}")
            else:
                # After the removal: if killed in between, a second try finds nothing, which is
                # harmless. In the other order the resource would be left for good.
                os.write(lock, json.dumps({"gone": number}).encode() + b"\n")
        if not swept.not_removed:
            try:
                REMOVERS["directory"](str(directory))
            except OSError as error:
                swept.not_removed.append(f"directory {directory}: {error}")
    finally:
        os.close(lock)
    return swept


def _end_processes(run_id: str, rows: list[tuple[int, str, str]], swept: Swept) -> None:
    """Kill and wait for everything that belongs to a run."""
    killed: list[int] = []
    for _, kind, value in rows:
        with suppress(OSError, ValueError):
            for pid, ticks in victims(kind, value):
                if pid != os.getpid() and kill(pid, ticks):
                    killed.append(pid)
    while pids := [pid for pid in kill_marked(run_id) if pid not in killed]:
        killed.extend(pids)  # repeat: one of them may have been about to fork
    slow = wait_gone(killed, DIE_S)
    for pid in killed:
        for path in faketime_files(pid):
            path.unlink(missing_ok=True)
    swept.removed.extend(f"process {pid}" for pid in killed if pid not in slow)
    swept.not_removed.extend(f"process {pid}: SIGKILL has no effect" for pid in slow)


def _open_records(path: Path) -> list[tuple[int, str, str]]:
    """Return records of resources that may still exist, oldest first; a torn last line is
    ignored."""
    rows: dict[int, tuple[int, str, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, KeyError):
            row = json.loads(line)
            if "gone" in row:
                rows.pop(row["gone"], None)
            elif row["kind"] in REMOVERS:
                rows[row["number"]] = (row["number"], row["kind"], row["value"])
    return list(rows.values())


def remove_unborn(directory: Path) -> None:
    """Remove a directory whose creator died before it had its name; it has no records yet."""
    pid, _, suffix = directory.name[1:].partition("-")
    ticks = suffix.partition("-")[0]
    with suppress(OSError, ValueError):
        if directory.stat().st_uid == os.geteuid() and not is_alive(int(pid), int(ticks)):
            shutil.rmtree(directory)


def _start_reaper(directory: Path, unborn: Path) -> int:
    """Start the reaper process; return the end of a pipe that must stay open.

    It is started before the directory is created, during which this process may be killed.
    """
    reading, writing = os.pipe()
    try:
        removed = (MARK, "LD_PRELOAD")
        environment = {name: value for name, value in os.environ.items() if name not in removed}
        subprocess.run(
            [sys.executable, "-P", "-m", REAPER, str(directory), str(unborn), str(os.getpid())],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            env=environment,
            check=True,
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return writing


def _boot() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()


def _pid_namespace() -> int:
    return os.stat(PID_NAMESPACE).st_ino
