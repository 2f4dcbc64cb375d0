"""The machine of one node with all that this system can do to it.

Composed of parts that may each be missing: a volume (power cut, full disk), a preloaded library
(disk faults, crash points, the trace of flushes), a movable clock, a limited processor. What is
missing is said by `lacks`, with the reason, before a run begins.
"""

import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import trio

from rocketbed.chaos.host.janitor.record import Ledger
from rocketbed.chaos.process.disk.faults import (
    DiskFaultError,
    DiskFaults,
    DiskRule,
    FlushRecord,
    join_environments,
)
from rocketbed.chaos.process.disk.volume import Volume, VolumeError
from rocketbed.chaos.process.machine.clock import ClockFaultError, ClockFaults
from rocketbed.chaos.process.machine.limits import CpuLimit, LimitError
from rocketbed.chaos.process.machine.plain import PlainMachine, copy_sparse
from rocketbed.chaos.trace import NodeTrace
from rocketbed.chaos.trial.api import BackendError, DiskFault

T = TypeVar("T")

COMMIT_S: Final = 300
"""ext4's commit interval on a node's volume: nothing becomes durable by itself within a run."""
STANDS_ON: Final = {"proc.crash.event": "disk.faults", "proc.crash.power": "disk.powercut"}
WATCHED: Final = {"disk.powercut", "disk.faults", *STANDS_ON}
"""Capabilities that take, or profit from, a library below the node that sees its disk calls."""


class RealMachine(PlainMachine):
    """A node's machine. `open` makes it, `close` takes it away."""

    def __init__(self, directory: Path, seed: str, run: Ledger) -> None:
        super().__init__(directory, seed)
        self.volume: Volume | None = None
        self.faults: DiskFaults | None = None
        self.clock: ClockFaults | None = None
        self._run = run
        self._missing: dict[str, str] = {}
        self._limit: CpuLimit | None = None
        self._rules: list[DiskRule] = []
        self._crash: list[DiskRule] = []

    @classmethod
    def open(cls, directory: Path, seed: str, run: Ledger, wanted: Sequence[str]) -> "RealMachine":
        """Make a machine with the parts that the capabilities `wanted` ask for."""
        machine = cls(directory, seed, run)
        directory.mkdir(parents=True, exist_ok=True)
        if {"disk.powercut", "proc.crash.power"}.intersection(wanted):
            made = machine._try(
                "disk.powercut", lambda: Volume.create(directory, run=run, commit_s=COMMIT_S)
            )
            machine.volume = made
        if WATCHED.intersection(wanted):
            machine.faults = machine._try(
                "disk.faults", lambda: DiskFaults(directory / "faults", root=machine.store.parent)
            )
        if "clock.jump" in wanted:
            machine.clock = machine._try(
                "clock.jump", lambda: ClockFaults(directory / "clock", run=run)
            )
        return machine

    @property
    def store(self) -> Path:
        parent = self.directory if self.volume is None else self.volume.path
        return parent / "store"

    def lacks(self, capability: str) -> str | None:
        """Why it cannot do something."""
        present = {
            "": True,
            "proc.pause": True,
            "proc.cpu": True,
            "proc.crash.mark": True,
            "disk.powercut": self.volume is not None,
            "disk.faults": self.faults is not None,
            "proc.crash.event": self.faults is not None,
            "proc.crash.power": self.volume is not None,
            "clock.jump": self.clock is not None,
        }
        if present.get(capability):
            return None
        missing = STANDS_ON.get(capability, capability)
        return self._missing.get(missing, f"{capability} is not available on real processes")

    def environment(self) -> Mapping[str, str]:
        parts = [part.environment() for part in (self.faults, self.clock) if part is not None]
        return join_environments(self._run.environment(), self.marks.environment(), *parts)

    def started(self, pid: int) -> None:
        if self.clock is not None:
            self.clock.attach(pid)

    # --- power

    def power_cut(self) -> None:
        """Let nothing more reach the disk."""
        if self.volume is None:
            raise BackendError(str(self.lacks("disk.powercut")))
        self.volume.power_cut()

    async def remount(self) -> None:
        """Bring the disk back; the process has ended."""
        if self.volume is not None:
            await trio.to_thread.run_sync(self.volume.remount)

    # --- faults

    def crash_at(self, event: int | None, mark: str | None = None) -> None:
        """Die at the n-th event of the disk from now, or at a mark."""
        self.marks.crash_at(mark)
        self._crash = []
        if event is not None:
            self._crash = [DiskRule(operation="*", effect="crash", skip=event - 1, times=1)]
        self._set_rules()

    def set_faults(self, faults: Sequence[DiskFault]) -> None:
        """These and no others."""
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
            raise BackendError(str(self.lacks("disk.faults")))

    def jump_clock(self, seconds: float) -> None:
        if self.clock is None:
            raise BackendError(str(self.lacks("clock.jump")))
        self.clock.jump(seconds)

    def limit_cpu(self, pid: int, slowness: float) -> None:
        try:
            if self._limit is None:
                name = self.directory.name
                self._limit = CpuLimit(name, run=self._run, share=1.0 / slowness)
            self._limit.limit(None if slowness == 1.0 else 1.0 / slowness)
            self._limit.add(pid)
        except LimitError as error:
            raise BackendError(str(error)) from error

    # --- the end

    async def wipe(self) -> None:
        await trio.to_thread.run_sync(lambda: shutil.rmtree(self.store, ignore_errors=True))

    def copy_store(self, target: Path) -> None:
        """Copy the store off the volume."""
        if not self.store.exists():
            raise FileNotFoundError(self.store)
        shutil.copytree(self.store, target, copy_function=copy_sparse, dirs_exist_ok=True)

    def read_trace(self, trace: NodeTrace, began_ns: int) -> None:
        """The ends that syncs made durable, as the library below the node saw them."""
        if self.faults is not None:
            trace.complete = False
            follow_flushes(self.faults.flush_trace(), trace, began_ns)

    async def close(self) -> None:
        if self._limit is not None:
            self._limit.remove()
        if self.clock is not None:
            self.clock.close()
        if self.faults is not None:
            self.faults.close()
        if self.volume is not None:
            await trio.to_thread.run_sync(self.volume.destroy)

    def _try(self, capability: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except (VolumeError, DiskFaultError, ClockFaultError, OSError) as error:
            self._missing[capability] = str(error)
            return None


def _rules(fault: DiskFault) -> list[DiskRule]:
    times = 1 if fault.once else None
    delay_ms = int(fault.seconds * 1000)
    match fault.kind:
        case "slow-fsync" | "hang":
            return [DiskRule(operation="sync", effect="delay", delay_ms=delay_ms, times=times)]
        case "eio-fsync":
            return [DiskRule(operation="sync", effect="error", error=errno.EIO, times=times)]
        case "eio-write":
            return [DiskRule(operation="write", effect="error", error=errno.EIO, times=times)]
        case "lost-fsync":
            return [DiskRule(operation="sync", effect="lose", times=times)]
        case "full":
            return [
                DiskRule(operation="write", error=errno.ENOSPC, after_bytes=max(fault.after, 1)),
                DiskRule(operation="allocate", error=errno.ENOSPC),
            ]
        case "read-only":
            return [DiskRule(operation="*", effect="error", error=errno.EROFS)]


def follow_flushes(records: Sequence[FlushRecord], trace: NodeTrace, began_ns: int) -> None:
    """Add what completed syncs of the commit log made durable, file by file, to a trace."""
    durable: dict[int, int] = {}
    for record in records:
        name = os.path.basename(record.path)
        if record.kind != "file" or "/commitlog/" not in record.path or not name.isdigit():
            continue
        start = int(name)
        durable[start] = max(durable.get(start, 0), record.end)
        end = max(begin + size for begin, size in durable.items())
        trace.add(record.time_ns - began_ns, end, end)


def make_machine(
    directory: Path, seed: str, run: Ledger | None, wanted: Sequence[str]
) -> PlainMachine:
    """A plain machine, or one with the parts that are wanted and can be had."""
    if run is None or not wanted:
        return PlainMachine(directory, seed)
    return RealMachine.open(directory, seed, run, wanted)
