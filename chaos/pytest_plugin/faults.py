"""Faults of a test: each verb of a scenario is a method, and what it gives is done when awaited.

async with chaos.during(chaos.kill("leader")): ...     # healed at the end
names = await chaos.partition("leader", "others", for_=3.0)
"""

import inspect
import os
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from rocketbed.chaos.checks.registry import CHECK_IDS
from rocketbed.chaos.plan.check_names import check_id
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.generator import GENERATED
from rocketbed.chaos.plan.step import At, Step, Trigger, parse_step, unknown
from rocketbed.chaos.plan.verb_methods import VerbMethods
from rocketbed.chaos.plan.verbs import VERBS
from rocketbed.chaos.pytest_plugin.cluster import Cluster
from rocketbed.chaos.pytest_plugin.errors import TestingError, UnknownFault
from rocketbed.chaos.run.schedule import Held

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage

R = TypeVar("R")


@dataclass(eq=False)
class Fault:
    """A step that was not taken yet: `await` it, or give it to `chaos.during`."""

    chaos: "Chaos"
    step: Step

    def __str__(self) -> str:
        return self.step.action()

    def __await__(self) -> Generator[Any, Any, list[str]]:
        return self.now().__await__()

    async def now(self) -> list[str]:
        """Take the step. Return the names of those it hit. Without `for_` it lasts until all is
        healed."""
        held = await self.chaos.stage.begin(self.step)
        return [] if held is None else held.done.names


class ChaosVerbs(VerbMethods[R]):
    """Steps as a test writes them: without a time, since they are taken at once."""

    _trigger: Trigger = At(0.0)

    def step(self, text: str) -> R:
        """Return a step from a scenario's text, without its time: `disk leader slow-fsync 300ms for
        5s`."""
        return self._take(parse_step(f"at 0s {text}"))

    def _unknown(self, name: str) -> Exception:
        names = [*VERBS, "during", "fault_phase", "recover", "check", "step"]
        return UnknownFault(unknown("fault", name, names))


class Chaos(ChaosVerbs[Fault]):
    """Faults for the cluster of a test; the fixture `chaos`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def stage(self) -> "Stage":
        """Stage of the test. Raises `NotReady` outside the body."""
        return self._cluster.stage

    def _take(self, step: Step) -> Fault:
        return Fault(self, parse_step(str(step)))

    @asynccontextmanager
    async def during(self, *faults: Fault | str) -> AsyncIterator[list[str]]:
        """Keep faults in force for as long as the block runs; yields the names of those they hit.

        At its end killed nodes are started again, cut links healed, and so on.
        """
        if not faults:
            raise TestingError("chaos.during() needs a fault: chaos.during(chaos.kill('leader'))")
        stage = self.stage
        begun: list[Held] = []
        names: dict[str, None] = {}
        try:
            for fault in faults:
                step = (self.step(fault) if isinstance(fault, str) else fault).step
                held = await stage.begin(step)
                if held is not None:
                    begun.append(held)
                    names.update(dict.fromkeys(held.done.names))
            yield list(names)
        finally:
            with trio.CancelScope(shield=True):
                for held in reversed(begun):
                    await stage.end(held)

    async def fault_phase(self, seconds: float, *, only: tuple[str, ...] | None = None) -> None:
        """Inject faults drawn from the seed for this time, `only` of these classes; then heal all.

        The classes are those of the swarm: kill, powercut, partition, ... To do something
        meanwhile, start it in a nursery of your own.
        """
        for name in only or ():
            if name not in GENERATED:
                raise ScenarioError(unknown("class of faults", name, list(GENERATED)))
        await self.stage.fault_phase(float(seconds), only)

    async def recover(self) -> None:
        """End every fault and start everything that is down."""
        await self.stage.recover()

    def check(self, *ids: str) -> None:
        """Have the history judged once the body has ended, by all checks or the named ones.

        By then all faults are over, everything has come into order, was read back, and all nodes
        have stopped. Findings fail the test.
        """
        names = [check_id(name) for name in ids]
        for name in names:
            if name not in CHECK_IDS:
                raise ScenarioError(unknown("check", name, list(CHECK_IDS)))
        self.stage.script.ask(names, place_of(inspect.currentframe()))


def place_of(frame: FrameType | None) -> str:
    """Return file and line from which a function was called, by its frame."""
    caller = None if frame is None else frame.f_back
    if caller is None:
        return ""
    return f"{os.path.relpath(caller.f_code.co_filename)}:{caller.f_lineno}"
