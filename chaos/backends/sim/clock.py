"""Virtual time: one timeline for the simulation, one drifting clock for each host.

Time is integer nanoseconds and moves only from one event to the next. Events of one moment run in
the order they were added. Randomness comes in named streams, each seeded from the simulation's
seed, so that drawing more from one does not change the others. Everything that happens goes into a
digest: two runs are the same if their digests are.
"""

import hashlib
import heapq
import marshal
import math
from collections.abc import Callable
from random import Random
from typing import Any

import trio

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
MICROSECOND = 1_000

MARSHAL_VERSION = 2
"""The last version that writes equal values as equal bytes, whatever objects they share."""

EPOCH_MS = 1_700_000_000_000
"""Wall time at which every simulation begins, milliseconds (November 2023)."""

CHECKPOINT_EVENTS = 256
CHECKPOINT_CHARACTERS = 12


class Timeline:
    """Future events, and the record of past ones."""

    def __init__(self, seed: int | str, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.now = 0
        """Nanoseconds since the beginning."""
        self.trace: list[tuple[object, ...]] | None = [] if keep_trace else None
        self.events = 0
        """Number of recorded events."""
        self.checkpoints: list[str] = []
        """The digest, shortened, after every `CHECKPOINT_EVENTS`: two runs that differ diverged
        after the last one they share."""
        self._queue: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0
        self._streams: dict[str, Random] = {}
        self._digest = hashlib.blake2b(digest_size=16)

    def stream(self, name: str) -> Random:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed}/{name}")
        return stream

    def at(self, moment: int, callback: Callable[..., object], *arguments: object) -> None:
        """Call back at a moment (nanoseconds), or now if it has passed."""
        self._sequence += 1
        heapq.heappush(self._queue, (moment, self._sequence, callback, arguments))

    def next_moment(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def advance(self) -> None:
        moment, _, callback, arguments = heapq.heappop(self._queue)
        if moment > self.now:
            self.now = moment
        callback(*arguments)

    def record(self, *fields: object) -> None:
        """Add to the digest, and to the trace if it is kept."""
        entry: Any = (self.now, *fields)
        try:
            self._digest.update(marshal.dumps(entry, MARSHAL_VERSION))
        except ValueError:
            self._digest.update(repr(entry).encode())
        self.events += 1
        if not self.events % CHECKPOINT_EVENTS:
            self.checkpoints.append(self._digest.hexdigest()[:CHECKPOINT_CHARACTERS])
        if self.trace is not None:
            self.trace.append(entry)

    def digest(self) -> str:
        return self._digest.hexdigest()

    def clear(self) -> None:
        self._queue.clear()


class HostClock(trio.abc.Clock):
    """Clock of one host, for trio and for `World.clock`.

    Monotonic time runs at `rate` against the timeline; wall time is offset from it and may jump.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._rate = 1.0
        self._anchor = 0
        self._anchor_local = 0
        self._boot_local = 0
        self.wall_offset_ms = 0
        self.wall_rate = 1
        """Seconds of wall time in one second of monotonic time, so that hours pass in a minute."""

    def local(self) -> int:
        """Return nanoseconds by this clock."""
        elapsed = self._timeline.now - self._anchor
        if self._rate == 1.0:
            return self._anchor_local + elapsed
        return self._anchor_local + int(elapsed * self._rate)

    @property
    def rate(self) -> float:
        """Seconds of this clock in one second of the timeline."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._anchor_local = self.local()
        self._anchor = self._timeline.now
        self._rate = rate

    def until(self, seconds: float) -> int:
        """Return the moment of the timeline that is `seconds` of this clock away, rounded up."""
        return self._timeline.now + max(1, math.ceil(seconds * SECOND / self._rate))

    def boot(self) -> None:
        """Restart the boot time, as the host has booted."""
        self._boot_local = self.local()

    def start_clock(self) -> None:
        """Do nothing."""

    def current_time(self) -> float:
        return self.local() / SECOND

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def wall_ms(self) -> int:
        return EPOCH_MS + self.local() * self.wall_rate // MILLISECOND + self.wall_offset_ms

    def utc_offset_ms(self) -> int:
        """Return 0: a host's local time is UTC."""
        return 0

    def monotonic(self) -> float:
        return (self.local() - self._boot_local) / SECOND
