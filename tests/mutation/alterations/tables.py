"""Errors in the history of a recorded run: rows removed or changed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rocketbed.chaos.evidence.history import (
    FINAL_READER,
    Function,
    Outcome,
    Row,
    read_history,
)
from rocketbed.chaos.evidence.record import HISTORY_FILE, RunRecord
from tests.mutation.alterations.alteration import BEYOND, Alteration, replace_rows
from tests.mutation.alterations.listeners import TOLD_ALTERATIONS, UNSAFE
from tests.mutation.alterations.stores import KEPT

LATE_NS: Final = 3600 * 10**9
SLOW_NS: Final = 5 * 10**9
TIMEOUT_NS: Final = 3 * 10**9
COMMITTED_NS: Final = 10 * 10**9
"""So long after a delivery its member has committed it."""
READS: Final = (Function.GOT, Function.DELIVER)
Change = Callable[[Row], Row | None]
"""The row to be written instead; None for none."""


def _rows(change: Change, path: Path) -> bool:
    """Replace rows one by one; whether any is another one now."""
    return replace_rows(lambda rows: filter(None, map(change, rows)), path)


def _first(is_meant: Callable[[Row], bool], change: Change) -> Change:
    """Change the first row that is meant, only."""
    done = False

    def changed(row: Row) -> Row | None:
        nonlocal done
        if done or not is_meant(row):
            return row
        done = True
        return change(row)

    return changed


def _each(is_meant: Callable[[Row], bool], change: Change) -> Change:
    return lambda row: change(row) if is_meant(row) else row


def _is(*functions: Function, outcome: Outcome | None = None) -> Callable[[Row], bool]:
    return lambda row: row.function in functions and outcome in (None, row.outcome)


def _every_second(function: Function) -> Change:
    """Every second answer to this question did not come."""
    count = 0

    def changed(row: Row) -> Row:
        nonlocal count
        count += row.function == function
        is_meant = row.function == function and count % 2
        return row._replace(outcome=Outcome.INFO) if is_meant else row

    return changed


def _low_between() -> Change:
    """A queue's end is one too low wherever it has risen since a node told it: it never falls."""
    ends_told: dict[tuple[int, ...], int] = {}

    def changed(row: Row) -> Row:
        if row.function != Function.BOUNDS or row.process == FINAL_READER:
            return row
        place = row.node, row.topic, row.queue
        low = row._replace(value=max(row.value - 1, ends_told.get(place, 0)))
        ends_told[place] = low.value
        return low

    return changed


SENT_OK: Final = _is(Function.SEND, outcome=Outcome.OK)


def _removed(_row: Row) -> None:
    return None


def _plus(name: str, much: int = 1) -> Change:
    return lambda row: row._replace(**{name: getattr(row, name) + much})


def _of_group(path: Path, record: RunRecord, *, from_share: float) -> bool:
    """A group's deliveries and commits are gone, from a share of the run's time on."""
    numbers = sorted(record.consumer_groups.values())
    if not numbers:
        return False

    def change(row: Row) -> Row | None:
        is_lost = _is(Function.DELIVER, Function.COMMIT_OFFSET)(row) and row.operation == numbers[0]
        return None if is_lost and row.returned_ns >= from_share * record.recovery_ns else row

    return _rows(change, path)


def _of_followers(path: Path, record: RunRecord) -> bool:
    followers = set(record.followers.values())
    return _rows(
        _each(lambda row: row.function == Function.GOT and row.process in followers, _removed),
        path,
    )


def _last_delivery(change: Change, path: Path, _record: RunRecord) -> bool:
    """Change the last acknowledged message that a group got; no loss came after that."""
    rows = list(read_history(path / HISTORY_FILE).columns.rows())
    delivered = {row.value for row in rows if row.function == Function.DELIVER}
    sent = ((row.returned_ns, row.value) for row in rows if SENT_OK(row) and row.value in delivered)
    value = max(sent, default=(0, BEYOND))[1]
    return _rows(
        _each(lambda row: row.function == Function.DELIVER and row.value == value, change),
        path,
    )


def _nobody_answered(path: Path, record: RunRecord) -> bool:
    """No send was acknowledged in half of the fault phase: all timed out."""
    begin = int(record.facts.get("zero_ns", 0))
    faults_ns = record.recovery_ns - begin

    def change(row: Row) -> Row:
        share = (row.invoked_ns - begin) / max(faults_ns, 1)
        if not SENT_OK(row) or not 0.3 <= share < 0.8:
            return row
        unknown = {"queue": -1, "queue_offset": -1, "physical_offset": -1, "node": 0, "status": -1}
        return row._replace(
            outcome=Outcome.INFO, returned_ns=row.invoked_ns + TIMEOUT_NS, **unknown
        )

    return _rows(change, path)


def _change(name: str, effect: str, change: Callable[[], Change]) -> Alteration:
    """An alteration of rows; a change that counts is made anew for each run."""
    return Alteration(name, effect, lambda path, _record: _rows(change(), path))


ALTERATIONS: Final = (
    Alteration("group-gone", "nothing was delivered to a group", partial(_of_group, from_share=-1)),
    Alteration(
        "group-half",
        "a group stopped half-way through the fault phase",
        partial(_of_group, from_share=0.5),
    ),
    Alteration("followers-empty", "pulls of followers gave no messages", _of_followers),
    _change(
        "final-empty",
        "pulls of the final reader gave no messages",
        lambda: _each(
            lambda row: row.function == Function.GOT and row.process == FINAL_READER, _removed
        ),
    ),
    Alteration(
        "delivery-lost", "one message never came to a group", partial(_last_delivery, _removed)
    ),
    Alteration(
        "committed-early",
        "a group stored its position before one message came",
        partial(_last_delivery, _plus("returned_ns", COMMITTED_NS)),
    ),
    _change(
        "deliveries-late",
        "deliveries came an hour late",
        lambda: _each(_is(Function.DELIVER), _plus("returned_ns", LATE_NS)),
    ),
    _change(
        "pulls-late",
        "messages were pulled an hour late",
        lambda: _each(_is(Function.GOT, Function.PULL), _plus("returned_ns", LATE_NS)),
    ),
    _change(
        "labels", "tags or keys were rewritten", lambda: _each(_is(*READS), _plus("label_crc"))
    ),
    _change("bodies", "bodies were rewritten", lambda: _each(_is(*READS), _plus("body_crc"))),
    _change(
        "acknowledged-nowhere",
        "a message was acknowledged that is nowhere",
        lambda: _first(SENT_OK, _plus("value", BEYOND)),
    ),
    _change(
        "acknowledged-elsewhere",
        "an acknowledgement names another place",
        lambda: _first(SENT_OK, _plus("queue_offset")),
    ),
    _change(
        "refused-stored",
        "a refused message is there",
        lambda: _first(SENT_OK, lambda row: row._replace(outcome=Outcome.FAIL)),
    ),
    _change(
        "acknowledged-unsafe",
        "a send was told at once that slaves had not answered in time",
        lambda: _first(SENT_OK, lambda row: row._replace(**UNSAFE)),
    ),
    _change(
        "position-beyond",
        "a group committed beyond a queue's end",
        lambda: _first(
            _is(Function.COMMIT_OFFSET, outcome=Outcome.OK), _plus("queue_offset", BEYOND)
        ),
    ),
    _change(
        "commits-unanswered",
        "every second commit was not answered",
        lambda: _every_second(Function.COMMIT_OFFSET),
    ),
    _change(
        "searches-unanswered",
        "every second search by time was not answered",
        lambda: _every_second(Function.SEARCH_TIME),
    ),
    _change(
        "acknowledged-late",
        "acknowledgements took five seconds more",
        lambda: _each(SENT_OK, _plus("returned_ns", SLOW_NS)),
    ),
    Alteration(
        "faults-unanswered",
        "no send was acknowledged in half of the fault phase",
        _nobody_answered,
    ),
    _change(
        "positions-unread",
        "no commit was read back",
        lambda: _each(_is(Function.READ_OFFSET), _removed),
    ),
    _change(
        "commits-gone",
        "no group committed anything",
        lambda: _each(_is(Function.COMMIT_OFFSET), _removed),
    ),
    _change(
        "commits-unknown",
        "no commit was answered",
        lambda: _each(_is(Function.COMMIT_OFFSET), lambda row: row._replace(outcome=Outcome.INFO)),
    ),
    _change(
        "positions-forgotten",
        "nodes said that groups had committed nothing",
        lambda: _each(_is(Function.READ_OFFSET), lambda row: row._replace(queue_offset=0)),
    ),
    _change(
        "queries-failed",
        "every query by key failed",
        lambda: _each(
            _is(Function.QUERY_KEY), lambda row: row._replace(outcome=Outcome.INFO, queue_offset=-1)
        ),
    ),
    _change(
        "queries-empty",
        "queries by key found nothing",
        lambda: _each(_is(Function.QUERY_KEY), lambda row: row._replace(status=0, queue_offset=-1)),
    ),
    _change(
        "searches-gone",
        "no search by time was made",
        lambda: _each(_is(Function.SEARCH_TIME), _removed),
    ),
    _change(
        "searches-off",
        "searches by time gave the next message",
        lambda: _each(_is(Function.SEARCH_TIME), _plus("queue_offset")),
    ),
    _change(
        "searches-early",
        "searches by time gave the message before",
        lambda: _each(_is(Function.SEARCH_TIME), _plus("queue_offset", -1)),
    ),
    _change(
        "searches-empty",
        "searches by time found nothing",
        lambda: _each(_is(Function.SEARCH_TIME), lambda row: row._replace(queue_offset=-1)),
    ),
    _change(
        "bounds-low",
        "a queue's end was told one too low",
        lambda: _each(_is(Function.BOUNDS), _plus("value", -1)),
    ),
    _change(
        "bounds-low-between",
        "while a queue grew its end was told one too low",
        _low_between,
    ),
    _change(
        "bounds-late",
        "a queue's first message was told one too high",
        lambda: _each(_is(Function.BOUNDS), _plus("operation")),
    ),
    _change(
        "pull-bounds",
        "pulls told of empty queues",
        lambda: _each(_is(Function.PULL), lambda row: row._replace(value=0, operation=0)),
    ),
    _change(
        "positions-ahead",
        "nodes said more than groups had committed",
        lambda: _each(_is(Function.READ_OFFSET), _plus("queue_offset")),
    ),
    _change(
        "delivered-elsewhere",
        "deliveries name another queue",
        lambda: _each(_is(Function.DELIVER), _plus("queue", 100)),
    ),
    _change(
        "bounds-off",
        "a queue's end was told one too high",
        lambda: _each(_is(Function.BOUNDS), _plus("value")),
    ),
    _change(
        "offsets-off",
        "messages were pulled at the next one's place",
        lambda: _each(_is(Function.GOT), _plus("queue_offset")),
    ),
    *KEPT,
    *TOLD_ALTERATIONS,
)
