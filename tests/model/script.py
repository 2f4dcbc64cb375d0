"""A program on one host of a simulation that also says what becomes of the others."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.world.api import World


class Script:
    """A simulation whose events one of its processes names."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._errand: Callable[[], None] | None = None
        self._is_run = trio.Event()
        self._host = ""

    def play(self, host: str, main: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run it to its end. Raises `AssertionError`, the first that it raises."""
        errors: list[AssertionError] = []

        async def whole(world: World) -> None:
            try:
                await main(world, *arguments)
            except* AssertionError as group:
                errors.append(_first(group))

        self._host = host
        process = self.simulation.start(host, whole)
        while not process.done:
            self.simulation.run(3600, until=lambda: process.done or self._errand is not None)
            if self._errand is not None:
                errand, self._errand = self._errand, None
                errand()
                process.call(self._is_run.set)
        process.value()
        if errors:
            raise errors[0]

    async def outside(self, errand: Callable[[], None]) -> None:
        """Something that happens to the simulation, between two events of it."""
        self._is_run = trio.Event()
        self._errand = errand
        await self._is_run.wait()


async def wait_until(
    holds: Callable[[], bool], event: str, seconds: float, pause_s: float, judge: Callable[[], None]
) -> None:
    """Raises `AssertionError` when it does not hold in time, or what `judge` raises meanwhile."""
    end = trio.current_time() + seconds
    while not holds():
        judge()
        assert trio.current_time() < end, f"wait: not within {seconds} s: {event}"
        await trio.sleep(pause_s)


def _first(group: BaseExceptionGroup[Any]) -> AssertionError:
    """Return the first error that a nursery gathered."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AssertionError), error
    return error
