"""Search for the point where two logs diverge, backwards, one connection after another (design.md
13).

The classic protocol has one request, "send me your log from here". So a slave whose log is not a
part of its master's requests ever lower offsets, 64 KiB back, then 128 KiB, and so on, and compares
the data with its own bytes. Once at least one whole record of its own was equal right below the
first difference, everything below is taken to be equal too: a record contains its offset, its
writer's address and its store time, and bytes were only ever appended to a slave after such a
comparison. Fewer bytes prove nothing: two logs may agree inside a body by chance.
"""

from dataclasses import dataclass
from typing import Final

from rocketbed.replication.api import LogCutter, ReplicaLog, WholeRecord
from rocketbed.replication.errors import CutRefused, NothingInCommon
from rocketbed.replication.fresh import LogBounds

STEP_SIZE: Final = 64 * 1024
"""First step back, bytes; it doubles."""
EMPTY_IT: Final = "empty this slave's store directory, so that it copies the whole log"
"""Advice for a log that has nothing in common with its master's."""
UNSERVED_MAX: Final = 2
"""Connections without an answer before a lower offset is tried: a RocketMQ master does not answer a
request beyond its end, ours closes."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Result of one comparison: equal from `first` to `offset`, and not beyond."""

    first: int
    offset: int
    """First different byte, or the end of the master's log."""
    reason: str


class PrefixSearch:
    """Search of one slave against one master. It is in memory only."""

    def __init__(self, log: ReplicaLog, cutter: LogCutter) -> None:
        self._log = log
        self._cutter = cutter
        self.bounds: LogBounds | None = None
        """Bounds of the master's log, if it answers that."""
        self.advice = ""
        """Advice if nothing is common; empty: no special advice for this master."""
        self._different_at = -1
        """Lowest offset that was different, or was not served; -1 for none yet."""
        self._step = STEP_SIZE
        self._unserved = 0

    def reset(self) -> None:
        """Start over: the logs agree now, or the master is another one."""
        self._different_at = -1
        self._step = STEP_SIZE
        self._unserved = 0

    @property
    def floor(self) -> int:
        """Lowest offset that both logs may have; 1 stands for 0, which cannot be requested."""
        theirs = self.bounds.first if self.bounds is not None else 0
        return max(self._log.min_offset, theirs, 1)

    def first_report(self, usual: int) -> int:
        """Return where to begin comparing; `usual` is the offset without a known difference.

        Raises `NothingInCommon` if the master's log ends before ours begins, or begins where ours
        ends.
        """
        own_end = self._log.written.value
        if self.bounds is not None and self.bounds.first >= own_end:
            # Nothing could be compared, and an uncompared master is not followed.
            raise NothingInCommon(
                f"the master's log begins at {self.bounds.first}, this slave's ends at {own_end}:"
                f" nothing is common; {EMPTY_IT}"
            )
        if self.bounds is not None and self.bounds.end < own_end:
            if self.bounds.end <= self._log.min_offset:
                raise NothingInCommon(
                    f"the master's log ends at {self.bounds.end}, this slave's begins at"
                    f" {self._log.min_offset}: nothing is common; {self.advice or EMPTY_IT}"
                )
            if not 0 <= self._different_at <= self.bounds.end:
                self._different_at = self.bounds.end
        if self._different_at < 0:
            return usual
        return min(max(self._different_at - self._step, self.floor), max(usual, self.floor))

    def not_served(self, first: int) -> None:
        """Note that the master ended a connection without sending the requested data."""
        self._unserved += 1
        if self._unserved >= UNSERVED_MAX and first > self.floor:
            self._go_below(first)

    def _go_below(self, first: int) -> None:
        self._different_at = first
        self._step *= 2
        self._unserved = 0

    async def judge(self, divergence: Divergence) -> WholeRecord | None:
        """Return the last common record, None if a lower comparison is needed.

        Raises `NothingInCommon` if there is no lower one, `CutRefused` for a master that is a slave
        itself: a former master that came back may still have to be cut.
        """
        if self.bounds is not None and self.bounds.is_slave:
            raise CutRefused(
                f"{divergence.reason}; but it is a slave itself, so nothing is truncated for it"
            )
        last = await self._cutter.last_record(divergence.offset)
        first = 0 if divergence.first == 1 else divergence.first
        # The whole record must lie in the compared range: fewer equal bytes may be chance.
        if last is not None and last.start >= first:
            return last
        if divergence.first <= self.floor:
            raise NothingInCommon(
                f"{divergence.reason}; from {first}, where both logs have something, no whole"
                f" record is common; {self.advice or EMPTY_IT}"
            )
        self._go_below(divergence.first)
        return None
