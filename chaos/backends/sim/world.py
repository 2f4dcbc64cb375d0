"""Seams of a simulated process's World, all bound to its process state."""

from collections.abc import Callable
from functools import partialmethod
from typing import NoReturn, TypeVar

import trio

from rocketbed.chaos.backends.sim.incarnation import Life, SimKilled

T = TypeVar("T")

OFFLOAD_SECONDS = 0.00002
"""Duration of a hop to a thread and back."""


class ProcessSeam:
    """`World.process`; `end` marks the process dead and returns what to raise."""

    def __init__(self, life: Life, boot_id: str, pid: int, end: Callable[[int], SimKilled]) -> None:
        self.pid = pid
        self.boot_id = boot_id
        self.descriptors = 1 << 20
        self.stop_requested = trio.Event()
        self._life = life
        self._end = end

    def exit(self, code: int) -> NoReturn:
        """End at once; nothing this process does afterwards has any effect."""
        self._life.check()
        raise self._end(code)


class InlineOffloader:
    """Runs the function in the loop after a short while."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Return the result of `function(*arguments)`; can be cancelled only before it begins."""
        self._life.check()
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            await trio.sleep(OFFLOAD_SECONDS)
        self._life.check()
        return function(*arguments)


class SimLog:
    """Log whose events go into the simulation's record."""

    def __init__(self, life: Life, record: Callable[[str, str, dict[str, object]], None]) -> None:
        """`record` is called with level, event and fields."""
        self._life = life
        self._keep = record

    def _record(self, level: str, event: str, **fields: object) -> None:
        self._life.check()
        self._keep(level, event, fields)

    debug = partialmethod(_record, "debug")
    info = partialmethod(_record, "info")
    warning = partialmethod(_record, "warning")
    error = partialmethod(_record, "error")
