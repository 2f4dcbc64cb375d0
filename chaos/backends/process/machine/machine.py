"""The machine of one node: the surroundings of its process, and all that this system can do to
them.

A plain one is a directory, without faults of its own. If a run wants more, it has parts that may
each be missing: a volume (power cut, full disk), a preloaded library (disk faults, crash points,
the trace of flushes), a movable clock, a limited processor. `lacks` says what is missing, with the
reason, before a run begins.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal, TypeVar

import trio

from rocketbed.chaos.backends.at_rest import DirectoryFiles, inflict
from rocketbed.chaos.backends.process.disk.faults import DiskFaults, join_environments
from rocketbed.chaos.backends.process.disk.format import DiskRule, FlushRecord
from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.chaos.backends.process.machine.clock import ClockFaults
from rocketbed.chaos.backends.process.machine.limits import CpuLimit
from rocketbed.chaos.evidence.trace import NodeTrace
from rocketbed.chaos.plan.damage import Damage, Hit
from rocketbed.chaos.run.api import DiskFault
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.host.marks import Marks

T = TypeVar("T")

COMMIT_S: Final = 300
"""ext4's commit interval on a node's volume: within a run nothing becomes durable without a
sync."""
EVERYWHERE: Final = ("", "proc.pause", "proc.crash.mark")
"""Capabilities for which a plain directory is enough."""
STANDS_ON: Final = {"proc.crash.event": "disk.faults", "proc.crash.power": "disk.powercut"}
WATCHED: Final = {"disk.powercut", "disk.faults", *STANDS_ON}
"""Capabilities that need, or profit from, a library below the node that sees its disk calls."""
COPY: Final = ("cp", "--recursive", "--preserve=mode,timestamps", "--sparse=always", "-T", "--")


class Machine:
    """A node's machine. `close` removes what was made for it."""

    def __init__(
        self,
        directory: Path,
        seed: str,
        run: Ledger | None = None,
        capabilities: Sequence[str] = (),
        *,
        wall_rate: int = 1,
    ) -> None:
        """`directory` will hold the store. With `run`, the `capabilities` get their parts, as
        far as they are available. `wall_rate` as in `Background`, for a clock that can be moved."""
        self.directory = directory
        self.marks = Marks(directory)
        self.volume: Volume | None = None
        self.faults: DiskFaults | None = None
        self.clock: ClockFaults | None = None
        self._random = Random(seed)
        self._run = run if capabilities else None
        self._missing: dict[str, str] = {}
        self._limit: CpuLimit | None = None
        self._rules: list[DiskRule] = []
        self._crash: list[DiskRule] = []
        if self._run is not None:
            directory.mkdir(parents=True, exist_ok=True)
            self._make_parts(self._run, capabilities, wall_rate)

    def _make_parts(self, run: Ledger, capabilities: Sequence[str], wall_rate: int) -> None:
        own = self.directory
        if {"disk.powercut", "proc.crash.power"}.intersection(capabilities):
            self.volume = self._try(
                "disk.powercut", lambda: Volume.create(own, run=run, commit_s=COMMIT_S)
            )
        if WATCHED.intersection(capabilities):
            self.faults = self._try(
                "disk.faults", lambda: DiskFaults(own / "faults", root=self.store.parent)
            )
        if "clock.jump" in capabilities:
            self.clock = self._try(
                "clock.jump", lambda: ClockFaults(own / "clock", run=run, rate=wall_rate)
            )

    def _try(self, capability: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except (HostError, OSError) as error:
            self._missing[capability] = str(error)
            return None

    @property
    def store(self) -> Path:
        """The store directory, in RocketMQ's layout."""
        return (self.directory if self.volume is None else self.volume.path) / "store"

    def lacks(self, capability: str) -> str | None:
        """Return why it lacks a capability; None if it does not."""
        parts = {
            "proc.cpu": self._run,
            "disk.powercut": self.volume,
            "disk.faults": self.faults,
            "proc.crash.event": self.faults,
            "proc.crash.power": self.volume,
            "clock.jump": self.clock,
        }
        if capability in EVERYWHERE or parts.get(capability) is not None:
            return None
        if self._run is None:
            return f"this run's nodes use plain directories: {capability} needs more"
        missing = STANDS_ON.get(capability, capability)
        return self._missing.get(missing, f"{capability} is not available on real processes")

    def environment(self) -> Mapping[str, str]:
        parts = (self._run, self.marks, self.faults, self.clock)
        return join_environments(*(part.environment() for part in parts if part is not None))

    def started(self, pid: int) -> None:
        if self.clock is not None:
            self.clock.attach(pid)

    # --- power

    def power_cut(self) -> None:
        if self.volume is None:
            raise HostError(str(self.lacks("disk.powercut")))
        self.volume.power_cut()

    async def remount(self) -> None:
        """Remount the disk after a cut; the process has ended."""
        if self.volume is not None:
            await trio.to_thread.run_sync(self.volume.remount)

    # --- faults

    def crash_at(self, event: int | None, mark: str | None = None) -> None:
        """Let the process die at its n-th event of the disk from now, or at a mark; with neither,
        disarm."""
        self.marks.crash_at(mark)
        self._crash = []
        if event is not None:
            self._crash = [DiskRule(operation="*", effect="crash", skip=event - 1, times=1)]
        self._set_rules()

    def set_faults(self, faults: Sequence[DiskFault]) -> None:
        if self.volume is not None:
            self.volume.free()
        self._rules = []
        for fault in faults:
            if fault.kind == "full" and self.volume is not None:
                self.volume.fill(leave=fault.after)
            else:
                self._rules += _rules(fault)
        self._set_rules()

    def _set_rules(self) -> None:
        if self.faults is not None:
            self.faults.set_rules([*self._crash, *self._rules])
        elif self._crash or self._rules:
            raise HostError(str(self.lacks("disk.faults")))

    def jump_clock(self, seconds: float) -> None:
        if self.clock is None:
            raise HostError(str(self.lacks("clock.jump")))
        self.clock.jump(seconds)

    def limit_cpu(self, pid: int, slowness: float) -> None:
        """Limit it to 1 / `slowness` of a processor; 1 removes the limit."""
        if self._run is None:
            if slowness != 1.0:
                raise HostError(str(self.lacks("proc.cpu")))
            return
        if self._limit is None:
            self._limit = CpuLimit(self.directory.name, run=self._run, share=1.0 / slowness)
        self._limit.limit(None if slowness == 1.0 else 1.0 / slowness)
        self._limit.add(pid)

    def damage(self, damage: Damage) -> Hit:
        """Damage the store, whose process has ended. Return what was hit."""
        return inflict(DirectoryFiles(self.store), damage, self._random)

    # --- the end

    async def wipe(self) -> None:
        await trio.to_thread.run_sync(lambda: shutil.rmtree(self.store, ignore_errors=True))

    def copy_store(self, target: Path) -> None:
        """Copy the store without holes. Raises `FileNotFoundError` without a store."""
        if not self.store.exists():
            raise FileNotFoundError(self.store)
        target.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([*COPY, self.store, target], stderr=subprocess.PIPE, check=False)
        if done.returncode:
            raise OSError(os.fsdecode(done.stderr).strip())

    def read_trace(self, trace: NodeTrace, began_ns: int) -> None:
        """Add the ends that syncs made durable, as seen by the library below the node.

        Times are counted from `began_ns` (monotonic).
        """
        if self.faults is not None:
            trace.complete = False
            _follow_flushes(self.faults.flush_trace(), trace, began_ns)

    async def close(self) -> None:
        if self._limit is not None:
            self._limit.close()
        if self.clock is not None:
            self.clock.close()
        if self.volume is not None:
            await trio.to_thread.run_sync(self.volume.destroy)


def _rules(fault: DiskFault) -> list[DiskRule]:
    times = 1 if fault.once else None
    delay_ms = int(fault.seconds * 1000)
    match fault.kind:
        case "slow-fsync" | "hang":
            return [DiskRule(operation="sync", effect="delay", delay_ms=delay_ms, times=times)]
        case "eio-fsync":
            return [DiskRule(operation="sync", effect="error", error=errno.EIO, times=times)]
        case "eio-write" | "eio-read":
            operation: Literal["write", "read"] = "write" if fault.kind == "eio-write" else "read"
            return [DiskRule(operation=operation, effect="error", error=errno.EIO, times=times)]
        case "lost-fsync":
            return [DiskRule(operation="sync", effect="lose", times=times)]
        case "full":
            return [
                DiskRule(operation="write", error=errno.ENOSPC, after_bytes=max(fault.after, 1)),
                DiskRule(operation="allocate", error=errno.ENOSPC),
            ]
        case "read-only":
            return [DiskRule(operation="*", effect="error", error=errno.EROFS)]
        case "no-descriptors":
            raise HostError("disk.descriptors is not available on real processes")


def _follow_flushes(records: Sequence[FlushRecord], trace: NodeTrace, began_ns: int) -> None:
    """Add what completed syncs of the commit log made durable, file by file."""
    durable: dict[int, int] = {}
    for record in records:
        name = os.path.basename(record.path)
        if record.kind != "file" or "/commitlog/" not in record.path or not name.isdigit():
            continue
        start = int(name)
        durable[start] = max(durable.get(start, 0), record.end)
        end = max(begin + size for begin, size in durable.items())
        trace.add(record.time_ns - began_ns, end, end)
