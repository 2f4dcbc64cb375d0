"""A commit log that holds any bytes, over `World.disk`: what replication is tested with."""

from collections.abc import Iterator
from contextlib import contextmanager

from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import File, World


class SegmentedLog:
    """A `ReplicaLog`. Files in a directory, named by their first offset."""

    def __init__(self, world: World, directory: str, segment_size: int) -> None:
        self.segment_size = segment_size
        self.written = Watermark()
        self.flushed = Watermark()
        self._world = world
        self._directory = directory
        self._files: dict[int, File] = {}
        world.disk.makedirs(directory)
        for name in world.disk.listdir(directory):
            if name.isdigit():
                self._files[int(name)] = world.disk.open(f"{directory}/{name}")
        if self._files:
            last = max(self._files)
            self.written.reset(last + self._files[last].size())
            self.flushed.reset(self.written.value)

    @property
    def min_offset(self) -> int:
        return min(self._files) if self._files else self.written.value

    def read(self, offset: int, size: int) -> bytes:
        start = offset - offset % self.segment_size
        file = self._files.get(start)
        return b"" if file is None else file.read_at(offset - start, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        start = offset - offset % self.segment_size
        file = self._files.get(start)
        return b"" if file is None else file.read_cached(offset - start, size)

    @contextmanager
    def pinned(self, offset: int) -> Iterator[tuple[File, int]]:
        start = offset - offset % self.segment_size
        if start not in self._files:
            raise FileNotFoundError(str(start))
        yield self._files[start], offset - start

    def append(self, data: bytes) -> None:
        """Append across segments, as a master's producers do."""
        while data:
            room = self.segment_size - self.written.value % self.segment_size
            self.append_raw(self.written.value, data[:room])
            data = data[room:]

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        if not self._files:
            self.written.reset(offset)
            self.flushed.reset(offset)
        assert offset == self.written.value
        assert len(data) <= self.segment_size - offset % self.segment_size
        start = offset - offset % self.segment_size
        if start not in self._files:
            path = f"{self._directory}/{start:020d}"
            self._files[start] = self._world.disk.open(path, create=True)
        self._files[start].write_at(offset - start, data)
        self.written.advance(offset + len(data))

    async def flush(self) -> None:
        """Make everything durable."""
        end = self.written.value
        for start in sorted(self._files):
            await self._files[start].sync()
        await self._world.disk.sync_dir(self._directory)
        self.flushed.advance(end)

    def expire(self, offset: int) -> None:
        """Drop the segments that end at or below `offset`."""
        for start in sorted(self._files):
            if start + self.segment_size <= offset:
                self._files.pop(start).close()
                self._world.disk.unlink(f"{self._directory}/{start:020d}")

    def cut(self, offset: int) -> None:
        """Lose what lies behind `offset`."""
        for start in sorted(self._files):
            if start >= offset:
                self._files.pop(start).close()
                self._world.disk.unlink(f"{self._directory}/{start:020d}")
            elif start + self.segment_size > offset:
                self._files[start].truncate(offset - start)
        self.written.reset(offset)
        self.flushed.reset(min(offset, self.flushed.value))

    def contents(self) -> bytes:
        """Return all bytes that are kept."""
        return b"".join(
            self._files[start].read_at(0, self.segment_size) for start in sorted(self._files)
        )
