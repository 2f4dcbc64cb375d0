"""Queue choice: round robin, least latency, fault isolation, hash keys (wire.md 6.8)."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.client.select import (
    FaultIsolation,
    LeastLatency,
    QueueSelector,
    RoundRobin,
    by_hash,
    make_selector,
)
from rocketbed.wire.bodies import MessageQueue


def queues(*brokers: str, count: int = 2) -> list[MessageQueue]:
    return [
        MessageQueue(topic="T", broker_name=name, queue_id=number)
        for name in brokers
        for number in range(count)
    ]


def chosen(
    selector: QueueSelector,
    among: list[MessageQueue],
    times: int,
    *,
    now: float = 0.0,
    avoid: str | None = None,
) -> Counter[str]:
    return Counter(selector.choose(among, avoid, now).broker_name for _ in range(times))


def test_round_robin_covers_every_queue_from_any_start() -> None:
    among = queues("a", "b")
    for start in (0, 3, 0x7FFFFFFF):
        selector = RoundRobin(start)
        chosen = [selector.choose(among, None, 0.0) for _ in range(8)]
        assert Counter(chosen) == dict.fromkeys(among, 2)


def test_alternating_topics_each_reach_all_their_queues() -> None:
    among = queues("a", "b")
    second_topic = [replace(queue, topic="U") for queue in among]
    for choice in ("round_robin", "least_latency", "fault_isolation"):
        selector = make_selector(choice, 5)
        chosen = [
            selector.choose(row, None, 0.0) for _ in range(8) for row in (among, second_topic)
        ]
        assert Counter(chosen) == dict.fromkeys([*among, *second_topic], 2)


def test_retry_prefers_another_broker() -> None:
    for choice in ("round_robin", "least_latency", "fault_isolation"):
        selector = make_selector(choice, 5)
        assert chosen(selector, queues("a", "b"), 6, avoid="a") == {"b": 6}
        assert chosen(selector, queues("a"), 3, avoid="a") == {"a": 3}


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="fastest"):
        make_selector("fastest", 0)  # type: ignore[arg-type]


def test_least_latency_tries_every_broker_first() -> None:
    selector = LeastLatency()
    among = queues("a", "b", "c")
    for name, latency in (("a", 5.0), ("b", 1.0)):
        selector.record(name, latency, failed=False, now_s=0.0)
    assert chosen(selector, among, 3) == {"c": 3}
    selector.record("c", 9.0, failed=False, now_s=0.0)
    assert chosen(selector, among, 4) == {"b": 4}


def test_least_latency_rotates_the_fastest_brokers_queues() -> None:
    selector = LeastLatency()
    selector.record("a", 9.0, failed=False, now_s=0.0)
    selector.record("b", 1.0, failed=False, now_s=0.0)
    among = queues("a", "b", count=3)
    queue_ids = [selector.choose(among, None, 0.0).queue_id for _ in range(6)]
    assert Counter(queue_ids) == {0: 2, 1: 2, 2: 2}


def test_least_latency_follows_a_broker_that_becomes_slow() -> None:
    selector = LeastLatency()
    selector.record("a", 1.0, failed=False, now_s=0.0)
    selector.record("b", 2.0, failed=False, now_s=0.0)
    for _ in range(3):
        selector.record("a", 50.0, failed=False, now_s=0.0)
    assert chosen(selector, queues("a", "b"), 2) == {"b": 2}


def test_least_latency_returns_to_a_broker_that_failed_once() -> None:
    selector = LeastLatency()
    selector.record("a", 1.0, failed=True, now_s=0.0)
    selector.record("b", 1.0, failed=False, now_s=0.0)
    back = None
    for second in range(120):
        if selector.choose(queues("a", "b"), None, float(second)).broker_name == "a":
            back = second
            break
        selector.record("b", 1.0, failed=False, now_s=float(second))
    assert back is not None
    assert 20 < back < 60


@pytest.mark.parametrize(
    ("latency_ms", "alone_s"),
    [
        (10.0, 0.0),
        (549.0, 0.0),
        (550.0, 2.0),
        (1800.0, 5.0),
        (3000.0, 6.0),
        (5000.0, 10.0),
        (15_000.0, 30.0),
    ],
)
def test_fault_isolation_follows_the_table_of_5x(latency_ms: float, alone_s: float) -> None:
    selector = FaultIsolation()
    selector.record("a", latency_ms, failed=False, now_s=100.0)
    among = queues("a", "b")
    if alone_s:
        assert chosen(selector, among, 4, now=100.0 + alone_s - 0.001) == {"b": 4}
    assert chosen(selector, among, 4, now=100.0 + alone_s) == {"a": 2, "b": 2}


def test_failure_isolates_like_ten_seconds_of_latency() -> None:
    selector = FaultIsolation()
    selector.record("a", 3.0, failed=True, now_s=0.0)
    assert chosen(selector, queues("a", "b"), 4, now=9.9) == {"b": 4}
    assert chosen(selector, queues("a"), 2, now=0.0) == {"a": 2}
    selector.record("a", 3.0, failed=False, now_s=11.0)
    assert chosen(selector, queues("a", "b"), 4, now=11.0) == {"a": 2, "b": 2}


def test_slow_broker_is_preferred_to_a_failed_one() -> None:
    selector = FaultIsolation()
    selector.record("a", 3.0, failed=True, now_s=0.0)
    selector.record("b", 4000.0, failed=False, now_s=0.0)
    assert chosen(selector, queues("a", "b"), 4, now=1.0) == {"b": 4}


def test_hash_keys_are_javas() -> None:
    among = queues("a", count=8)
    assert by_hash(among, "TagA").queue_id == 2598919 % 8
    assert by_hash(among, "é中").queue_id == 27236 % 8
    assert by_hash(among, "polygenelubricants").queue_id == 0  # its hash is -2**31


@given(st.text(), st.integers(1, 40))
def test_the_same_key_means_the_same_queue(key: str, count: int) -> None:
    among = queues("a", "b", count=count)
    assert by_hash(among, key) == by_hash(list(among), key)
