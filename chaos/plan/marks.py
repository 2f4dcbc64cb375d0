"""Named points in the node's code at which a crash or a fault is most valuable; coverage is counted
by them. `crash TARGET at mark NAME` dies at one."""

from collections.abc import Mapping
from typing import Final

MARKS: Final[Mapping[str, str]] = {
    "store.lock_taken": "a starting node has locked its directory",
    "store.recovery_begun": "files are listed, nothing is changed",
    "store.abort_created": "from here on an unclean shutdown is detected",
    "store.recovery_scan": "queues and index are at the mark, the log after it is to be read",
    "store.recovery_cut": "the log's torn tail is saved and about to be truncated",
    "store.recovery_finished": "all is dispatched and the mark is at the end",
    "store.segment_made": "a log segment was created by the write that needed it",
    "store.segment_made_ahead": "a log segment was created ahead of need",
    "store.queue_made": "a queue received its first message",
    "store.queue_segment_made": "a queue segment was created",
    "store.index_file_made": "an index file was created",
    "store.ring_lost": "the ring of entries overflowed, they are to be read from the log",
    "store.mark_backed": "log, queues and index are synced, the mark is not written",
    "store.mark_renamed": "the mark's file is replaced, its directory entry not synced",
    "store.mark_stored": "the mark is durable, the checkpoint is not written",
    "store.checkpoint_written": "the checkpoint is written, not synced",
    "store.mark_raised": "the whole flush is done",
    "store.queues_remade": "a slave noted that it will rebuild a topic's queues, all still exist",
    "store.cut_recorded": "a log truncation is recorded but not carried out",
    "store.cut_zeroed": "the truncated part reads as zeros, its segments still exist",
    "store.cut_done": "the record of a truncation is removed",
    "store.retention_removed": "an expired segment was deleted",
    "store.stop_dispatched": "a clean stop has dispatched everything, nothing is flushed",
    "store.stop_flushed": "a clean stop has flushed everything",
    "store.abort_removed": "the stop is clean, the directory entry not synced",
    "topics.written": "the table of topics is written to a temporary file, not synced",
    "topics.renamed": "the table of topics is renamed into place, the directory not synced",
    "offsets.written": "the groups' positions are written to a temporary file, not synced",
    "offsets.renamed": "the groups' positions are renamed into place, the directory not synced",
    "config.written": "another table is written to a temporary file, not synced",
    "config.renamed": "another table is renamed into place, the directory not synced",
    "node.stopping": "a node was told to stop",
    "replication.following": "a slave's log matches its master's",
    "replication.diverged": "a slave's log was found to diverge",
    "replication.cut": "a slave's log was truncated",
}
"""Name -> what has just happened."""
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
"""Patterns of marks that a running node passes."""
STOPPING: Final = ("node.stopping", "store.stop_dispatched", "store.stop_flushed", "store.abort_*")
"""Marks of a clean stop."""
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
    "replication.diverged",
)
"""Marks of a start."""
