"""Backlog of readers in messages, by the rows of a history."""

from rocketbed.chaos.evidence.history import FINAL_READER, Function, Outcome, Row
from rocketbed.chaos.evidence.lag import Lag

TOPIC, GROUP, MASTER, SLAVE = 1, 2, 3, 4


def row(function: Function, **columns: int) -> Row:
    """An attempt in queue 0 that was answered."""
    empty = Row(*[-1] * len(Row._fields))
    values = {"topic": TOPIC, "queue": 0, "outcome": Outcome.OK, "node": GROUP} | columns
    return empty._replace(function=function, **values)


def sent(offset: int, **columns: int) -> Row:
    return row(Function.SEND, queue_offset=offset, **columns)


def stood(at: int, *, group: int = 1, **columns: int) -> Row:
    return row(Function.COMMIT_OFFSET, operation=group, queue_offset=at, **columns)


def lag_of(*rows: Row) -> int:
    lag = Lag({MASTER: GROUP, SLAVE: GROUP})
    for added in rows:
        lag.add(added)
    return lag.messages


def test_group_lags_behind_acknowledged_messages() -> None:
    assert lag_of(stood(0)) == 0
    assert lag_of(stood(0), sent(4), sent(2)) == 5
    assert lag_of(stood(0), sent(4), row(Function.DELIVER, operation=1, queue_offset=0)) == 4
    assert lag_of(stood(0), sent(4), stood(5)) == 0


def test_slowest_reader_counts_over_all_its_queues() -> None:
    ends = sent(9), sent(9, queue=1)
    assert lag_of(*ends, stood(8), stood(6, queue=1), stood(9, group=2)) == 2 + 4


def test_group_that_goes_back_lags() -> None:
    back = row(Function.RESET_OFFSET, operation=1, queue_offset=1)
    assert lag_of(sent(4), stood(5), back) == 4


def test_follower_lags_behind_the_end_its_pull_reported() -> None:
    pull = row(Function.PULL, process=7, value=6, physical_offset=2, node=SLAVE)
    assert lag_of(pull) == 4
    assert lag_of(pull, sent(9)) == 8
    assert lag_of(pull._replace(process=FINAL_READER)) == 0


def test_lost_messages_are_no_backlog() -> None:
    bounds = row(Function.BOUNDS, value=3, node=MASTER)
    assert lag_of(sent(9), stood(2), bounds) == 1


def test_attempts_without_an_answer_tell_nothing() -> None:
    assert lag_of(stood(0), sent(4), stood(5, outcome=Outcome.INFO)) == 5
    assert lag_of(stood(0), sent(-1, outcome=Outcome.FAIL)) == 0


def test_deleted_topic_is_no_backlog() -> None:
    lag = Lag({})
    for added in (stood(0), sent(4), stood(0, topic=5), sent(1, topic=5)):
        lag.add(added)
    lag.remove_topic(TOPIC)
    assert lag.messages == 2
    lag.add(sent(0))  # recreated, and not read yet
    assert lag.messages == 2
