"""Losses of a replica between two of its incarnations (replication.md 7.6). Pure."""

from rocketbed.replication.entry import Policy


def lost_nothing(policy: Policy, *, stopped: bool, same_kernel: bool) -> bool:
    """Return True if it still holds every byte that it acknowledged.

    `stopped` if its abort file is gone, so that it ended in order; `same_kernel` if it came back
    with the page cache that it left. Bytes that were synced before they were acknowledged outlive a
    kernel.
    """
    return stopped or same_kernel or policy is Policy.FSYNC
