"""What a replica keeps of epochs beside its log: `epoch.rb` (replication.md 7.14).

Its history is in the log too, as markers; what it has promised is nowhere else. Three lines, as
the store's mark: kind and version, JSON, CRC-32C of the JSON. Replaced by a temporary file, fsync,
rename, fsync of the directory.
"""

from dataclasses import dataclass, replace
from typing import Final

import crcmod.predefined
import orjson
import trio

from rocketbed.replication.epochs import Epoch, History, check
from rocketbed.replication.errors import EpochFileDamaged, HistoryRefused
from rocketbed.world.api import World

NAME: Final = "epoch.rb"
SIZE_MAX: Final = 1 << 20
"""Bytes; a history of 30,000 epochs."""
_FIRST_LINE = b"rocketbed-epochs 1"
_crc32c = crcmod.predefined.mkCrcFun("crc-32c")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochState:
    """What is in the file."""

    promised: int = 0
    """Nothing is acknowledged at a lower epoch. Invariant: never falls."""
    history: History = ()
    """Of the log, up to its end at that time; what was appended since has markers."""
    cut_to: int | None = None
    """Where the log is being cut: a start with this in the file does it again."""
    confirm: int = 0
    """Some offset below which everything is confirmed; heard of late, and written later."""


class EpochFile:
    """The file of one replica."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._directory = directory
        self.path = f"{directory}/{NAME}"
        self.state = EpochState()
        """As it is on disk."""
        self._turn = trio.Lock()

    def load(self) -> bool:
        """Whether there was one. Raises `EpochFileDamaged` for one that is not whole."""
        disk = self._world.disk
        if not disk.exists(self.path):
            return False
        file = disk.open(self.path, writable=False)
        try:
            if not 0 < file.size() <= SIZE_MAX:
                raise self._damaged(f"it has {file.size()} bytes")
            data = file.read_at(0, file.size())
        finally:
            file.close()
        lines = data.split(b"\n")
        if len(lines) != 4 or lines[0] != _FIRST_LINE or b"%08x" % _crc32c(lines[1]) != lines[2]:
            kind = lines[0][:40].decode("ascii", "replace")
            is_newer = kind.startswith("rocketbed-epochs ") and lines[0] != _FIRST_LINE
            raise self._damaged(f"it is a {kind!r}" if is_newer else "it does not match its CRC")
        found = orjson.loads(lines[1])
        try:
            history = tuple(Epoch(*one) for one in found["history"])
            self.state = EpochState(
                promised=found["promised"],
                history=check(history, 1 << 63),
                cut_to=found["cut"],
                confirm=found["confirm"],
            )
        except (HistoryRefused, KeyError, TypeError) as exc:
            raise self._damaged(str(exc)) from exc
        return True

    async def save(self, **changes: object) -> None:
        """Change some of it, durably. Raises `OSError`: what is on disk is the old or the new."""
        async with self._turn:
            state = replace(self.state, **changes)  # type: ignore[arg-type]
            assert state.promised >= self.state.promised, (self.state, state)
            text = orjson.dumps(
                {
                    "promised": state.promised,
                    "history": [(one.number, one.start) for one in state.history],
                    "cut": state.cut_to,
                    "confirm": state.confirm,
                }
            )
            disk, temporary = self._world.disk, f"{self.path}.new"
            if disk.exists(temporary):
                disk.unlink(temporary)
            file = disk.open(temporary, create=True)
            try:
                file.write_at(0, b"%s\n%s\n%08x\n" % (_FIRST_LINE, text, _crc32c(text)))
                await file.sync()
            finally:
                file.close()
            disk.rename(temporary, self.path)
            await disk.sync_dir(self._directory)
            self.state = state

    def _damaged(self, reason: str) -> EpochFileDamaged:
        return EpochFileDamaged(
            f"{self.path} cannot be read: {reason}. Move it away: what it held is found in the log,"
            " and what this replica has promised in the register"
        )
