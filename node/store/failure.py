"""Why a store has failed, if it has."""

from typing import NoReturn

import trio

from rocketbed.node.store.errors import StoreError


class Failure:
    """The first failure of a store, which stops it.

    Whoever meets a disk that lost something sets it, whatever becomes of the call that met it: the
    next fsync would succeed without what this one lost (T10).
    """

    def __init__(self) -> None:
        self.reason: StoreError | None = None
        self._set = trio.Event()

    def set(self, reason: StoreError) -> StoreError:
        """Stop the store; the first reason, which stands."""
        if self.reason is None:
            self.reason = reason
            self._set.set()
        return self.reason

    def check(self) -> None:
        """Raise the reason, if there is one: who waited for another one's fsync that failed must
        not try that again."""
        if self.reason is not None:
            raise self.reason

    async def wait(self) -> NoReturn:
        """Wait until the store has failed, then raise why."""
        await self._set.wait()
        assert self.reason is not None
        raise self.reason
