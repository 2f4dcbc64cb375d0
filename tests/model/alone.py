"""A program alone in simulation that has to come to its end."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rocketbed.chaos.backends.sim.simulation import LogLine
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.world.api import World
from tests.model.model import Wrong, ensure


def run_alone(main: Callable[..., Awaitable[Any]], *arguments: object, **options: Any) -> SoloRun:
    """As `run_solo`. Raises what `main` raises, a `Wrong` by itself, and `Wrong` for one that did
    not end: it has said nothing, so that nothing is wrong with its answers."""
    run = run_solo(_telling, main, *arguments, **options)
    if isinstance(run.value, Wrong):
        raise run.value
    ensure(run.outcome == "ended", "hang", run.outcome)
    ensure_reasons(run.log)
    return run


def ensure_reasons(log: Iterable[LogLine]) -> None:
    """Whoever logs that something has a reason says which. Raises `Wrong`."""
    for line in log:
        for name in ("reason", "error"):
            ensure(bool(line.fields.get(name, "some")), "told", f"{line.event}: no {name}")


async def _telling(world: World, main: Callable[..., Awaitable[Any]], *arguments: object) -> object:
    """What it returns, or the first `Wrong` that it raises: nurseries wrap that in groups."""
    found: object = None
    try:
        found = await main(world, *arguments)
    except* Wrong as group:
        found = next(_leaves(group))
    return found


def _leaves(exc: BaseException) -> Any:
    if isinstance(exc, BaseExceptionGroup):
        for one in exc.exceptions:
            yield from _leaves(one)
    else:
        yield exc
