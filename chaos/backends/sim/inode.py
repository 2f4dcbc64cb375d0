"""Contents of one simulated file: what readers see, and what a power cut could leave of it.

The page cache is one `bytearray`, materialised up to the last byte written; beyond it a file reads
as zeros up to its length, so a preallocated segment costs nothing. The disk's state is kept as
undo: a write remembers what each 512-byte sector held before it became dirty. A sync in flight
closes a generation of undo records and opens the next; when it completes, its generation and all
older ones are forgotten, and with them the way back. A sync that never completes, because its
process was killed, forgets nothing: it neither saves its sectors nor loses them.

A change of length, or of extents (zeros), goes to the journal, and another file's sync may commit
it without the data written before and after. So such a change begins a generation of its own, which
no sync completes: the data between two of them may come back (ext4 does it; see
tests/property/test_disk_against_ext4.py).
"""

from dataclasses import dataclass, field, replace
from random import Random

SECTOR = 512
"""Bytes that a device writes as one. Disks with 4 KiB sectors tear less, never more."""
PAGE = 4096
"""Bytes of a page-cache page: a write cut short by SIGKILL ends at such a boundary."""

POWER_CUT_MODES = ("random", "strict", "prefix", "reorder")
"""Unsynced data that survives: a coin for each sector; nothing; the oldest part; the newest."""


@dataclass(slots=True, eq=False)
class Generation:
    """State before the first write since the previous sync began, or before a journalled change."""

    sectors: dict[int, bytes] = field(default_factory=dict)
    """Sector number -> its bytes before; short or empty beyond the file's former end."""
    length: int | None = None
    """Length before, None while unchanged."""
    grown: bool = False
    """True if writes made it longer: a device takes those piece by piece. A truncation or a
    reservation sets the length in one step."""


@dataclass(slots=True, eq=False)
class Inode:
    """Bytes of a file. Offsets and lengths in bytes."""

    data: bytearray = field(default_factory=bytearray)
    length: int = 0
    """At least `len(data)`: beyond that it reads as zeros."""
    allocated: int = 0
    """Bytes that have blocks; holes below count, which no preallocating store has."""
    links: int = 1
    modified_ms: int = 0
    shared: bool = False
    """True while `data` is also a clone's: copied before the next write."""
    generations: list[Generation] = field(default_factory=lambda: [Generation()])
    """Oldest first; the last is open, those before belong to syncs in flight."""
    sync_count: int = 0
    """Syncs completed or dropped so far, which numbers the generations."""
    forsaken: dict[int, bytes] = field(default_factory=dict)
    """Sectors that a failed sync marked clean: no later sync writes them out, only a new write."""

    def __deepcopy__(self, memo: object) -> "Inode":
        """Return a twin that shares the bytes until either is written to."""
        self.shared = True
        before = [
            replace(generation, sectors=dict(generation.sectors)) for generation in self.generations
        ]
        return replace(self, generations=before, forsaken=dict(self.forsaken))

    def read(self, offset: int, size: int) -> bytes:
        size = min(size, self.length - offset)
        if size <= 0:
            return b""
        content = bytes(self.data[offset : offset + size])
        return content if len(content) == size else content + bytes(size - len(content))

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write; extends the file if the range lies beyond its end."""
        end = offset + len(data)
        if end == offset:
            return
        self._save(offset, end)
        bytes_ = self.data
        if len(bytes_) < offset:
            bytes_.extend(bytes(offset - len(bytes_)))
        bytes_[offset:end] = data
        if end > self.length:
            last = self.generations[-1]
            if last.length is not None and not last.grown:
                self._begin_generation()
            self._set_length(end)
            self.generations[-1].grown = True

    def zero(self, offset: int, size: int) -> None:
        """Make a range within the file read as zeros."""
        end = min(offset + size, self.length)
        held = min(end, len(self.data))
        if held > offset:
            self._begin_generation()
            self._save(offset, held)
            self.data[offset:held] = bytes(held - offset)

    def truncate(self, size: int) -> None:
        """Set the length; what is truncated reads as zeros if the file grows again."""
        if size == self.length:
            return
        self._begin_generation()
        if size < len(self.data):
            self._save(size, len(self.data))
            del self.data[size:]
        self._set_length(size)
        self.allocated = min(self.allocated, size)

    def allocate(self, size: int) -> None:
        """Extend to `size` bytes with blocks; a longer file keeps its length."""
        if size > self.length:
            self._begin_generation()
            self._set_length(size)
        elif any(
            generation.length is not None
            and generation.grown
            and generation.length < size <= self.length
            for generation in self.generations
        ):
            # Growth by writes is not on disk yet; the reservation may reach it alone.
            self.generations.append(Generation(length=size, grown=True))

    def begin_sync(self) -> int:
        """Start writing out what is dirty now. Return the number for `complete_sync`."""
        self.generations.append(Generation())
        return self.sync_count + len(self.generations) - 1

    def complete_sync(self, number: int) -> None:
        done = number - self.sync_count
        if done > 0:
            del self.generations[:done]
            self.sync_count = number

    def forsake(self, number: int) -> None:
        """Fail a sync, whose pages the kernel then marks clean (as Linux does with EIO).

        What was written since it began is still dirty, and the next sync writes it out.
        """
        done = number - self.sync_count
        platter: dict[int, bytes] = {}
        for generation in self.generations[:done]:
            for sector, before in generation.sectors.items():
                platter.setdefault(sector, before)
        for sector, before in platter.items():
            # A later write saved the failed one's bytes as "before", which never reached the disk:
            # a cut would bring them back.
            for generation in self.generations[done:]:
                if sector in generation.sectors:
                    generation.sectors[sector] = before
                    break
            else:
                self.forsaken.setdefault(sector, before)
        self.complete_sync(number)

    def lose_power(self, mode: str, random: Random) -> int:
        """Reduce the file to what a power cut leaves. Return the number of sectors that lost
        data."""
        self._own()
        if self.forsaken:
            first = self.generations[0].sectors
            self.generations[0].sectors = {**first, **self.forsaken}
            self.forsaken = {}
        changes = [
            (generation, sector) for generation in self.generations for sector in generation.sectors
        ]
        survived: set[int] = set()
        lost: set[int] = set()
        survives = survivors(mode, random, len(changes))
        for position in range(len(changes) - 1, -1, -1):
            generation, sector = changes[position]
            if sector in survived:
                continue
            if survives[position]:
                survived.add(sector)
            else:
                self._restore(sector, generation.sectors[sector])
                lost.add(sector)
        self._lose_length(mode, random)
        self.generations = [Generation()]
        return len(lost - survived)

    def _own(self) -> None:
        if self.shared:
            self.data = bytearray(self.data)
            self.shared = False

    def _begin_generation(self) -> None:
        """Let later changes survive or be lost apart from the earlier ones."""
        last = self.generations[-1]
        if last.sectors or last.length is not None:
            self.generations.append(Generation())

    def _save(self, offset: int, end: int) -> None:
        """Remember the sectors of a range, before it changes."""
        self._own()
        data = self.data
        sectors = self.generations[-1].sectors
        for sector in range(offset // SECTOR, -(-end // SECTOR)):
            if sector not in sectors:
                start = sector * SECTOR
                sectors[sector] = bytes(data[start : start + SECTOR])
                if self.forsaken and sector in self.forsaken:
                    sectors[sector] = self.forsaken.pop(sector)

    def _set_length(self, length: int) -> None:
        if length != self.length:
            generation = self.generations[-1]
            if generation.length is None:
                generation.length = self.length
            self.length = length
            self.allocated = max(self.allocated, length)

    def _restore(self, sector: int, before: bytes) -> None:
        start = sector * SECTOR
        data = self.data
        end = min(start + SECTOR, len(data)) if not before else start + SECTOR
        if end <= start:
            return
        if len(data) < end:
            data.extend(bytes(end - len(data)))
        data[start:end] = before.ljust(end - start, b"\0")

    def _lose_length(self, mode: str, random: Random) -> None:
        lengths = [(g.length, g.grown) for g in self.generations if g.length is not None]
        survives = survivors(mode, random, len(lengths))
        for position in range(len(lengths) - 1, -1, -1):
            if survives[position]:
                break
            before, grown = lengths[position]
            sectors = range(before - before % SECTOR + SECTOR, self.length, SECTOR)
            if grown and sectors and mode == "random" and random.random() < 0.5:
                before = random.choice(sectors)
            self.length = before
        del self.data[self.length :]
        self.allocated = max(self.allocated, self.length)


def survivors(mode: str, random: Random, count: int) -> list[bool]:
    """Return which of `count` changes, in the order they were made, a power cut keeps."""
    if mode == "strict":
        return [False] * count
    if mode == "random":
        return [random.random() < 0.5 for _ in range(count)]
    edge = random.randint(0, count)
    if mode == "prefix":
        return [position < edge for position in range(count)]
    if mode == "reorder":
        return [position >= edge for position in range(count)]
    raise ValueError(f"unknown power cut mode {mode!r}; one of {', '.join(POWER_CUT_MODES)}")
