"""How the queues of a live cluster are dealt out to tasks, and read by them."""

from typing import Any

import pytest
import trio

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire.log import RawPull, WireError
from rocketbed.pipeline.wire.plan import TASKS_MAX, QueueRange, _chunk, shared
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


class Members:
    """A slave that lost the first half of a queue to retention, and a master that may be away."""

    def __init__(self, *, has_master: bool) -> None:
        self.has_master = has_master
        self.asked = 1

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        if self.asked:
            records = b"s" * (100 - at) if at >= 50 else b""
            after = 100 if records else 50
            return RawPull(records=records, next_offset=after, first=50, end=100, broker_id=1)
        return RawPull(records=b"m" * (100 - at), next_offset=100, first=0, end=100, broker_id=0)

    def ask_master(self, queue: MessageQueue) -> None:
        self.asked = 0 if self.has_master else 1


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_slave_that_keeps_less_than_its_master_loses_nothing(fails: str) -> None:
    """It was an error, or what the master has was passed over."""
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": fails})
    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    wanted = QueueRange(queue, 0, 100)

    def chunk(members: Members) -> list[RawPull]:
        log: Any = members
        return trio.run(_chunk, options, wanted, 0, log)

    assert [len(one.records) for one in chunk(Members(has_master=True))] == [100]
    if fails == "true":
        with pytest.raises(WireError, match="messages 0 to 50 were deleted"):
            chunk(Members(has_master=False))
    else:
        assert sum(len(one.records) for one in chunk(Members(has_master=False))) == 50
