"""A limit on the processor of a real process, by a control group. Control groups version 1.

It needs root and the controller; otherwise it raises a `HostError` with the reason. A group is made
below its controller's root, on record of the run.
"""

from pathlib import Path
from typing import Final

from rocketbed.host.closing import Closing
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.cleaners import members, remove_cgroup
from rocketbed.host.janitor.record import Ledger

ROOT: Final = Path("/sys/fs/cgroup")
CPU_PERIOD_US: Final = 20_000
"""Shorter than the kernel's default of 100 ms: a process at 10 % pauses 18 ms, not 90."""


class Group(Closing):
    """A control group of one controller, until it is closed."""

    def __init__(self, controller: str, name: str, *, run: Ledger) -> None:
        """Create it. Raises `HostError`."""
        root = ROOT / controller
        if not (root / "cgroup.procs").exists():
            raise HostError(f"no control groups (version 1) at {root}")
        self.path = root / f"rocketbed-{run.id}-{name}"
        self._run = run
        self._record = run.note("cgroup", self.path)
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as exc:
            raise HostError(f"control group {self.path}: {exc}; it needs root") from exc

    def add(self, pid: int) -> None:
        """Put a process, with its future children, into the group."""
        self.set("cgroup.procs", str(pid))

    def close(self) -> None:
        """Move its processes back to the controller's root and remove it."""
        for pid in members(self.path):
            try:
                (self.path.parent / "cgroup.procs").write_text(str(pid))
            except ProcessLookupError:
                continue
        remove_cgroup(str(self.path))
        self._run.forget(self._record)

    def set(self, name: str, value: str) -> None:
        try:
            (self.path / name).write_text(value)
        except OSError as exc:
            raise HostError(f"{self.path / name} rejects {value!r}: {exc}") from exc


class CpuLimit(Group):
    def __init__(self, name: str, *, run: Ledger, share: float) -> None:
        super().__init__("cpu", name, run=run)
        self.limit(share)

    def limit(self, share: float | None) -> None:
        """Change the share (0.1 is a tenth of one CPU); None removes the limit. Raises
        `HostError`."""
        if share is not None and share <= 0.0:
            raise HostError(f"a CPU share must be positive, not {share}")
        quota = -1 if share is None else max(1000, round(CPU_PERIOD_US * share))
        self.set("cpu.cfs_period_us", str(CPU_PERIOD_US))
        self.set("cpu.cfs_quota_us", str(quota))
