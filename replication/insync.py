"""Which slaves keep up. Pure.

In classic mode this is a count for people (runtime info, code 907): a send is never refused for it
(replication.md 1.8, first row).
"""

from collections.abc import Iterable

GAP_MAX = 256 * 1024 * 1024
"""Bytes behind the master from which a slave is out of sync (`haMaxGapNotInSync`, 256 MiB)."""


def is_in_sync(master_end: int, acknowledged: int, gap_max: int = GAP_MAX) -> bool:
    """Whether a slave that reported `acknowledged` keeps up."""
    return master_end - acknowledged < gap_max


def count_in_sync(master_end: int, acks: Iterable[int], gap_max: int = GAP_MAX) -> int:
    return sum(is_in_sync(master_end, acknowledged, gap_max) for acknowledged in acks)
