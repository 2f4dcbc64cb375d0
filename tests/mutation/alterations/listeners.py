"""Errors in the calls of listeners."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.wire.command import ResponseCode
from tests.mutation.alterations.alteration import Alteration, replace_rows

LATE_NS: Final = 20 * 10**9
TIMEOUT_NS: Final = 3 * 10**9
OTHER_PLACE: Final = 1000
UNSAFE: Final = {"outcome": Outcome.WEAK, "status": int(ResponseCode.FLUSH_SLAVE_TIMEOUT)}
Replace = Callable[[list[Row], RunRecord], Iterable[Row]]
"""All rows that are to be there instead of all rows."""


def _rows(replace: Replace, path: Path, record: RunRecord) -> bool:
    return replace_rows(lambda rows: replace(rows, record), path)


def _dead_twice(rows: list[Row], _record: RunRecord) -> Iterable[Row]:
    for row in rows:
        yield row
        if row.function == Function.DEAD:
            yield row._replace(queue_offset=row.queue_offset + OTHER_PLACE)


def _heard_after_death(rows: list[Row], record: RunRecord) -> Iterable[Row]:
    for row in rows:
        yield row
        is_last = row.attempt == record.listener_tries - 1 and row.outcome == Outcome.FAIL
        if row.function == Function.HEAR and is_last:
            times = row.invoked_ns + LATE_NS, row.returned_ns + LATE_NS
            yield row._replace(attempt=row.attempt + 1, invoked_ns=times[0], returned_ns=times[1])


def _exchanged(rows: list[Row], record: RunRecord) -> Iterable[Row]:
    """The first two calls of each queue that are of one process change their places."""
    queues: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        is_ordered = row.function == Function.HEAR and row.operation in record.ordered_listeners
        if is_ordered and not row.attempt and row.returned_ns >= 0:
            queues[row.operation, row.node, row.topic, row.queue, row.process].append(number)
    for numbers in queues.values():
        if len(numbers) > 1:
            first, second = (rows[number] for number in numbers[:2])
            times = ("invoked_ns", "returned_ns")
            rows[numbers[0]] = second._replace(**{name: getattr(first, name) for name in times})
            rows[numbers[1]] = first._replace(**{name: getattr(second, name) for name in times})
    return rows


def _repeats_late(rows: list[Row], _record: RunRecord) -> Iterable[Row]:
    for row in rows:
        late_ns = LATE_NS * row.attempt if row.function == Function.HEAR else 0
        times = row.invoked_ns + late_ns, row.returned_ns + late_ns
        yield row._replace(invoked_ns=times[0], returned_ns=times[1])


def _elsewhere(function: Function, rows: list[Row], _record: RunRecord) -> Iterable[Row]:
    for row in rows:
        is_meant = row.function == function and row.outcome == Outcome.OK
        yield row._replace(queue_offset=row.queue_offset + OTHER_PLACE) if is_meant else row


def _refused(rows: list[Row], _record: RunRecord) -> Iterable[Row]:
    for row in rows:
        is_told = row.function == Function.TELL and row.outcome == Outcome.OK
        yield row._replace(outcome=Outcome.FAIL) if is_told else row


def _calm(change: dict[str, int], rows: list[Row], record: RunRecord) -> Iterable[Row]:
    for row in rows:
        is_meant = row.function == Function.TELL and row.invoked_ns > record.recovery_ns
        yield row._replace(**change) if is_meant else row


def _unanswered_in_fault_phase(rows: list[Row], record: RunRecord) -> Iterable[Row]:
    number = 0
    for row in rows:
        is_told = row.function == Function.TELL and row.outcome == Outcome.OK
        is_meant = is_told and row.invoked_ns < record.recovery_ns
        number += is_meant
        if is_meant and number % 3 == 0:
            late_ns = row.invoked_ns + TIMEOUT_NS
            row = row._replace(outcome=Outcome.INFO, returned_ns=late_ns, status=-1)
        yield row


def _unheard(rows: list[Row], _record: RunRecord) -> Iterable[Row]:
    """No call for the first half of the delayed messages."""
    accepted = [row for row in rows if row.function == Function.TELL and row.outcome == Outcome.OK]
    delayed = [row.value for row in accepted if row.operation]
    removed = set(delayed[: -(-len(delayed) // 2)])
    calls = (Function.HEAR, Function.DEAD)
    return (row for row in rows if row.function not in calls or row.value not in removed)


def _unrepeated(rows: list[Row], record: RunRecord) -> Iterable[Row]:
    """Drop the repeats of refused messages; in the ordered group the first call stays."""
    loose = [one for one in record.listeners.values() if one not in record.ordered_listeners]
    for row in rows:
        is_again = row.function == Function.HEAR and row.attempt > 0
        if row.operation not in loose or not (is_again or row.function == Function.DEAD):
            yield row


TOLD_ALTERATIONS: Final = tuple(
    Alteration(name, what, partial(_rows, replace))
    for name, what, replace in (
        ("dead-twice", "each dead letter lies at two places", _dead_twice),
        ("heard-after-death", "a dead letter came once more", _heard_after_death),
        ("heard-exchanged", "a queue's messages came in another order", _exchanged),
        ("repeats-late", "what was refused came again 20 s late", _repeats_late),
        ("heard-elsewhere", "what was taken stands elsewhere", partial(_elsewhere, Function.HEAR)),
        (
            "told-elsewhere",
            "sends to listeners stand elsewhere",
            partial(_elsewhere, Function.TELL),
        ),
        ("told-refused", "sends to listeners were refused", _refused),
        (
            "told-unanswered",
            "in recovery no send to listeners was answered",
            partial(_calm, {"outcome": Outcome.INFO}),
        ),
        (
            "told-unsafe",
            "in recovery no send to listeners was said to be safe",
            partial(_calm, UNSAFE),
        ),
        (
            "told-timed-out",
            "in the fault phase every third send to listeners timed out",
            _unanswered_in_fault_phase,
        ),
        ("delayed-unheard", "half of the delayed messages were never delivered", _unheard),
        ("refused-unrepeated", "what was refused never came again", _unrepeated),
    )
)
