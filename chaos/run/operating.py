"""Base of the operator's chores: changes, one after the other, while faults go on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final

import trio

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.members import Members

LOOK_S: Final = 0.5
"""Pause before a failed change is tried again."""
REST_S: Final = 60.0
"""Longest time for the remaining work once the cluster is healed."""


@dataclass(slots=True)
class Operating(ABC):
    """Changes at random times of the fault phase. When the phase is over all but the first are
    skipped, since clients expect normal service then."""

    NAME: ClassVar[str]
    """Seeds, with the run's seed, the times and contents of the changes."""
    WHAT: ClassVar[str]
    """One change, in words."""

    plan: Plan
    backend: Backend
    members: Members
    without: frozenset[str] = frozenset()
    """Nodes that stay away, so that nothing waits for their answer."""
    _over: trio.Event = field(default_factory=trio.Event)
    _done: trio.Event = field(default_factory=trio.Event)

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of changes in the plan."""

    @abstractmethod
    async def change(self, random: Random) -> None:
        """Make one change."""

    async def end(self) -> None:
        """Check the changes that were made."""
        await trio.lowlevel.checkpoint()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def run(self) -> None:
        """Work from the start of the load until all changes are made."""
        random = Random(f"{self.plan.seed}/{self.NAME}")
        for number in range(self.count):
            await self.pause(random.uniform(0.1, 0.9) * self.plan.faults_s / (self.count + 1))
            if self.is_over and number:
                break
            await self.change(random)
        await self.end()
        self._done.set()

    async def pause(self, limit_s: float) -> None:
        """Sleep, but not beyond the end of the fault phase."""
        with trio.move_on_after(limit_s):
            await self._over.wait()

    async def finish(self, without: frozenset[str]) -> str:
        """Wait, in the healed cluster, for the changes that have begun. Return what is not done in
        time."""
        self.without = without
        self._over.set()
        with trio.move_on_after(REST_S):
            await self._done.wait()
        return "" if self._done.is_set() else self.WHAT
