"""A compare-and-swap store whose answers get lost, whose requests come late, or twice."""

from random import Random

import trio

from rocketbed.replication.register.cas import CasStore, CasUnknown, Versioned


class LossyCas:
    """A store in front of a real one. `run` makes the late requests, in any order."""

    def __init__(self, store: CasStore, random: Random, *, trouble: float) -> None:
        """`trouble` is the share of requests that meet some."""
        self._store = store
        self._random = random
        self._trouble = trouble
        self._late: list[tuple[str, bytes, int]] = []
        self.met = 0
        """Requests that met trouble."""
        self.made_late = 0
        """Late ones that were still good when they came."""

    async def swap(self, name: str, value: bytes, *, after: int) -> bool:
        await trio.lowlevel.checkpoint()
        if self._random.random() >= self._trouble:
            return await self._store.swap(name, value, after=after)
        self.met += 1
        kind = self._random.choice(("answer lost", "late", "twice"))
        if kind == "answer lost":
            await self._store.swap(name, value, after=after)
            raise CasUnknown("the answer was lost")
        if kind == "late":
            self._late.append((name, value, after))
            raise CasUnknown("the request is under way")
        first = await self._store.swap(name, value, after=after)
        repeated = await self._store.swap(name, value, after=after)
        assert not repeated, "one version was made twice"
        return first

    async def deliver(self) -> None:
        """Make one of the requests that are under way."""
        if self._late:
            name, value, after = self._late.pop(self._random.randrange(len(self._late)))
            self.made_late += await self._store.swap(name, value, after=after)

    async def read(self, name: str) -> Versioned | None:
        if self._random.random() < 0.3:
            await self.deliver()
        return await self._store.read(name)

    async def claim(self) -> None:
        await self._store.claim()

    async def keep(self) -> None:
        await self._store.keep()

    async def names(self) -> list[str]:
        return await self._store.names()

    async def changes(self, name: str) -> list[Versioned]:
        return await self._store.changes(name)

    async def aclose(self) -> None:
        await self._store.aclose()
