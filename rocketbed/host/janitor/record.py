"""What outlives a process is on record before it is made, so that nothing stays behind.

A run owns a directory `<temporary directory>/rocketbed-runs/<run id>`: `owner.json` says which
process (pid, when it began, boot, pid namespace) it belongs to, `records` has one JSON line for
each mount, loop device, control group, ... made or taken away. `sweep` removes what belongs to
runs whose owner is dead, and nothing else; it runs at each start of a run and from
`rocketbed chaos doctor --sweep`. A guardian process (`janitor_guardian`) does the same the moment
the owner dies, by SIGKILL too. Standard library only, so that the guardian starts fast.
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

GUARDIAN: Final = "rocketbed.host.janitor.guardian"
OWNER: Final = "owner.json"
RECORDS: Final = "records"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
DIE_S: Final = 5.0
"""How long killed processes may take to be gone."""


def runs_directory() -> Path:
    return Path(tempfile.gettempdir()) / "rocketbed-runs"


@dataclass(slots=True)
class Swept:
    """What became of one run's leftovers."""

    run_id: str
    removed: list[str] = field(default_factory=list)
    """`kind value` of each thing that was there and is gone now."""
    left: list[str] = field(default_factory=list)
    """What could not be removed, with the reason; its record stays for the next sweep."""


class Ledger(Closing):
    """One run of a harness: a directory of its own, and records of what it makes.

        with Ledger.begin() as run:
            number = run.note("cgroup", path)

    At the end everything still on record is taken away, with the directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """For files of the run; they go with it."""
        self.id = directory.name
        self._records = os.open(
            directory / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._numbers = count(1)
        self._guardian = -1

    @classmethod
    def begin(cls, root: Path | None = None, *, guard: bool = True) -> Self:
        """Begin a run of this process, after a sweep. Raises `OSError`."""
        root = (root or runs_directory()).resolve()
        sweep(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = root / f"{os.getpid()}-{secrets.token_hex(4)}"
        unborn = root / f".{os.getpid()}-{began(os.getpid())}-{secrets.token_hex(4)}"
        guardian = _start_guardian(directory, unborn) if guard else -1
        try:
            # It appears together with its owner.
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
            if guardian >= 0:
                os.close(guardian)
            raise
        run._guardian = guardian
        return run

    def environment(self) -> dict[str, str]:
        """What to add to the environment of every process that is started for this run."""
        return {MARK: self.id}

    def note(self, kind: str, value: str | Path) -> int:
        """Put a thing on record, before it is made; the number that `forget` wants.

        Kinds are those of `janitor_cleaners.REMOVERS`: `mount` (a path), `loop` (an image),
        `cgroup` (a path), `throttle` (major:minor), `netns` (a name), `directory`, `file`.
        """
        if kind not in REMOVERS:
            raise ValueError(f"unknown kind of record {kind}; one of {', '.join(REMOVERS)}")
        number = next(self._numbers)
        self._write({"number": number, "kind": kind, "value": str(value)})
        return number

    def forget(self, number: int) -> None:
        """The thing is gone. After the end of the run it is off the record anyway."""
        if self._records >= 0:
            self._write({"gone": number})

    def close(self) -> Swept:
        """Take away all that is on record, kill what is marked, dismiss the guardian."""
        if self._records < 0:
            return Swept(self.id)
        swept = clean(self.directory)
        os.close(self._records)
        self._records = -1
        if self._guardian >= 0:
            os.close(self._guardian)
            self._guardian = -1
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
    """Whether a run is a leftover of ours. False for all that we cannot be sure about."""
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
    """Take away all that a run has on record, then its directory. One process at a time."""
    swept = Swept(directory.name)
    try:
        lock = os.open(directory / RECORDS, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return swept
    try:
        # The owner, its guardian and a sweep may all come here; who waited finds nothing left.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / RECORDS).exists():
            return swept
        rows = _open_records(directory / RECORDS)
        # Processes first: they keep mounts and control groups busy. Then the newest first, since
        # a mount needs its loop device, and that its file.
        _end_processes(directory.name, rows, swept)
        for number, kind, value in reversed(rows):
            try:
                if REMOVERS[kind](value):
                    swept.removed.append(f"{kind} {value}")
            except (OSError, ValueError) as error:
                swept.left.append(f"{kind} {value}: {error}")
            else:
                # After the removal: killed in between, a second try finds nothing, and that is
                # harmless. The other order would leave it for good.
                os.write(lock, json.dumps({"gone": number}).encode() + b"\n")
        if not swept.left:
            try:
                REMOVERS["directory"](str(directory))
            except OSError as error:
                swept.left.append(f"directory {directory}: {error}")
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
    while more := [pid for pid in kill_marked(run_id) if pid not in killed]:
        killed.extend(more)  # once more: one of them may have been about to fork
    slow = wait_gone(killed, DIE_S)
    for pid in killed:
        for path in faketime_files(pid):
            path.unlink(missing_ok=True)
    swept.removed.extend(f"process {pid}" for pid in killed if pid not in slow)
    swept.left.extend(f"process {pid}: SIGKILL has no effect" for pid in slow)


def _open_records(path: Path) -> list[tuple[int, str, str]]:
    """Records of things that may still be there, oldest first; a torn last line is none."""
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
    """A directory whose maker died before it had its name; nothing was on record yet."""
    pid, _, rest = directory.name[1:].partition("-")
    ticks = rest.partition("-")[0]
    with suppress(OSError, ValueError):
        if directory.stat().st_uid == os.geteuid() and not is_alive(int(pid), int(ticks)):
            shutil.rmtree(directory)


def _start_guardian(directory: Path, unborn: Path) -> int:
    """Start the process that cleans up when we die; the end of a pipe that must stay open.

    It is there before the directory: a process may be killed while it makes it.
    """
    reading, writing = os.pipe()
    try:
        gone = (MARK, "LD_PRELOAD")
        environment = {name: value for name, value in os.environ.items() if name not in gone}
        subprocess.run(
            [sys.executable, "-P", "-m", GUARDIAN, str(directory), str(unborn), str(os.getpid())],
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
