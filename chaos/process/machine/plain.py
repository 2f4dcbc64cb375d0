"""The disk and the limits of one node of a process cluster: what it stands on, and its faults.

A plain machine is a directory. Others are made by `chaos.process.machine.full`, which knows what
this system can do.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from rocketbed.chaos.host.marks import Marks
from rocketbed.chaos.trace import NodeTrace
from rocketbed.chaos.trial.api import BackendError, DiskFault


class PlainMachine:
    """A node's directory, without any way to harm it but by hand."""

    def __init__(self, directory: Path, seed: str) -> None:
        """`directory` will hold the store."""
        self.directory = directory
        self.marks = Marks(directory)
        self._random = Random(seed)

    @property
    def store(self) -> Path:
        """The store directory, RocketMQ's layout."""
        return self.directory / "store"

    def lacks(self, capability: str) -> str | None:
        """Why it cannot do something; None when it can."""
        if capability in ("", "proc.pause", "proc.crash.mark"):
            return None
        return f"this run's nodes use plain directories: {capability} needs more"

    def environment(self) -> Mapping[str, str]:
        """Variables of the node's process."""
        return self.marks.environment()

    def started(self, pid: int) -> None:
        """Its process runs."""

    def power_cut(self) -> None:
        """Let nothing more reach the disk."""
        raise BackendError("a plain directory has no power to be cut")

    async def remount(self) -> None:
        """Bring the disk back after a cut; the process is gone."""

    def crash_at(self, event: int | None, mark: str | None = None) -> None:
        """Let the process die at its n-th event of the disk from now, or at a mark; or not."""
        if event is not None:
            raise BackendError("nothing sees the disk events of this node")
        self.marks.crash_at(mark)

    def set_faults(self, faults: Sequence[DiskFault]) -> None:
        """These and no others."""
        if faults:
            raise BackendError("a plain directory has no disk faults")

    def jump_clock(self, seconds: float) -> None:
        raise BackendError("this node's clock cannot be moved")

    def limit_cpu(self, pid: int, slowness: float) -> None:
        """Give it 1 / `slowness` of a processor; 1 takes the limit away."""
        if slowness != 1.0:
            raise BackendError("this node's processor cannot be limited")

    async def wipe(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)

    def bit_flip(self) -> str:
        """Flip one bit of the written part of the commit log; what was hit."""
        segments = sorted((self.store / "commitlog").glob("[0-9]*"))
        if not segments:
            return "no change: the log is empty"
        path = self._random.choice(segments)
        data = path.read_bytes().rstrip(b"\0")
        if not data:
            return "no change: the log is empty"
        offset = self._random.randrange(len(data))
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0] ^ (1 << self._random.randrange(8))
            file.seek(offset)
            file.write(bytes([byte]))
        return f"log offset {int(path.name) + offset}"

    def copy_store(self, target: Path) -> None:
        """Copy the store, holes left out. Raises `FileNotFoundError` when there is none."""
        if not self.store.exists():
            raise FileNotFoundError(self.store)
        shutil.copytree(self.store, target, copy_function=copy_sparse, dirs_exist_ok=True)

    def read_trace(self, trace: NodeTrace, began_ns: int) -> None:
        """Add what was seen of the log's ends; times counted from `began_ns` (monotonic)."""

    async def close(self) -> None:
        """Take away what was made for it."""


def copy_sparse(source: str, target: str) -> str:
    """Copy a file's data and leave its holes holes."""
    with open(source, "rb") as read, open(target, "wb") as write:
        size = os.fstat(read.fileno()).st_size
        position = 0
        while position < size:
            try:
                start = os.lseek(read.fileno(), position, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(read.fileno(), start, os.SEEK_HOLE)
            os.lseek(read.fileno(), start, os.SEEK_SET)
            write.seek(start)
            left = end - start
            while left:
                data = read.read(min(left, 1 << 20))
                if not data:
                    break
                write.write(data)
                left -= len(data)
            position = end
        write.truncate(size)
    shutil.copystat(source, target)
    return target
