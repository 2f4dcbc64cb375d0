"""Messages of a live cluster that `verify` counts as kept."""

import json

import pytest

from rocketbed.pipeline.jobs.verify.logs import LiveQueues
from rocketbed.pipeline.wire.cluster import QueueSnapshot
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.wire.bodies import MessageQueue


def snapshot_of(**bounds: QueueBounds) -> QueueSnapshot:
    queues = {
        f"{broker}|T|0": MessageQueue(topic="T", broker_name=broker, queue_id=0)
        for broker in bounds
    }
    return QueueSnapshot(queues, dict(zip(queues, bounds.values(), strict=True)))


@pytest.mark.parametrize(
    ("copies", "firm", "ends"),
    [
        (1, ("a", "b"), {"a|T|0": 12, "b|T|0": 20}),
        (2, ("a",), {"a|T|0": 10, "b|T|0": 20}),
        (3, (), {"a|T|0": 10, "b|T|0": 20}),
    ],
)
def test_a_broker_counts_where_members_enough_answered(
    copies: int, firm: tuple[str, ...], ends: dict[str, int]
) -> None:
    now = snapshot_of(a=QueueBounds(0, 10, 12, members=2), b=QueueBounds(5, 20, 20, members=1))
    live = LiveQueues.of({"endpoints": "h:1"}, now, copies)
    assert (live.firm, live.shortened) == (firm, ("b",))
    assert json.loads(live.source["endingOffsets"]) == ends
