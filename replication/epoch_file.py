"""A replica's record of epochs beside its log: `epoch.rb` (replication.md 7.14).

Its history is in the log too, as markers; its promise is only here.
"""

from dataclasses import dataclass, replace
from typing import Final

import trio

from rocketbed.replication.api import EpochLog
from rocketbed.replication.epochs import Epoch, History, check, cut_to
from rocketbed.replication.errors import EpochFileDamaged, HistoryRefused
from rocketbed.replication.kept_file import KeptFileDamaged, read_kept, write_kept
from rocketbed.world.api import World

NAME: Final = "epoch.rb"
KIND: Final = "rocketbed-epochs 1"
DISK_S: Final = 300.0
"""Time after which an indivisible disk operation counts as hanging: the node ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochState:
    """Contents of the file."""

    promised: int = 0
    """Nothing is acknowledged at a lower epoch. Invariant: never falls."""
    history: History = ()
    """Of the log, up to its end at that time; later parts have markers."""
    cut_to: int | None = None
    """Target of an unfinished cut: a start with this in the file repeats it."""
    confirm: int = 0
    """Some offset below which everything is confirmed; learned late, and written later."""
    group: str = ""
    """`GroupEntry.uid` of the group whose epochs these are; empty before the first."""
    is_shared: bool = False
    """True if the log began as this group's, or its earlier contents were compared."""


class EpochFile:
    """The file of one replica."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._directory = directory
        self.path = f"{directory}/{NAME}"
        self.state = EpochState()
        """State on disk."""
        self._turn = trio.Lock()

    def load(self) -> bool:
        """Read the file; True if there was one. Raises `EpochFileDamaged` if it is not whole."""
        try:
            content = read_kept(self._world, self.path, KIND)
            if content is None:
                return False
            history = tuple(Epoch(*pair) for pair in content["history"])
            self.state = EpochState(
                promised=content["promised"],
                history=check(history, 1 << 63),
                cut_to=content["cut"],
                confirm=content["confirm"],
                group=content.get("group", ""),
                is_shared=content["shared"],
            )
        except (KeptFileDamaged, HistoryRefused, KeyError, TypeError) as exc:
            raise EpochFileDamaged(
                f"{self.path} cannot be read: {exc}. Move it away: what it held is found in the"
                " log, and what this replica has promised in the register"
            ) from exc
        return True

    async def cut(self, log: EpochLog, offset: int) -> None:
        """Make `offset` the end of the log and of its history. A crash meanwhile is repaired by the
        next start, and `NoRoom`, which leaves `cut_to`, by another cut.

        Must not be cancelled: a start would cut what was appended since.
        """
        with trio.fail_after(DISK_S, shield=True):
            await self.save(cut_to=offset)
            if log.written.value > offset:
                await log.cut_to(offset)
            await self.save(cut_to=None, history=cut_to(self.state.history, offset))

    async def save(self, **changes: object) -> None:
        """Change some fields, durably. Raises as `write_kept`."""
        async with self._turn:
            state = replace(self.state, **changes)  # type: ignore[arg-type]
            assert state.promised >= self.state.promised, (self.state, state)
            value = {
                "promised": state.promised,
                "history": [(epoch.number, epoch.start) for epoch in state.history],
                "cut": state.cut_to,
                "confirm": state.confirm,
                "group": state.group,
                "shared": state.is_shared,
            }
            await write_kept(self._world, self._directory, NAME, KIND, value)
            self.state = state
