"""A linearizable compare-and-swap store in memory, for the controllers of one simulation."""

from collections.abc import Callable

import trio

from rocketbed.replication.register.cas import (
    CHANGES_MAX,
    CasBroken,
    CasSuperseded,
    CasUnknown,
    Versioned,
)
from rocketbed.world.api import World

CLAIM_S = 2.0


class Shelf:
    """State that outlives the controllers."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is a clock of its own: those of machines restart when they boot."""
        self.now_s = now_s
        self.values: dict[str, list[Versioned]] = {}
        self.file = 0
        """Number of the file with these values; running controllers do not know those of another
        file."""
        self.is_damaged = False
        """True if they cannot be read."""
        self.holder = ""
        self.renewed = 0.0
        self.silent = False
        """True while it does not answer."""
        self.on_swap: list[Callable[[], None]] = []
        """Called after each swap, before the caller knows of it."""

    def copy(self) -> dict[str, list[Versioned]]:
        """Return a copy of the current values."""
        return {name: list(versions) for name, versions in self.values.items()}

    def replace(self, values: dict[str, list[Versioned]], *, damaged: bool = False) -> None:
        """Put another file in the place of the current one."""
        self.values, self.is_damaged = values, damaged
        self.file += 1


class MemoryCas:
    """Access of a controller to the store."""

    def __init__(self, world: World, shelf: Shelf, delay_s: float = 0.005) -> None:
        self._world = world
        self._shelf = shelf
        self._delay_s = delay_s
        self._me = f"{world.name} {world.random.random()}"
        self._file = shelf.file

    async def claim(self) -> None:
        self._check_file()
        while True:
            now, shelf = self._shelf.now_s(), self._shelf
            if not shelf.silent and (not shelf.holder or now > shelf.renewed + CLAIM_S):
                shelf.holder, shelf.renewed = self._me, now
            if shelf.holder == self._me:
                return
            await trio.sleep(0.1)

    async def keep(self) -> None:
        while True:
            self._check()
            if not self._shelf.silent:
                self._shelf.renewed = self._shelf.now_s()
            await trio.sleep(0.3)

    async def read(self, name: str) -> Versioned | None:
        await self._answer()
        self._check_file()
        versions = self._shelf.values.get(name)
        return versions[-1] if versions else None

    async def swap(self, name: str, value: bytes, *, after: int) -> bool:
        await trio.sleep(self._delay_s / 2)
        self._check()
        versions = self._shelf.values.setdefault(name, [])
        if not self._shelf.silent and len(versions) == after:
            versions.append(Versioned(after + 1, value))
            for callback in self._shelf.on_swap:
                callback()
            await self._answer()
            return True
        await self._answer()
        return False

    async def names(self) -> list[str]:
        await self._answer()
        self._check_file()
        return sorted(self._shelf.values)

    async def changes(self, name: str) -> list[Versioned]:
        await self._answer()
        self._check_file()
        return self._shelf.values.get(name, [])[-CHANGES_MAX - 1 :]

    async def aclose(self) -> None:
        if self._shelf.holder == self._me:
            self._shelf.holder = ""

    async def _answer(self) -> None:
        await trio.sleep(self._delay_s / 2)
        if self._shelf.silent:
            await trio.sleep(1.0)
            raise CasUnknown("the store is silent")

    def _check_file(self) -> None:
        if self._shelf.is_damaged or self._shelf.file != self._file:
            raise CasBroken("the register is damaged, or was deleted or replaced")

    def _check(self) -> None:
        self._check_file()
        if self._shelf.holder != self._me:
            raise CasSuperseded(f"{self._world.name} has no claim")
