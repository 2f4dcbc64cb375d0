"""What chores of an operator have in common: changes, one after the other, while faults go on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final

import trio

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.members import Members

LOOK_S: Final = 0.5
"""Before what did not succeed is done again."""
REST_S: Final = 60.0
"""Longest time for what is left to do once the cluster is healed."""


@dataclass(slots=True)
class Operating(ABC):
    """Changes at some times of the storm. When it is over, all but the first are left out: clients
    are to be served as ever then."""

    NAME: ClassVar[str]
    """What decides when and what, with the seed."""
    WHAT: ClassVar[str]
    """One change, in words."""

    plan: Plan
    backend: Backend
    members: Members
    without: frozenset[str] = frozenset()
    """Nodes that stay away, so that nobody waits for their word."""
    _over: trio.Event = field(default_factory=trio.Event)
    _done: trio.Event = field(default_factory=trio.Event)

    @property
    @abstractmethod
    def count(self) -> int:
        """How many changes the plan asks for."""

    @abstractmethod
    async def change(self, random: Random) -> None:
        """Make one."""

    async def end(self) -> None:
        """Look at what was made."""
        await trio.lowlevel.checkpoint()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def run(self) -> None:
        """Begins with the load, ends when all is done."""
        random = Random(f"{self.plan.seed}/{self.NAME}")
        for number in range(self.count):
            await self.pause(random.uniform(0.1, 0.9) * self.plan.storm_s / (self.count + 1))
            if self.is_over and number:
                break
            await self.change(random)
        await self.end()
        self._done.set()

    async def pause(self, limit_s: float) -> None:
        """Wait, but not beyond the storm."""
        with trio.move_on_after(limit_s):
            await self._over.wait()

    async def finish(self, without: frozenset[str]) -> str:
        """Wait for what is begun when nothing is broken any more; what is not done in time."""
        self.without = without
        self._over.set()
        with trio.move_on_after(REST_S):
            await self._done.wait()
        return "" if self._done.is_set() else self.WHAT
