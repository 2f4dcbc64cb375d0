"""Files of the log, read through a window.

Not mapped: a file that is cut while somebody reads its mapping kills the reader with SIGBUS, and a
live broker's retention cuts files. A window of some MiB costs one copy (8 GiB/s) and buys back part
of it, since every later touch finds the bytes in the processor's cache.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Final

from rocketbed.inspect.commitlog import claims
from rocketbed.inspect.record import MAGIC_PREFIX
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.storage import LOCAL, Replaced, Storage

WINDOW: Final = 8 << 20
"""Bytes of a window. Any record is read whole, so a longer one makes a longer window."""
WINDOW_MIN: Final = 64 << 10
"""Bytes of the first window after damage: the next record may be damaged too."""
PADDING: Final = 128
"""Bytes behind the window's content, so that a fixed part can be taken at any place in it."""
_PROBE: Final = 40


class Window:
    """Bytes of a file in memory: `data[:length]` are those from `origin` on."""

    __slots__ = ("data", "length", "origin")

    def __init__(self, data: bytearray, origin: int, length: int) -> None:
        self.data = data
        self.origin = origin
        self.length = length


class Segment:
    """Open file of the log. `size` is its length when the read was planned."""

    def __init__(
        self,
        path: str,
        base: int,
        size: int,
        *,
        window: int = WINDOW,
        storage: Storage = LOCAL,
    ) -> None:
        """Raises `DataLost` when the file is gone or shorter than `size`."""
        self.path = path
        self.base = base
        self.size = size
        self._buffer = bytearray(min(window, max(size, 1)) + PADDING)
        self._window = window
        self._pool = storage.pool()
        try:
            self._file = storage.open(path)
        except FileNotFoundError:
            raise DataLost(path, base, "the file was deleted") from None
        self.check_size()

    def __enter__(self) -> "Segment":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._pool.close()

    def check_size(self) -> None:
        """Raises `DataLost` when the file is shorter than it was."""
        try:
            now = self._file.size()
        except FileNotFoundError:
            raise DataLost(self.path, self.base, "the file was deleted") from None
        if now < self.size:
            raise DataLost(self.path, self.base + now, f"it had {self.size} bytes, it has {now}")

    def window(self, position: int, size: int = 0, most: int = WINDOW) -> Window:
        """The bytes from a position of the file on: up to `most`, or `size` when that is more.

        The window before it is overwritten. Raises `DataLost` when the file got shorter.
        """
        length = min(max(size, min(most, self._window)), self.size - position)
        if length + PADDING > len(self._buffer):
            self._buffer = bytearray(length + PADDING)
        view = memoryview(self._buffer)
        done = 0
        while done < length:
            try:
                count = self._file.read_into(view[done:length], position + done)
            except OSError as exc:
                self.check_size()
                if isinstance(exc, Replaced):
                    reason = "it was replaced while it was read"
                    raise DataLost(self.path, self.base + position, reason) from None
                raise
            if count == 0:
                self.check_size()
                reason = "it ends before the length that the system gives"
                raise DataLost(self.path, self.base + position + done, reason)
            done += count
        return Window(self._buffer, position, length)

    def claims_from(self, position: int) -> Iterator[int]:
        """Yield positions at or after `position` where bytes claim to be a message at that offset.

        What is a hole of the file is passed over. Damage is looked at this way only, since a
        hostile body can hold such bytes.
        """
        step = WINDOW_MIN
        for first, last in self._pool.data_ranges(self.path, position, self.size):
            at = max(position, first - _PROBE)
            while at < last:
                data = self._pool.read(self.path, at, min(step, self.size - at))
                step = min(4 * step, WINDOW)
                hit = data.find(MAGIC_PREFIX)
                while hit >= 0:
                    start = hit - 4
                    if start >= 0 and claims(data, start, self.base + at + start):
                        yield at + start
                    hit = data.find(MAGIC_PREFIX, hit + 1)
                if len(data) <= _PROBE:
                    break
                at += len(data) - _PROBE + 1

    def peek(self, position: int, size: int) -> bytes:
        """Bytes at a position, without moving the window; fewer at the end of the file."""
        return self._pool.read(self.path, position, size)

    def first_data(self, position: int) -> int | None:
        """Position of the first byte from `position` on that is not zero."""
        return self._pool.first_data(self.path, position, self.size)
