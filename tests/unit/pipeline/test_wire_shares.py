"""How the queues of a live cluster are dealt out to tasks."""

import pytest

from rocketbed.pipeline.wire.plan import TASKS_MAX, QueueRange, shared
from rocketbed.wire.bodies import MessageQueue


def ranges(*lengths: int) -> list[QueueRange]:
    return [
        QueueRange(MessageQueue(topic="T", broker_name="b", queue_id=number), 5, 5 + length)
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("lengths", "at_least", "most"),
    [
        ((), 1, 0),
        ((10, 20, 30), 1, 3),
        ((10, 20, 30), 7, 9),
        ((3,) * 10_000, 1, TASKS_MAX),
        ((3,) * 10_000, 3000, 10_000),
        ((1,) * 5000 + (90_000,), 1, 60),
        ((1,) * 5000 + (90_000,), 400, 2 * TASKS_MAX),
    ],
)
def test_shares_hold_everything_once(lengths: tuple[int, ...], at_least: int, most: int) -> None:
    asked = ranges(*lengths)
    shares = shared(asked, at_least)
    assert (at_least if lengths else 0) <= len(shares) <= most
    found: dict[int, int] = {}
    for share in shares:
        assert share
        for one in share:
            number = one.queue.queue_id
            assert one.start == found.get(number, 5)
            found[number] = one.end
    assert found == {one.queue.queue_id: one.end for one in asked}
