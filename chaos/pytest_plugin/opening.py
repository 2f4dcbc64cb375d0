"""A client of a test, about to be opened: for the rest of the test, or for a block."""

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rocketbed.chaos.pytest_plugin.errors import TestingError

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage

T = TypeVar("T")


class Opening(Generic[T]):
    """Client that `client = await opening` keeps open until the test ends, and `async with opening
    as client` until the end of the block."""

    def __init__(self, stage: "Stage", opens: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._stage = stage
        self.opens = opens
        self._block: AbstractAsyncContextManager[T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._stage.host(self.opens()).__await__()

    async def __aenter__(self) -> T:
        if self._block is not None:
            raise TestingError("this client is open already: ask the cluster for another one")
        self._block = self.opens()
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._block is not None
        return await self._block.__aexit__(kind, error, traceback)
