"""The named points in the node's code: where a crash or a fault is worth most, and what coverage is
counted by. `crash TARGET at mark NAME` dies there."""

from collections.abc import Mapping
from typing import Final

MARKS: Final[Mapping[str, str]] = {
    "store.lock_taken": "a start has the directory for itself",
    "store.recovery_begun": "files are found, nothing is changed",
    "store.abort_created": "from here on an end without a stop shows",
    "store.recovery_scan": "queues and index are at the mark, the log behind it is to be read",
    "store.recovery_cut": "the log's torn tail is kept aside and about to be cut",
    "store.recovery_finished": "all is dispatched and the mark stands at the end",
    "store.segment_made": "a segment of the log was made by the write that needed it",
    "store.segment_made_ahead": "a segment of the log was made before it is needed",
    "store.queue_made": "the first message of a queue came",
    "store.queue_segment_made": "a segment of a queue was made",
    "store.index_file_made": "an index file was made",
    "store.mark_backed": "log, queues and index are synced, the mark is not written",
    "store.mark_renamed": "the mark's file is replaced, the name not synced",
    "store.mark_stored": "the mark is durable, the checkpoint is not written",
    "store.checkpoint_written": "the checkpoint is written, not synced",
    "store.mark_raised": "all of that is done",
    "store.cut_recorded": "a cut of the log is on record, and not done",
    "store.cut_zeroed": "what is cut reads as zeros, its segments are still there",
    "store.cut_done": "a cut is off the record",
    "store.retention_removed": "an expired segment was deleted",
    "store.stop_dispatched": "a clean stop has dispatched what there is, not flushed",
    "store.stop_flushed": "and flushed it",
    "store.abort_removed": "the stop is clean, the name not synced",
    "config.written": "a table is written beside its file, not synced",
    "config.renamed": "and in its place, the names not synced",
    "node.stopping": "a node was told to stop",
    "replication.following": "a slave's log is one with its master's",
    "replication.parted": "a slave's log was found to be another",
    "replication.cut": "and was cut",
}
"""Name and what has just happened."""
RUNNING: Final = (
    "store.segment_made*",
    "store.queue_segment_made",
    "store.index_file_made",
    "store.mark_*",
    "store.checkpoint_written",
    "config.written",
    "config.*",
    "replication.*",
)
"""Patterns that a running node passes by itself."""
STOPPING: Final = ("node.stopping", "store.stop_dispatched", "store.stop_flushed", "store.abort_*")
"""Those of a clean stop."""
STARTING: Final = (
    "store.lock_taken",
    "store.recovery_begun",
    "store.abort_created",
    "store.recovery_scan",
    "store.recovery_cut",
    "store.mark_stored",
    "store.checkpoint_written",
    "store.recovery_finished",
    "store.cut_*",
    "config.written",
    "replication.parted",
)
"""Those of a start."""
