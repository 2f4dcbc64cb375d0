"""A limit of the bytes that one producer has under way."""

from collections import deque

import trio


class Memory:
    """Room for so many bytes, given in the order that it was asked for."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        """Never above `limit`."""
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    async def take(self, size: int) -> int:
        """Wait for room; what to `give` back. What is larger than all of it takes all of it."""
        size = min(size, self.limit)
        if not self._waiting and self.taken + size <= self.limit:
            self.taken += size
            return size
        asked = size, trio.Event()
        self._waiting.append(asked)
        try:
            await asked[1].wait()
        except trio.Cancelled:
            if asked[1].is_set():
                self.give(size)
            else:
                self._waiting.remove(asked)
                self._serve()
            raise
        return size

    def give(self, size: int) -> None:
        """What was taken is free again."""
        self.taken -= size
        assert 0 <= self.taken <= self.limit
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.taken + self._waiting[0][0] <= self.limit:
            size, given = self._waiting.popleft()
            self.taken += size
            given.set()
