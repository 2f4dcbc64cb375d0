"""A small ext4 file system of a node's own, whose power can be cut.

It stands on an image file behind a loop device. The cut is ext4's shutdown ioctl without a flush of
its journal: from then on nothing more reaches the device, as if the machine had stopped. Mounting
it again replays the journal as after a real power loss. Real kernel, real journal; what it cannot
do is lose a device's own cache or tear a sector. The kernel's write-back makes old data durable by
itself (a commit every 5 s, pages after 30 s): cut soon after what should be lost.

    volume.power_cut()     # while the node runs: its dying must not write anything
    cluster.kill("b1")
    volume.remount()       # once the process has let go of it

Order and reasons: chaos.md 3.3.
"""

import errno
import os
import subprocess
from pathlib import Path
from typing import Final, Self

from rocketbed.host import loop_device as loop
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.cleaners import remove_mount
from rocketbed.host.janitor.record import Ledger

DEFAULT_SIZE: Final = 256 << 20
"""Bytes. The image is sparse: it takes only what the node has written."""
MKFS: Final = "mkfs.ext4"
FILLER: Final = ".filler"
LET_GO_S: Final = 5.0
"""Time that a killed process may take to close its files."""
FILL_STEP_MIN: Final = 4096


class Volume:
    """File system of one node. Made by `create`; states: mounted, cut, unmounted, destroyed."""

    def __init__(self, run: Ledger, directory: Path, commit_s: int) -> None:
        self.image = directory / "volume.img"
        """The device's content, sparse."""
        self.path = directory / "volume"
        """Its mount point."""
        self.device = ""
        """`/dev/loop<n>`."""
        self._run = run
        self._options = f"commit={commit_s}"
        self._descriptor = -1
        self._records: list[int] = []

    @classmethod
    def create(
        cls, directory: Path, *, run: Ledger, size: int = DEFAULT_SIZE, commit_s: int = 5
    ) -> Self:
        """Make and mount an empty volume below `directory`; everything goes on record of `run`.

        `size` in bytes; `commit_s` is ext4's interval between commits of its journal. Raises
        `HostError`: not root, no loop device, no `mkfs.ext4`.
        """
        volume = cls(run, directory.absolute(), commit_s)
        try:
            volume._create(size)
        except subprocess.CalledProcessError as exc:
            raise HostError(f"mkfs.ext4 failed on {volume.image}: {exc.stderr.strip()}") from exc
        except OSError as exc:
            volume.destroy()
            needs = "root and a loop device"
            if exc.filename == MKFS:
                needs = f"{MKFS}: install e2fsprogs"
            raise HostError(
                f"no loop-mounted ext4 in {directory}: {exc}; it needs {needs}"
            ) from exc
        return volume

    def _create(self, size: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(size)
        command = [MKFS, "-q", "-F", "-E", "nodiscard,root_owner", "-m", "0"]
        subprocess.run([*command, str(self.image)], check=True, capture_output=True, text=True)
        # On record before they exist, so that the janitor removes them after a kill in between.
        self._records.append(self._run.note("file", self.image))
        self._records.append(self._run.note("loop", self.image))
        self._records.append(self._run.note("mount", self.path))
        self.device, self._descriptor = loop.attach(self.image)
        self._mount()

    # --- power

    def power_cut(self) -> None:
        """Stop the device at once. Kill the node next, then `remount`.

        A process that still writes gets EIO. Raises `HostError`.
        """
        # The journal is not flushed: otherwise writes without a sync would survive the cut.
        if not os.path.ismount(self.path):
            raise HostError(f"power cut of {self.path}: it is not mounted")
        try:
            loop.shut_down(self.path)
        except OSError as exc:
            raise HostError(f"power cut of {self.path} failed: {exc}") from exc

    def remount(self, *, timeout_s: float = LET_GO_S) -> None:
        """Unmount and mount again, which replays the journal.

        Waits up to `timeout_s` for killed processes to close their files. Raises `HostError`.
        """
        try:
            loop.unmount(self.path, seconds=timeout_s)
        except OSError as exc:
            hint = "; end the processes that use it first" if exc.errno == errno.EBUSY else ""
            raise HostError(f"{self.path} cannot be unmounted: {exc}{hint}") from exc
        try:
            # If a container had it mounted too, that container's end takes a moment to reach the
            # device; mounted before that, it would be the file system that was cut.
            loop.wait_free(self.device, seconds=LET_GO_S)
            self._mount()
        except OSError as exc:
            raise HostError(f"{self.device} cannot be mounted again: {exc}") from exc

    # --- troubles short of a cut

    def fill(self, *, leave: int = 0) -> int:
        """Take all free space but `leave` bytes with a filler file. Return the filler's size in
        bytes.

        Raises `HostError`.
        """
        try:
            descriptor = os.open(self.path / FILLER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise HostError(f"no filler in {self.path}: {exc}") from exc
        try:
            size = os.fstat(descriptor).st_size
            step = self.free_bytes() - leave
            while step >= FILL_STEP_MIN:
                try:
                    os.posix_fallocate(descriptor, size, step)
                    size += step
                except OSError as exc:
                    if exc.errno != errno.ENOSPC:
                        raise HostError(f"{self.path} cannot be filled: {exc}") from exc
                    # A failed reservation keeps what it got.
                    os.ftruncate(descriptor, size)
                    step //= 2
                else:
                    step = min(step, self.free_bytes() - leave)
            return size
        finally:
            os.close(descriptor)

    def free(self) -> None:
        (self.path / FILLER).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def destroy(self) -> None:
        """Remove mount, device and image. Idempotent."""
        remove_mount(str(self.path))
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self.image.unlink(missing_ok=True)
        for record in reversed(self._records):
            self._run.forget(record)
        self._records.clear()

    def _mount(self) -> None:
        loop.mount(self.device, self.path, loop.MS_NOATIME, self._options)


def check_power_cut(volume: Volume) -> str:
    """Self-test of chaos.md 3.3: after a cut, synced data is there and unsynced data is lost.

    Return an empty string if so, else what was seen instead.
    """
    first, second = volume.path / "self-test-a", volume.path / "self-test-b"
    for path, synced in ((first, True), (second, False)):
        with path.open("wb") as file:
            file.write(b"rocketbed" * 1000)
            file.flush()
            if synced:
                os.fsync(file.fileno())
    volume.power_cut()
    volume.remount()
    survived = first.exists() and first.read_bytes() == b"rocketbed" * 1000
    lost = not second.exists() or second.read_bytes().strip(b"\0") == b""
    for path in (first, second):
        path.unlink(missing_ok=True)
    if not survived:
        return "a synced file did not survive the cut"
    return "" if lost else "a file that was never synced survived the cut"
