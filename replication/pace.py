"""A rate that several senders share."""

import trio


class Pace:
    """Bytes a second; whoever sends waits for its turn. Nothing is saved up while nobody does."""

    def __init__(self, rate: int) -> None:
        """`rate` in bytes a second; 0: as fast as it goes."""
        self._rate = rate
        self._free_at = float("-inf")

    async def wait(self, size: int) -> None:
        """Until `size` more bytes may go."""
        if not self._rate:
            return
        begin = max(self._free_at, trio.current_time())
        self._free_at = begin + size / self._rate
        await trio.sleep_until(begin)
