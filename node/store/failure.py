"""The failure of a store, if it has failed."""

from typing import NoReturn

import trio

from rocketbed.node.store.errors import StoreError


class Failure:
    """The first failure of a store, which stops it.

    The task that notices that a disk lost something sets it, whatever becomes of its own call: the
    next fsync would succeed without what this one lost (T10).
    """

    def __init__(self) -> None:
        self.reason: StoreError | None = None
        self._set = trio.Event()

    def set(self, reason: StoreError) -> StoreError:
        """Stop the store; return the first reason, which remains."""
        if self.reason is None:
            self.reason = reason
            self._set.set()
        return self.reason

    def check(self) -> None:
        """Raise the reason, if there is one: a task that waited for another task's failed fsync
        must not retry it."""
        if self.reason is not None:
            raise self.reason

    async def wait(self) -> NoReturn:
        """Wait until the store has failed, then raise why."""
        await self._set.wait()
        assert self.reason is not None
        raise self.reason
