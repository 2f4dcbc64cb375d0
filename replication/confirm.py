"""From slaves' reports to the offset that enough replicas hold. Pure: no await, no I/O.

RocketMQ waits for `inSyncReplicas` copies, the master's own among them (replication.md 1.8); its
default of 1 waits for nobody. A classic slave has no identity, and several may share an address;
a connection that a slave has given up may look alive for 20 s. So connections from one address
count as different slaves only once their reports show it (replication.md 7.13, "Counting").
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rocketbed.replication.watermark import Watermark

GAP_MAX = 256 * 1024 * 1024
"""Bytes behind the master from which a slave is out of sync (`haMaxGapNotInSync`, 256 MiB)."""


@dataclass(slots=True, eq=False)
class Link:
    """A slave's connection, as the count of replicas sees it."""

    address: str
    """Host it comes from: a slave that dials again is taken to come from the same one."""
    offered: int = 0
    """End of what was sent on it, or is being sent; an acknowledgement of more is none."""
    acknowledged: int = 0
    number: int = 0
    """The board's count of first reports when this one's came."""
    in_use_until: int = 0
    """Number of the newest link at whose coming this one was still read: it has acknowledged what
    was sent on it after that. A slave reads one connection at a time, so two links with a number
    between `number` and `in_use_until` in common are two slaves."""
    sent_before: deque[tuple[int, int]] = field(default_factory=deque)
    """Links that came since, this one included, from its address, each with `offered` of that
    moment; an acknowledgement above it shows that this link was still in use."""


def certain_slaves(links: Iterable[Link]) -> int:
    """How many slaves these links stand for at least.

    Of one address, the most links that were in use at one moment: what intervals on a line have
    in common two by two, all of them have.
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
    """Whether a slave that reported `acknowledged` keeps up."""
    return master_end - acknowledged < gap_max


def count_in_sync(master_end: int, acks: Iterable[int], gap_max: int = GAP_MAX) -> int:
    return sum(is_in_sync(master_end, acknowledged, gap_max) for acknowledged in acks)


class AckBoard:
    """The newest report of each slave's connection, and the watermark they make.

    Invariant: the watermark never falls: what enough replicas once had stays acknowledged, though
    one of them may have left since.
    """

    def __init__(self, in_sync_replicas: int, confirmed: Watermark | None = None) -> None:
        """`confirmed` rises to what `in_sync_replicas` replicas hold; None to keep no watermark."""
        if in_sync_replicas < 1:
            raise ValueError("at least one replica, the master itself, holds every message")
        self._slaves_needed = in_sync_replicas - 1
        self._confirmed = confirmed
        self._count = 0
        self.links: dict[Link, None] = {}
        """Connections that gave a first report, in that order."""

    @property
    def waits(self) -> bool:
        """Whether a send has to wait for any slave."""
        return self._slaves_needed > 0

    def join(self, link: Link) -> None:
        """A first report came; it acknowledges nothing."""
        self._count += 1
        link.number = self._count
        self.links[link] = None
        for known in self.links:
            if known.address != link.address:
                continue
            if known.sent_before and known.sent_before[-1][1] == known.offered:
                known.sent_before.pop()
            known.sent_before.append((link.number, known.offered))

    def report(self, link: Link, offset: int) -> None:
        """A later report; one that falls back is taken as it is."""
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
