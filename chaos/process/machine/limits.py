"""Limits on real processes: slow disk, little memory, little CPU, frozen. Control groups version 1.

Each needs root and its controller; what is missing raises `LimitError` with the reason. The groups
are made below a controller's root, on record of the run. A disk's limit stands in the root group
and counts for everybody, since version 1 charges write-back to kernel threads there; its device is
a volume's own, so it slows that volume alone (chaos.md 3.2 no. 10, 11, 12b).
"""

import time
from pathlib import Path
from typing import Final

from rocketbed.chaos.host.closing import Closing
from rocketbed.chaos.host.janitor.cleaners import FREEZER, members, remove_cgroup, remove_throttle
from rocketbed.chaos.host.janitor.record import Ledger
from rocketbed.chaos.process.disk.volume import Volume
from rocketbed.wire.errors import RocketbedError

ROOT: Final = Path("/sys/fs/cgroup")
BLKIO: Final = ROOT / "blkio"
CPU_PERIOD_US: Final = 20_000
"""Shorter than the kernel's default of 100 ms: a process at 10 % pauses 18 ms, not 90."""
FREEZE_S: Final = 5.0
"""A group freezes once its processes have left the kernel."""


class LimitError(RocketbedError):
    """A limit this machine cannot set; the message says why."""


class Group(Closing):
    """A control group of one controller, until it is closed."""

    def __init__(self, controller: str, name: str, *, run: Ledger) -> None:
        """Make it; `controller` is `memory`, `cpu` or `freezer`. Raises `LimitError`."""
        root = ROOT / controller
        if not (root / "cgroup.procs").exists():
            raise LimitError(f"no control groups (version 1) at {root}")
        self.path = root / f"rocketbed-{run.id}-{name}"
        self._run = run
        self._record = run.note("cgroup", self.path)
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as exc:
            raise LimitError(f"control group {self.path}: {exc}; it needs root") from exc

    def add(self, pid: int) -> None:
        """Put a process into the group, and with it what it starts later."""
        self._set("cgroup.procs", str(pid))

    def close(self) -> None:
        """Move its processes back to the controller's root and remove it."""
        for pid in members(self.path):
            try:
                (self.path.parent / "cgroup.procs").write_text(str(pid))
            except ProcessLookupError:
                continue
        remove_cgroup(str(self.path))
        self._run.forget(self._record)

    def _set(self, name: str, value: str) -> None:
        try:
            (self.path / name).write_text(value)
        except OSError as exc:
            raise LimitError(f"{self.path / name} rejects {value!r}: {exc}") from exc

    def _get(self, name: str) -> str:
        return (self.path / name).read_text(encoding="ascii").strip()


class MemoryLimit(Group):
    """Limit memory to this many bytes, page cache included; the kernel kills what needs more."""

    def __init__(self, name: str, *, run: Ledger, limit: int) -> None:
        super().__init__("memory", name, run=run)
        self.limit(limit)

    def limit(self, size: int) -> None:
        """Change the limit, bytes. Raises `LimitError` when it is below what is in use."""
        self._set("memory.limit_in_bytes", str(size))

    def kills(self) -> int:
        """Processes of the group that the kernel has killed for want of memory."""
        fields = dict(line.split() for line in self._get("memory.oom_control").splitlines())
        return int(fields.get("oom_kill", 0))


class CpuLimit(Group):
    def __init__(self, name: str, *, run: Ledger, share: float) -> None:
        super().__init__("cpu", name, run=run)
        self.limit(share)

    def limit(self, share: float | None) -> None:
        """Change the share (0.1 is a tenth of one CPU); None lifts it. Raises `LimitError`."""
        if share is not None and share <= 0.0:
            raise LimitError(f"a CPU share must be positive, not {share}")
        quota = -1 if share is None else max(1000, round(CPU_PERIOD_US * share))
        self._set("cpu.cfs_period_us", str(CPU_PERIOD_US))
        self._set("cpu.cfs_quota_us", str(quota))


class Freezer(Group):
    """Processes that stand still together and cannot tell, not even by SIGCONT."""

    def __init__(self, name: str, *, run: Ledger) -> None:
        super().__init__("freezer", name, run=run)

    def freeze(self) -> None:
        """Freeze; returns once all of them stand still. Raises `LimitError` after 5 s."""
        self._set(FREEZER, "FROZEN")
        until = time.monotonic() + FREEZE_S
        while self._get(FREEZER) != "FROZEN":
            if time.monotonic() >= until:
                self.thaw()
                raise LimitError(f"{self.path} does not freeze; a process in it hangs on a device")
            time.sleep(0.001)

    def thaw(self) -> None:
        self._set(FREEZER, "THAWED")

    def close(self) -> None:
        self.thaw()
        super().close()


class DiskLimit(Closing):
    """A volume whose device is limited in bytes written per second."""

    def __init__(self, volume: Volume, *, run: Ledger, write_bytes_per_s: int) -> None:
        """Set it. Raises `LimitError`."""
        self._device = volume.device_numbers
        self._run = run
        self._record = run.note("throttle", self._device)
        path = BLKIO / "blkio.throttle.write_bps_device"
        if not path.exists():
            raise LimitError(f"no throttling of devices: {path} is missing")
        try:
            path.write_text(f"{self._device} {write_bytes_per_s}")
        except OSError as exc:
            raise LimitError(f"{path} rejects {write_bytes_per_s}: {exc}; it needs root") from exc

    def close(self) -> None:
        remove_throttle(self._device)
        self._run.forget(self._record)
