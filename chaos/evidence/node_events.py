"""Log events of a node that a run records, and what they report of its store and its master."""

from typing import Final

from rocketbed.replication.prefix import EMPTY_IT

REFUSALS: Final = ("DamagedLog", "BadStoreDirectory", "TableLost")
"""Errors with which a node refuses to serve a damaged store."""
REPORTS: Final = {
    "store.damage": "reason",
    "store.index_damage": "reason",
    "store.dispatch_stopped": "reason",
    "store.unqueued_record": "topic",
    "store.odd_queue_offset": "problem",
    "store.recovery_finding": "finding",
}
"""Log events that report a problem of the store, with the field that describes it."""
ALARMS: Final = ("store.damage", "store.index_damage")
"""Events which report that a disk lost or altered what was written."""
REPAIRED: Final = "store.recovery_finding"
"""Event after which the store is in order."""
FOLLOWING: Final = ("replication.refused", "replication.following", "replication.master_set")
"""Log events by which a slave reports its state towards its master."""


def reason_to_empty(event: str, reason: object) -> str:
    """Return why a slave has to be emptied, by its last event of `FOLLOWING`; empty if it has
    not."""
    return str(reason) if event == FOLLOWING[0] and str(reason).endswith(EMPTY_IT) else ""
