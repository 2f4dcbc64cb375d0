"""The checks that there are, in the order of the report."""

from typing import Final

from rocketbed.chaos.checkers import (
    followers,
    groups,
    idempotence,
    links,
    liveness,
    loss_checks,
    messages,
    promises,
    queries,
    reads,
    recovery,
    replicas,
    service,
    stores,
)
from rocketbed.chaos.checkers.check import Check

WAITING: Final = [
    {"id": "A20", "name": "dirty half", "waits_for": "transactions"},
    {"id": "A21", "name": "lost commit", "waits_for": "transactions"},
    {"id": "A26", "name": "early delay", "waits_for": "delay levels"},
    {"id": "A27", "name": "late or never delay", "waits_for": "delay levels"},
    {"id": "A28", "name": "retry and dead letters", "waits_for": "delay levels"},
    {"id": "A29", "name": "double owner", "waits_for": "locks of ordered queues"},
]
"""Checks of chaos.md 2.5 that wait for the feature they judge; not run."""

CHECKS: Final[tuple[Check, ...]] = (
    # loss, and what was sent against what is there
    loss_checks.lost_writes,
    loss_checks.allowed_loss,
    promises.early_acknowledgements,
    reads.unseen,
    messages.phantom_writes,
    messages.unknown_values,
    messages.duplicates,
    messages.retried_duplicates,
    messages.inconsistent_offsets,
    messages.moved_writes,
    messages.nonmonotonic_sends,
    # what readers and groups saw, and answers to questions
    reads.polls_rise,
    reads.polls_skip,
    followers.polls_over_time,
    reads.poll_positions,
    reads.vanished_reads,
    reads.future_reads,
    groups.order_violations,
    reads.lag,
    queries.key_queries,
    queries.bounds,
    queries.time_searches,
    queries.store_times,
    groups.group_skips,
    groups.redeliveries,
    groups.offset_regress,
    groups.offset_overrun,
    # logs against each other, directories, recoveries, and liveness
    messages.dense_queues,
    replicas.equal_logs,
    replicas.equal_images,
    links.zombie_bytes,
    links.honest_reports,
    links.catch_up,
    links.half_open,
    stores.store_checks,
    stores.image_checks,
    stores.honest_marks,
    stores.whole_tables,
    stores.abort_law,
    recovery.recovered_ends,
    idempotence.recovery_idempotent,
    recovery.writes_after_error,
    stores.two_owners,
    liveness.crashes,
    liveness.liveness,
    liveness.producers_succeed,
    service.recovery_time,
    service.progress,
    service.nothing_lost,
)
