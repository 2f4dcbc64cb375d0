"""List of all checks, in the order of the report."""

from typing import Final

from rocketbed.chaos.checks.check import Check
from rocketbed.chaos.checks.delivery import (
    backlog,
    dead_letters,
    listener_losses,
    listener_order,
    listeners,
    order,
    pulls,
    queries,
    reads,
)
from rocketbed.chaos.checks.groups import (
    commits,
    kept_positions,
    positions,
    reported_positions,
    subscriptions,
)
from rocketbed.chaos.checks.liveness import answers, service, waits
from rocketbed.chaos.checks.messages import losses, promises, stored
from rocketbed.chaos.checks.replication import failover, lag, links, logs, truncation
from rocketbed.chaos.checks.store import (
    deleted_topics,
    files,
    idempotence,
    marks,
    recovery,
    retention,
    settings,
    tables,
    topic_changes,
)

WAITING: Final = [
    {"id": "dirty-half", "waits_for": "transactions"},
    {"id": "lost-commit", "waits_for": "transactions"},
]
"""Checks of chaos.md 2.5 whose feature does not exist yet; not run."""

CHECKS: Final[tuple[Check, ...]] = (
    # loss, and sent messages against stored ones
    losses.lost_writes,
    losses.allowed_loss,
    promises.early_acknowledgements,
    promises.early_reads,
    reads.unseen,
    stored.phantom_writes,
    stored.unknown_values,
    stored.altered_labels,
    stored.duplicates,
    stored.retried_duplicates,
    stored.inconsistent_offsets,
    stored.moved_writes,
    stored.nonmonotonic_sends,
    # reads of readers and groups, and answers to queries
    reads.polls_rise,
    reads.polls_skip,
    pulls.polls_over_time,
    reads.poll_positions,
    reads.vanished_reads,
    reads.future_reads,
    order.order_violations,
    reads.lag,
    queries.key_queries,
    queries.bounds,
    queries.time_searches,
    queries.store_times,
    backlog.group_backlog,
    backlog.follower_skip,
    backlog.late_deliveries,
    backlog.delays_under_faults,
    deleted_topics.deleted_messages,
    topic_changes.forbidden_reads,
    commits.group_skips,
    commits.early_commits,
    commits.redeliveries,
    positions.offset_regress,
    kept_positions.forgotten_positions,
    reported_positions.positions_beyond,
    reported_positions.other_positions,
    positions.offset_overrun,
    subscriptions.unwanted_tags,
    subscriptions.unfiltered_pulls,
    subscriptions.rewinds,
    subscriptions.delivery_order,
    # calls of listeners
    listeners.early_calls,
    listener_losses.never_heard,
    listener_losses.wrong_places,
    listeners.late_calls,
    dead_letters.retries,
    listeners.delayed_twice,
    listener_order.two_at_once,
    listener_order.calls_in_order,
    listener_order.late_in_order,
    # logs against each other, directories, recoveries, and liveness
    stored.dense_queues,
    logs.equal_logs,
    logs.equal_images,
    links.zombie_bytes,
    links.kept_cuts,
    truncation.cuts_on_disk,
    links.honest_reports,
    links.catch_up,
    links.half_open,
    lag.late_copies,
    files.store_checks,
    files.image_checks,
    marks.honest_marks,
    marks.kept_flushed_mark,
    files.whole_tables,
    files.false_alarms,
    files.abort_law,
    tables.tables_complete,
    tables.topics_first,
    deleted_topics.deletion_complete,
    topic_changes.changes_kept,
    settings.settings_kept,
    kept_positions.positions_in_images,
    retention.retention,
    recovery.recovered_ends,
    idempotence.recovery_idempotent,
    recovery.writes_after_error,
    files.two_owners,
    waits.crashes,
    waits.liveness,
    waits.producers_succeed,
    waits.answered_in_recovery,
    answers.unanswered_sends,
    service.recovery_time,
    service.progress,
    service.nothing_lost,
    failover.turns,
    failover.nobody_else,
    failover.positions_over_turns,
)
CHECK_IDS: Final = tuple(id_ for check in CHECKS for id_ in check.ids)
"""Ids of all checks, in the order of the report."""
MEANINGS: Final = {
    id_: meaning for check in CHECKS for id_, meaning in zip(check.ids, check.meanings, strict=True)
}
"""Check -> the sentence that holds if the check does."""
