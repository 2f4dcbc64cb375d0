"""Limits that a measure sets: little memory, a slow disk. Control groups version 1, root.

A disk's limit is in the root group and counts for all processes, since version 1 charges write-back
to kernel threads there; its device is a volume's own, so it slows that volume alone.
"""

import os
from typing import Final

from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.chaos.backends.process.machine.limits import ROOT, Group
from rocketbed.host.closing import Closing
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.cleaners import remove_throttle
from rocketbed.host.janitor.record import Ledger

THROTTLE: Final = ROOT / "blkio" / "blkio.throttle.write_bps_device"


class MemoryLimit(Group):
    """Limit memory to this many bytes, page cache included; the kernel kills a process that needs
    more."""

    def __init__(self, name: str, *, run: Ledger, limit: int) -> None:
        """Set the limit. Raises `HostError`."""
        super().__init__("memory", name, run=run)
        self.set("memory.limit_in_bytes", str(limit))


class DiskLimit(Closing):
    """A volume whose device is limited in bytes written per second."""

    def __init__(self, volume: Volume, *, run: Ledger, write_bytes_per_s: int) -> None:
        """Set the limit. Raises `HostError`."""
        numbers = os.stat(volume.device).st_rdev
        self.device = f"{os.major(numbers)}:{os.minor(numbers)}"
        """Device as control groups name it."""
        self._run = run
        self._record = run.note("throttle", self.device)
        if not THROTTLE.exists():
            raise HostError(f"no throttling of devices: {THROTTLE} is missing")
        try:
            THROTTLE.write_text(f"{self.device} {write_bytes_per_s}")
        except OSError as exc:
            raise HostError(f"{THROTTLE} rejects {write_bytes_per_s}: {exc}") from exc

    def close(self) -> None:
        remove_throttle(self.device)
        self._run.forget(self._record)
