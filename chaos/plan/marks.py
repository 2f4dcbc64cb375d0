"""The named points in the node's code: where a crash or a fault is worth most, and what coverage is
counted by. `crash TARGET at mark NAME` dies there."""

from collections.abc import Mapping
from typing import Final

MARKS: Final[Mapping[str, str]] = {
    "store.lock_taken": "a starting node has locked its directory",
    "store.recovery_begun": "files are found, nothing is changed",
    "store.abort_created": "from here on an unclean shutdown is detected",
    "store.recovery_scan": "queues and index are at the mark, the log behind it is to be read",
    "store.recovery_cut": "the log's torn tail is saved and about to be truncated",
    "store.recovery_finished": "all is dispatched and the mark stands at the end",
    "store.segment_made": "a log segment was created by the write that needed it",
    "store.segment_made_ahead": "a log segment was created ahead of need",
    "store.queue_made": "a queue received its first message",
    "store.queue_segment_made": "a queue segment was created",
    "store.index_file_made": "an index file was created",
    "store.ring_lost": "the ring of entries overflowed, the log is to be read again for them",
    "store.mark_backed": "log, queues and index are synced, the mark is not written",
    "store.mark_renamed": "the mark's file is replaced, its directory entry not synced",
    "store.mark_stored": "the mark is durable, the checkpoint is not written",
    "store.checkpoint_written": "the checkpoint is written, not synced",
    "store.mark_raised": "the whole flush is done",
    "store.queues_remade": "a slave noted that it makes a topic's queues again, all stand yet",
    "store.cut_recorded": "a log truncation is recorded but not carried out",
    "store.cut_zeroed": "the truncated part reads as zeros, its segments still exist",
    "store.cut_done": "the record of a truncation is removed",
    "store.retention_removed": "an expired segment was deleted",
    "store.stop_dispatched": "a clean stop has dispatched everything, nothing is flushed",
    "store.stop_flushed": "and flushed it",
    "store.abort_removed": "the stop is clean, the directory entry not synced",
    "topics.written": "the table of topics is written to a temporary file, not synced",
    "topics.renamed": "and renamed into place, the directory not synced",
    "offsets.written": "the same of the groups' positions",
    "offsets.renamed": "and theirs",
    "config.written": "the same of another table",
    "config.renamed": "and its",
    "node.stopping": "a node was told to stop",
    "replication.following": "a slave's log matches its master's",
    "replication.parted": "a slave's log was found to diverge",
    "replication.cut": "and was truncated",
}
"""Name and what has just happened."""
RUNNING: Final = (
    "store.segment_made*",
    "store.queue_segment_made",
    "store.index_file_made",
    "store.ring_lost",
    "store.mark_*",
    "store.checkpoint_written",
    "topics.*",
    "offsets.*",
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
    "*s.written",
    "replication.parted",
)
"""Those of a start."""
