"""From slaves' reports to the offset that enough replicas hold. Pure: no await, no I/O.

RocketMQ waits for `inSyncReplicas` copies, the master's own among them (replication.md 1.8); its
default of 1 waits for nobody. What that many replicas have is the (k-1)-th highest report of the
slaves. A classic slave has no identity, so each connection counts as a replica; a slave's old
connection that has not died yet counts beside its new one until 20 s of silence end it.
"""

from collections.abc import Iterable

from rocketbed.replication.watermark import Watermark


def kth_highest(offsets: Iterable[int], k: int) -> int | None:
    """The highest offset that at least `k` of them have reached; None with fewer than `k`."""
    assert k >= 1
    ranked = sorted(offsets, reverse=True)
    return ranked[k - 1] if len(ranked) >= k else None


class AckBoard:
    """The newest report of each slave, and the watermark they make.

    Invariant: the watermark never falls: what enough replicas once had stays acknowledged, though
    one of them may have left since.
    """

    def __init__(self, in_sync_replicas: int, confirmed: Watermark | None = None) -> None:
        """`confirmed` rises to what `in_sync_replicas` replicas hold; None to keep no watermark."""
        if in_sync_replicas < 1:
            raise ValueError("at least one replica, the master itself, holds every message")
        self._slaves_needed = in_sync_replicas - 1
        self._confirmed = confirmed
        self._next_key = 0
        self.acks: dict[int, int] = {}
        """Newest report of each connected slave, by the key `join` gave."""

    @property
    def waits(self) -> bool:
        """Whether a send has to wait for any slave."""
        return self._slaves_needed > 0

    def join(self) -> int:
        """A slave came; it has acknowledged nothing yet. Returns its key."""
        self._next_key += 1
        self.acks[self._next_key] = 0
        return self._next_key

    def report(self, key: int, offset: int) -> None:
        """A later report; one that falls back is taken as it is."""
        self.acks[key] = offset
        self._raise_confirmed()

    def leave(self, key: int) -> None:
        self.acks.pop(key, None)

    def _raise_confirmed(self) -> None:
        if self._confirmed is not None and self._slaves_needed:
            held = kth_highest(self.acks.values(), self._slaves_needed)
            if held is not None:
                self._confirmed.advance(held)
