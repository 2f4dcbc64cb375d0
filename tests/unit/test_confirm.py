"""From reports to the offset that enough replicas hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.replication.confirm import AckBoard, kth_highest
from rocketbed.replication.insync import count_in_sync, is_in_sync
from rocketbed.replication.watermark import Watermark


def joined(board: AckBoard, offset: int) -> int:
    key = board.join()
    board.report(key, offset)
    return key


def test_the_default_waits_for_nobody() -> None:
    confirmed = Watermark()
    board = AckBoard(1, confirmed)
    board.report(board.join(), 200)
    assert not board.waits
    assert confirmed.value == 0


def test_two_replicas_wait_for_the_fastest_slave() -> None:
    confirmed = Watermark()
    board = AckBoard(2, confirmed)
    assert board.waits
    one, other = joined(board, 100), joined(board, 50)
    assert confirmed.value == 100
    board.report(other, 300)
    assert confirmed.value == 300
    board.report(one, 200)
    assert confirmed.value == 300


def test_three_replicas_wait_for_two_slaves() -> None:
    confirmed = Watermark()
    board = AckBoard(3, confirmed)
    one = joined(board, 500)
    assert confirmed.value == 0
    joined(board, 100)
    assert confirmed.value == 100
    board.leave(one)
    joined(board, 400)
    assert confirmed.value == 100
    board.report(board.join(), 450)
    assert confirmed.value == 400


def test_a_slave_that_left_counts_no_more_but_takes_nothing_back() -> None:
    confirmed = Watermark()
    board = AckBoard(2, confirmed)
    one = joined(board, 100)
    board.leave(one)
    board.leave(one)
    assert board.acks == {}
    assert confirmed.value == 100
    joined(board, 40)
    assert confirmed.value == 100


def test_nobody_holds_every_message() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        AckBoard(0)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 6))
def test_k_replicas_have_reached_the_kth_highest_and_no_more(offsets: list[int], k: int) -> None:
    found = kth_highest(offsets, k)
    if found is None:
        assert len(offsets) < k
    else:
        assert sum(offset >= found for offset in offsets) >= k
        assert sum(offset > found for offset in offsets) < k


def test_in_sync_is_within_the_gap() -> None:
    assert is_in_sync(1000, 901, 100)
    assert not is_in_sync(1000, 900, 100)
    assert count_in_sync(1000, [1000, 950, 900, 0], 100) == 2
