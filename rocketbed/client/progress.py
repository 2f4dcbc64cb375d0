"""Which messages of a queue were handed out, and which of them are dealt with, in any order.

Pure.
"""

from collections.abc import Iterable


class Progress:
    """One queue's reading from an offset on."""

    def __init__(self, offset: int) -> None:
        self._end = offset
        """Behind everything that was handed out."""
        self._unfinished: dict[int, int] = {}
        """Offset of a message -> where it begins to matter: behind the message before it. Both
        rise, since messages are handed out in the queue's order."""

    @property
    def done(self) -> int:
        """Nothing below is left to do: what may be committed."""
        return next(iter(self._unfinished.values()), self._end)

    def hand_out(self, offsets: Iterable[int], end: int) -> None:
        """Messages at these offsets, all that there are before `end`."""
        for offset in offsets:
            assert self._end <= offset < end, (self._end, offset, end)
            self._unfinished[offset] = self._end
            self._end = offset + 1
        self._end = end

    def finish(self, offset: int) -> None:
        """A message is dealt with; one that is not known makes no difference."""
        self._unfinished.pop(offset, None)
