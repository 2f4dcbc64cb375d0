"""Where two logs part: comparing backwards, one connection after another (design.md 13).

The classic protocol knows one question, "send me your log from here". So a slave whose log is not
a part of its master's asks from ever lower offsets, 64 KiB back, then 128 KiB, and so on, and
compares what comes with its own bytes. Once at least one whole record of its own was found equal
right below the first difference, everything below is taken for equal too: a record names its
offset, its writer's address and its store time, and bytes were only ever appended to a slave after
such a comparison. Fewer bytes prove nothing: two logs may agree inside a body by chance.
"""

from dataclasses import dataclass
from typing import Final

from rocketbed.replication.api import LogCutter, ReplicaLog, WholeRecord
from rocketbed.replication.errors import CutRefused, NothingInCommon
from rocketbed.replication.fresh import LogBounds

STEP_SIZE: Final = 64 * 1024
"""The first step back, bytes; it doubles."""
EMPTY_IT: Final = "empty this slave's store directory, so that it copies the whole log"
"""What to do with a log that has nothing in common with its master's."""
UNSERVED_MAX: Final = 2
"""Connections that end without an answer before a lower offset is tried: a RocketMQ master says
nothing to a question beyond its end, ours closes."""


@dataclass(frozen=True, slots=True)
class Parted:
    """What one comparison found: equal from `first` to `offset`, and not beyond."""

    first: int
    offset: int
    """First different byte, or the end of the master's log."""
    reason: str


class PrefixSearch:
    """The search of one slave against one master. Nothing of it is kept on disk."""

    def __init__(self, log: ReplicaLog, cutter: LogCutter) -> None:
        self._log = log
        self._cutter = cutter
        self.bounds: LogBounds | None = None
        """What the master's log holds, as far as it says so."""
        self.advice = ""
        """What to do where nothing is common; empty: nothing special is known of this master."""
        self._known = -1
        """Lowest offset that was found different, or was not served; -1 for none yet."""
        self._step = STEP_SIZE
        self._unserved = 0

    def reset(self) -> None:
        """The logs agree now, or the master is another one."""
        self._known = -1
        self._step = STEP_SIZE
        self._unserved = 0

    @property
    def floor(self) -> int:
        """The lowest offset that both logs may have; 1 stands for 0, which cannot be asked for."""
        theirs = self.bounds.first if self.bounds is not None else 0
        return max(self._log.min_offset, theirs, 1)

    def first_report(self, usual: int) -> int:
        """Where to begin comparing; `usual` is where a slave begins that knows of no difference.

        Raises `NothingInCommon` when the master's log ends before ours begins, or begins where
        ours ends.
        """
        own_end = self._log.written.value
        if self.bounds is not None and self.bounds.first >= own_end:
            # Nothing could be compared, and what is not compared is not followed.
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
            if not 0 <= self._known <= self.bounds.end:
                self._known = self.bounds.end
        if self._known < 0:
            return usual
        return min(max(self._known - self._step, self.floor), max(usual, self.floor))

    def not_served(self, first: int) -> None:
        """The master ended a connection without sending what was asked for."""
        self._unserved += 1
        if self._unserved >= UNSERVED_MAX and first > self.floor:
            self._go_below(first)

    def _go_below(self, first: int) -> None:
        self._known = first
        self._step *= 2
        self._unserved = 0

    async def judge(self, parted: Parted) -> WholeRecord | None:
        """The last common record, None when a lower comparison is needed to tell.

        Raises `NothingInCommon` when there is no lower one, `CutRefused` for a master that is
        none: a former master that came back as a slave may still have to be cut itself.
        """
        if self.bounds is not None and self.bounds.is_slave:
            raise CutRefused(f"{parted.reason}; but it is a slave itself, so nothing is cut for it")
        last = await self._cutter.last_record(parted.offset)
        first = 0 if parted.first == 1 else parted.first
        # The whole record must lie in the compared range: fewer equal bytes may be chance.
        if last is not None and last.start >= first:
            return last
        if parted.first <= self.floor:
            raise NothingInCommon(
                f"{parted.reason}; from {first}, where both logs have something, no whole"
                f" record is common; {self.advice or EMPTY_IT}"
            )
        self._go_below(parted.first)
        return None
