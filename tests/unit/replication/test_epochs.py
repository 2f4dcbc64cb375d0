"""Epoch histories: what can be one, and up to where two logs are the same."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.replication.epochs import (
    Epoch,
    History,
    Span,
    begun,
    check,
    common_end,
    cut_to,
    may_be_filled,
    spans,
)
from rocketbed.replication.errors import HistoryRefused


def history(*pairs: tuple[int, int]) -> History:
    return tuple(Epoch(*pair) for pair in pairs)


FILE = 8
"""Bytes of a file in the smallest of logs."""
LONG = history((0, 0), (1, 100), (4, 300))


def test_history_belongs_to_the_log_with_its_markers() -> None:
    assert check(LONG, 301) == LONG
    assert check((), 0) == ()
    with pytest.raises(HistoryRefused, match="cannot be in a log that ends at 300"):
        check(LONG, 300)


@pytest.mark.parametrize(
    "second", [(1, 200), (0, 200), (2, 100), (2, 50)], ids=["again", "older", "empty", "before"]
)
def test_epochs_rise_strictly_and_none_is_empty(second: tuple[int, int]) -> None:
    with pytest.raises(HistoryRefused, match=r"cannot follow|cannot be in a log"):
        begun(history((1, 100)), Epoch(*second))


def test_a_cut_takes_an_epoch_with_its_marker() -> None:
    assert cut_to(LONG, 301) == LONG
    assert cut_to(LONG, 300) == LONG[:2]
    assert cut_to(LONG, 0) == ()


def test_spans_end_where_the_next_begins() -> None:
    assert list(spans(LONG, 350)) == [
        Span(Epoch(0, 0), 100),
        Span(Epoch(1, 100), 300),
        Span(Epoch(4, 300), 350),
    ]
    assert list(spans((), 0)) == []


def test_common_end_is_in_the_newest_common_epoch() -> None:
    second = history((0, 0), (1, 100), (2, 250), (3, 260))
    assert common_end(second, 280, LONG, 400) == 250
    assert common_end(LONG, 400, second, 280) == 250
    assert common_end(LONG, 320, LONG, 400) == 320


def test_an_epoch_that_began_elsewhere_is_another_one() -> None:
    assert common_end(history((1, 100)), 200, history((1, 120)), 200) is None
    assert common_end((), 0, LONG, 400) is None


numbers = st.lists(st.integers(0, 30), unique=True, max_size=6).map(sorted)


@st.composite
def logs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two logs that one leader of each epoch wrote: for each entry its epoch."""
    first: tuple[int, ...] = ()
    second: tuple[int, ...] = ()
    for epoch in draw(numbers):
        leads, follows = (first, second) if draw(st.booleans()) else (second, first)
        leads += (epoch,) * draw(st.integers(1, 4))
        same = common_end(_history(follows), len(follows), _history(leads), len(leads)) or 0
        length = draw(st.integers(same, len(leads)))
        first, second = leads, leads[:length] if draw(st.booleans()) else follows
    return first, second


def _history(log: tuple[int, ...]) -> History:
    return tuple(Epoch(epoch, log.index(epoch)) for epoch in dict.fromkeys(log))


@given(logs())
def test_the_common_end_is_the_common_prefix(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    first, second = pair
    end = common_end(_history(first), len(first), _history(second), len(second)) or 0
    assert first[:end] == second[:end]
    assert first[end : end + 1] != second[end : end + 1] or end == min(len(first), len(second))


pairs = st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), max_size=3)


@given(pairs, st.integers(0, 6))
def test_accepts_only_rising_epochs_within_the_log(drawn: list[tuple[int, int]], end: int) -> None:
    numbers, starts = [number for number, _ in drawn], [start for _, start in drawn]
    rises = numbers == sorted({*numbers}) and starts == sorted({*starts})
    fits = all(number >= 0 for number in numbers)
    fits = fits and all(0 <= start < end or start == end == 0 for start in starts)
    if rises and fits:
        assert check(history(*drawn), end) == history(*drawn)
    else:
        with pytest.raises(HistoryRefused):
            check(history(*drawn), end)


def test_filler_lies_in_the_file_before_the_next_marker() -> None:
    for start, cut, common in product(range(2 * FILE + 2), range(2 * FILE), range(2 * FILE)):
        epochs = history((1, 0), (2, start)) if start else history((2, 0))
        marker = next((at for at in (0, start) if at >= common), None)
        expected = marker is not None and marker % FILE == 0 and marker - FILE < cut <= common
        assert may_be_filled(epochs, cut, common, FILE) == expected, (start, cut, common)
