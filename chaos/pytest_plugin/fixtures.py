"""Fixtures that are async functions: they run in the body's process and loop, not in pytest's.

pytest gets a stand-in; before the body begins, the stand-ins are called in order, and generators
continue after the body, the last one first.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rocketbed.chaos.pytest_plugin.errors import TestingError


@dataclass(eq=False)
class Deferred:
    """A fixture that is still to be called."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]


def is_deferred(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether a fixture has to wait: an async function, or one that uses such a fixture."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    return any(isinstance(value, Deferred) for value in arguments.values())


class Fixtures:
    """The deferred fixtures of one run. `open` gives a test's arguments, `close` ends them."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._open: list[tuple[str, Any]] = []

    async def open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with real values in place of stand-ins."""
        return {name: await self._value(value) for name, value in arguments.items()}

    async def close(self) -> None:
        """Let generators continue, the last one first. Raises `TestingError` if one yields
        again."""
        while self._open:
            name, generator = self._open.pop()
            try:
                if inspect.isasyncgen(generator):
                    await anext(generator)
                else:
                    next(generator)
            except (StopAsyncIteration, StopIteration):
                continue
            raise TestingError(f"fixture {name!r} yields more than once")

    async def _value(self, value: Any) -> Any:
        if not isinstance(value, Deferred):
            return value
        if id(value) not in self._values:
            result: Any = value.function(**await self.open(value.arguments))
            if inspect.isawaitable(result):
                result = await result
            elif inspect.isasyncgen(result):
                self._open.append((value.name, result))
                result = await anext(result)
            elif inspect.isgenerator(result):
                self._open.append((value.name, result))
                result = next(result)
            self._values[id(value)] = result
        return self._values[id(value)]
