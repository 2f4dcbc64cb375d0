"""Limit of the bytes that one producer has under way."""

from collections import deque

import trio


class Memory:
    """A limited number of bytes, granted in the order of the requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0
        """Bytes in use, never above `limit`."""
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    async def take(self, size: int) -> int:
        """Wait for room and return the size to `give` back; a size above the limit takes all of
        it."""
        size = min(size, self.limit)
        if not self._waiting and self.in_use + size <= self.limit:
            self.in_use += size
            return size
        waiter = size, trio.Event()
        self._waiting.append(waiter)
        try:
            await waiter[1].wait()
        except trio.Cancelled:
            if waiter[1].is_set():
                self.give(size)
            else:
                self._waiting.remove(waiter)
                self._serve()
            raise
        return size

    def give(self, size: int) -> None:
        """Free bytes that were taken."""
        self.in_use -= size
        assert 0 <= self.in_use <= self.limit
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.in_use + self._waiting[0][0] <= self.limit:
            size, granted = self._waiting.popleft()
            self.in_use += size
            granted.set()
