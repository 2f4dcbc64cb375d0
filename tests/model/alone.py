"""A program alone in simulation that has to come to its end."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rocketbed.chaos.backends.sim.simulation import LogLine
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.world.api import World


def run_alone(main: Callable[..., Awaitable[Any]], *arguments: object, **options: Any) -> SoloRun:
    """Run as `run_solo` does. Raises what `main` raises, and `AssertionError` if it did not end."""
    run = run_solo(_telling, main, *arguments, **options)
    if isinstance(run.value, AssertionError):
        raise run.value
    assert run.outcome == "ended", f"hang: {run.outcome}"
    ensure_reasons(run.log)
    return run


def ensure_reasons(log: Iterable[LogLine]) -> None:
    """Check that no log line has an empty reason or error."""
    for line in log:
        for name in ("reason", "error"):
            assert bool(line.fields.get(name, "some")), f"told: {line.event}: no {name}"


async def _telling(world: World, main: Callable[..., Awaitable[Any]], *arguments: object) -> object:
    """Return what `main` returns, or its first `AssertionError`, which nurseries wrap in groups."""
    error: object = None
    try:
        error = await main(world, *arguments)
    except* AssertionError as group:
        error = next(_leaves(group))
    return error


def _leaves(exc: BaseException) -> Any:
    if isinstance(exc, BaseExceptionGroup):
        for part in exc.exceptions:
            yield from _leaves(part)
    else:
        yield exc
