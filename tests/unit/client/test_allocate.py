"""Distribution of queues to the members of a group (wire.md 6.3, 12)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.client.allocate import ALLOCATIONS, Allocation, machine_room
from rocketbed.wire.bodies import MessageQueue


def queues(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue(topic="T", broker_name=broker, queue_id=one) for one in range(count)]


def shared(allocation: Allocation, members: list[str], count: int) -> list[str]:
    return [
        "".join(str(queue.queue_id) for queue in allocation(one, members, queues(count)))
        for one in members
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("average", ["012", "345", "67"]),
        ("circle", ["036", "147", "25"]),
        ("consistent_hash", ["2", "0347", "156"]),
    ],
)
def test_rocketmqs_own_results(name: str, parts: list[str]) -> None:
    allocation_used = {str(one): allocation for one, allocation in ALLOCATIONS.items()}[name]
    assert shared(allocation_used, ["c1", "c2", "c3"], 8) == parts


def test_more_members_than_queues() -> None:
    assert shared(ALLOCATIONS["average"], ["c1", "c2", "c3"], 2) == ["0", "1", ""]
    assert shared(ALLOCATIONS["circle"], ["c1", "c2", "c3"], 2) == ["0", "1", ""]


@given(st.sets(st.text(min_size=1), min_size=1, max_size=9), st.integers(0, 40))
def test_each_queue_goes_to_one_member(names: set[str], count: int) -> None:
    members = sorted(names)
    for allocation in (*ALLOCATIONS.values(), machine_room({"r"})):
        offered = queues(count, "r@b")
        parts = [allocation(one, members, offered) for one in members]
        assert sorted(queue for part in parts for queue in part) == offered


def test_a_machine_room_reads_its_own_brokers() -> None:
    """Five queues for two members: two neighbours each, and the fifth for the first."""
    offered = sorted([*queues(5, "near@b"), *queues(4, "far@b"), *queues(4, "b")])
    rule = machine_room({"near"})
    parts = [rule(one, ["c1", "c2"], offered) for one in ("c1", "c2")]
    assert [[queue.queue_id for queue in part] for part in parts] == [[0, 1, 4], [2, 3]]
    assert {queue.broker_name for part in parts for queue in part} == {"near@b"}
