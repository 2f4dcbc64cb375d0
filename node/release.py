"""Answers that wait until the log is flushed, or held by enough slaves (design.md 6).

They wait as records, not as tasks. Both conditions are watermarks over the same log and all
deadlines are equally long, so answers are released in the order of their writes: one queue, whose
head is checked when a watermark rises, and one timer at that head.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from rocketbed.node.store.status import PutStatus
from rocketbed.replication.watermark import Watermark

Release = Callable[[PutStatus], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    end: int
    """Offset that the watermarks have to reach, bytes."""
    flush_deadline: float
    slave_deadline: float
    release: Release


class ReleaseQueue:
    """Queue in the order of end offsets. Invariant: ends and deadlines never fall along it."""

    def __init__(
        self,
        *,
        flushed: Watermark | None,
        confirmed: Watermark | None,
        flush_timeout_s: float,
        slave_timeout_s: float,
        elects: bool = False,
    ) -> None:
        """A watermark that is None is not waited for; with neither every answer is released at
        once. `elects`: in a group with failover, where the next leader may truncate whatever is not
        confirmed."""
        self._flushed = flushed
        self._confirmed = confirmed
        self._flush_timeout_s = flush_timeout_s
        self._slave_timeout_s = slave_timeout_s
        self._elects = elects
        self._queue: deque[_Waiting] = deque()
        self._filled = trio.Event()
        for watermark in (flushed, confirmed):
            if watermark is not None:
                watermark.subscribe(self._rise)

    @property
    def waits(self) -> bool:
        """True if answers have to wait for anything at all."""
        return self._flushed is not None or self._confirmed is not None

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, end: int, release: Release) -> None:
        """Call `release` with the outcome once the log is safe up to `end`, or its time is over; at
        once if nothing has to be waited for."""
        if not self._queue and self._is_safe(end):
            release(PutStatus.PUT_OK)
            return
        assert not self._queue or end >= self._queue[-1].end
        now = trio.current_time()
        self._queue.append(
            _Waiting(end, now + self._flush_timeout_s, now + self._slave_timeout_s, release)
        )
        self._filled.set()

    async def run(self) -> None:
        """Release answers whose time is over, until cancelled."""
        while True:
            if not self._queue:
                self._filled = trio.Event()
                await self._filled.wait()
            if self._queue:
                head = self._queue[0]
                await trio.sleep_until(min(head.flush_deadline, head.slave_deadline))
                self._expire()
                if self._queue and self._queue[0] is head:
                    await trio.sleep_until(self._give_up_at(head))
                    self._expire()

    def give_up(self) -> None:
        """Release all waiting answers as unsafe: this node no longer leads, and the next leader
        decides which of the records stay."""
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            waiting.release(self._unsafe(PutStatus.FLUSH_SLAVE_TIMEOUT))

    def _unsafe(self, status: PutStatus) -> PutStatus:
        """Return the outcome of a record that is in the log, and less safe than promised.

        Clients take the two time-outs for a send that succeeded. Where the record may be truncated
        they get a failure instead, which they repeat: a duplicate at worst.
        """
        return PutStatus.SERVICE_NOT_AVAILABLE if self._elects else status

    def _is_safe(self, end: int) -> bool:
        return (self._flushed is None or self._flushed.value >= end) and (
            self._confirmed is None or self._confirmed.value >= end
        )

    def _rise(self, _value: int) -> None:
        queue = self._queue
        while queue and self._is_safe(queue[0].end):
            queue.popleft().release(PutStatus.PUT_OK)
        self._expire()

    def _give_up_at(self, head: _Waiting) -> float:
        """Return the latest deadline among the conditions that do not hold yet."""
        deadline = 0.0
        if self._flushed is not None and self._flushed.value < head.end:
            deadline = head.flush_deadline
        if self._confirmed is not None and self._confirmed.value < head.end:
            deadline = max(deadline, head.slave_deadline)
        return deadline

    def _expire(self) -> None:
        """Release answers, from the head on, that ran out of time for all their open conditions.

        As in RocketMQ, the slaves' outcome takes precedence over the flush's.
        """
        now = trio.current_time()
        while self._queue:
            head = self._queue[0]
            if self._give_up_at(head) > now:
                return
            self._queue.popleft()
            if self._confirmed is not None and self._confirmed.value < head.end:
                head.release(self._unsafe(PutStatus.FLUSH_SLAVE_TIMEOUT))
            elif self._flushed is not None and self._flushed.value < head.end:
                head.release(self._unsafe(PutStatus.FLUSH_DISK_TIMEOUT))
            else:
                head.release(PutStatus.PUT_OK)
