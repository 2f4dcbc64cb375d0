"""Ids of sent rows, the rate of sending, and sets of queue offsets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.pipeline.sink.keys import TaskKey, parse_message_id
from rocketbed.pipeline.sink.rate import TokenBucket
from rocketbed.pipeline.sink.runs import Lookup, Place, Runs

QUERY = "0f3b6c1e-54b4-4d5c-8a83-50ee2f1f9d0a"
A0 = Place("T", "broker-a", 0)
A1 = Place("T", "broker-a", 1)


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 20), st.integers(0, 1 << 40))
def test_an_id_can_be_read_back(batch: int, partition: int, row: int) -> None:
    key = TaskKey(job=QUERY, batch=batch, partition=partition)
    assert parse_message_id(key.message_id(row)) == (key, row)


def test_row_id_is_stable_and_unique() -> None:
    keys = [TaskKey(job=QUERY, batch=b, partition=p) for b in range(20) for p in range(20)]
    ids = [key.message_id(row) for key in keys for row in range(20)]
    assert len(set(ids)) == len(ids)
    assert TaskKey(job=QUERY, batch=3, partition=1).message_id(255) == f"{QUERY}-3-1-ff"


@pytest.mark.parametrize("text", ["", "a-b-c", "-0-0-0", f"{QUERY}-0-0-0x1", f"{QUERY}-0-0-FF"])
def test_other_ids_are_not_ours(text: str) -> None:
    assert parse_message_id(text) is None


def test_a_bucket_owes_what_is_over_its_level() -> None:
    bucket = TokenBucket(1000.0)
    assert bucket.take(500, 10.0) == pytest.approx(0.5)
    assert bucket.take(0, 10.5) == 0.0
    assert bucket.take(100, 10.5) == pytest.approx(0.1)
    assert bucket.take(1000, 60.0) == 0.0  # a pause saves up one second, not fifty
    assert bucket.take(1, 60.0) > 0.0


def test_no_rate_is_no_limit() -> None:
    bucket = TokenBucket(0.0)
    assert [bucket.take(1 << 30, 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]


@given(st.lists(st.tuples(st.sampled_from([A0, A1]), st.integers(0, 50), st.integers(0, 9))))
def test_runs_are_the_set_of_what_was_added(added: list[tuple[Place, int, int]]) -> None:
    runs = Runs()
    expected = set()
    for place, first, count in added:
        runs.add(place, first, count)
        expected |= {(place, offset) for offset in range(first, first + count)}
    lookup = Lookup({QUERY: runs})
    members = {(p, o) for p in (A0, A1) for o in range(70) if lookup.has(QUERY, p, o)}
    assert members == expected
    assert runs.count() == len(expected)
    rebuilt = Runs()
    for piece in runs.pieces(3):
        assert sum(len(pairs) for _, pairs in piece.items()) <= 3
        rebuilt.update(Runs.from_json(piece.as_json()))
    assert rebuilt.merged().as_json() == runs.merged().as_json()
    for place, pairs in runs.merged().items():
        assert all(sum(one) < two[0] for one, two in pairwise(pairs)), place


def test_committed_set_belongs_to_one_job() -> None:
    runs = Runs()
    runs.add(A0, 5, 2)
    lookup = Lookup({QUERY: runs})
    assert lookup.has(QUERY, A0, 6)
    assert not lookup.has(QUERY, A0, 7)
    assert not lookup.has(QUERY, A1, 6)
    assert not lookup.has("other", A0, 6)
    assert runs.ranges() == {A0: (5, 6)}
