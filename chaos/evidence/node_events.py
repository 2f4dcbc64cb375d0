"""Log events of a node that a run records, and what they say of its store and its master."""

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
"""Log events by which it reports what is wrong with its store, and the field that says what."""
ALARMS: Final = ("store.damage", "store.index_damage")
"""Those that say that a disk did not keep what was written."""
MENDED: Final = "store.recovery_finding"
"""The one of them after which its store is in order."""
FOLLOWING: Final = ("replication.refused", "replication.following", "replication.master_set")
"""Log events by which a slave says how it stands with its master."""


def says_to_empty_it(event: str, reason: object) -> str:
    """Why a slave has to be emptied, by its last event of `FOLLOWING`; empty: it has not."""
    return str(reason) if event == FOLLOWING[0] and str(reason).endswith(EMPTY_IT) else ""
