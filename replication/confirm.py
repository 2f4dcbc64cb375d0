"""The offset that enough replicas hold, by slaves' acknowledgements. Pure: no await, no I/O.

RocketMQ waits for `inSyncReplicas` copies, the master's own among them (replication.md 1.8); its
default of 1 waits for no slave. A classic slave has no identity, and several may share an address;
a connection that a slave has given up may look alive for 20 s. So connections from one address
count as different slaves only once their acknowledgements show it (replication.md 7.13,
"Counting").
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rocketbed.replication.watermark import Watermark

GAP_MAX = 256 * 1024 * 1024
"""Lag behind the master, bytes, from which a slave is out of sync (`haMaxGapNotInSync`, 256
MiB)."""


@dataclass(slots=True, eq=False)
class Link:
    """A slave's connection, for the count of replicas."""

    address: str
    """Host of the slave, which is assumed to be the same when it reconnects."""
    offered: int = 0
    """End of what was sent on it, or is being sent; a higher acknowledgement does not count."""
    acknowledged: int = 0
    number: int = 0
    """Order of its first acknowledgement on the board."""
    in_use_until: int = 0
    """Number of the newest link at whose first acknowledgement this one was still in use: it has
    acknowledged data sent on it after that. A slave uses one connection at a time, so two links
    whose ranges from `number` to `in_use_until` overlap are two slaves."""
    sent_before: deque[tuple[int, int]] = field(default_factory=deque)
    """Later links from its address, this one included, each with `offered` of that moment; a higher
    acknowledgement shows that this link was still in use then."""


def certain_slaves(links: Iterable[Link]) -> int:
    """Return the least number of slaves behind these links.

    Of one address, the most links that were in use at one moment: intervals on a line that overlap
    in pairs have a point in common.
    """
    by_address: dict[str, list[Link]] = {}
    for link in links:
        by_address.setdefault(link.address, []).append(link)
    return sum(_most_at_once(same) for same in by_address.values())


def _most_at_once(links: list[Link]) -> int:
    moments = [link.number for link in links]
    together = (
        sum(link.number <= moment <= link.in_use_until for link in links) for moment in moments
    )
    return max(1, *together) if len(links) > 1 else 1


def is_in_sync(master_end: int, acknowledged: int, gap_max: int = GAP_MAX) -> bool:
    """True if a slave with this acknowledgement keeps up."""
    return master_end - acknowledged < gap_max


def count_in_sync(master_end: int, acks: Iterable[int], gap_max: int = GAP_MAX) -> int:
    return sum(is_in_sync(master_end, acknowledged, gap_max) for acknowledged in acks)


class AckBoard:
    """Newest acknowledgement of each slave's connection, and the resulting watermark.

    Invariant: the watermark never falls: what enough replicas once had stays acknowledged, though
    one of them may have left since.
    """

    def __init__(self, in_sync_replicas: int, confirmed: Watermark | None = None) -> None:
        """`confirmed` rises to what `in_sync_replicas` replicas hold; None for no watermark."""
        if in_sync_replicas < 1:
            raise ValueError("at least one replica, the master itself, holds every message")
        self._slaves_needed = in_sync_replicas - 1
        self._confirmed = confirmed
        self._count = 0
        self.links: dict[Link, None] = {}
        """Connections with a first acknowledgement, in that order."""

    @property
    def waits(self) -> bool:
        """True if a send has to wait for any slave."""
        return self._slaves_needed > 0

    def join(self, link: Link) -> None:
        """Add a link with its first report, which acknowledges nothing."""
        self._count += 1
        link.number = self._count
        self.links[link] = None
        for earlier in self.links:
            if earlier.address != link.address:
                continue
            if earlier.sent_before and earlier.sent_before[-1][1] == earlier.offered:
                earlier.sent_before.pop()
            earlier.sent_before.append((link.number, earlier.offered))

    def acknowledge(self, link: Link, offset: int) -> None:
        """Record a later acknowledgement; a lower one is recorded as it is."""
        link.acknowledged = offset
        while link.sent_before and link.sent_before[0][1] < offset:
            link.in_use_until = link.sent_before.popleft()[0]
        self._raise_confirmed()

    def leave(self, link: Link) -> None:
        self.links.pop(link, None)

    def _raise_confirmed(self) -> None:
        if self._confirmed is None or not self._slaves_needed:
            return
        above = {link.acknowledged for link in self.links} - {0}
        for offset in sorted(above, reverse=True):
            if offset <= self._confirmed.value:
                return
            holders = [link for link in self.links if link.acknowledged >= offset]
            if certain_slaves(holders) >= self._slaves_needed:
                self._confirmed.advance(offset)
                return
