"""How the queues of a live cluster are dealt out to tasks, and read by them."""

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rocketbed.client.errors import RequestRefused
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import DataLoss
from rocketbed.pipeline.wire import chunks
from rocketbed.pipeline.wire.log import RawPull, Refused, WireError, WireLog
from rocketbed.pipeline.wire.plan import TASKS_MAX, QueueRange, WirePlan, shared
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import ResponseCode


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


@pytest.mark.parametrize("asked", [{"at": 99}, {"at": 1}, {"at": 99, "start": 4}])
def test_a_place_that_is_not_there_is_told(
    caplog: pytest.LogCaptureFixture, asked: dict[str, int]
) -> None:
    queue, bounds = ranges(1)[0].queue, QueueBounds(3, 8, 8)

    def there(fails: str) -> int:
        options = Options.parse({"endpoints": "h:1", "failOnDataLoss": fails})
        return WirePlan.of(options)._there(queue, asked["at"], bounds, start=asked.get("start"))

    with pytest.raises(DataLoss, match=f"has 3 to 8, and {asked['at']} was asked for"):
        there("true")
    assert not caplog.records
    assert there("false") == (8 if asked["at"] == 99 else 3)
    (record,) = caplog.records
    assert f"has 3 to 8, and {asked['at']} was asked for" in record.getMessage()


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
        return trio.run(chunks.chunk, options, wanted, 0, log)

    assert [len(one.records) for one in chunk(Members(has_master=True))] == [100]
    if fails == "true":
        with pytest.raises(WireError, match="messages 0 to 50 were deleted"):
            chunk(Members(has_master=False))
    else:
        assert sum(len(one.records) for one in chunk(Members(has_master=False))) == 50


class Backwards:
    """A broker that gives ten messages and says that earlier ones come next, from some place on."""

    def __init__(self, since: int, back: int) -> None:
        self.since = since
        self.back = back

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        after = at + 10 if at < self.since else at - self.back
        return RawPull(records=b"m" * 10, next_offset=after, first=0, end=100, broker_id=0)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize(("since", "back"), [(0, 0), (0, 5), (10, 0), (30, 20), (90, 60)])
def test_a_broker_that_goes_back_ends_the_read(fails: str, since: int, back: int) -> None:
    """It gave the same rows without an end."""
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": fails})
    wanted = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 100)
    log: Any = Backwards(since, back)

    async def read() -> None:
        with trio.fail_after(3):
            await chunks.chunk(options, wanted, 0, log)

    with pytest.raises(WireError, match=f"messages at {since} and says that {since - back} comes"):
        trio.run(read)


class Damaged:
    """A broker that refuses some messages, each after it was asked for a second."""

    def __init__(self, bad: set[int], end: int) -> None:
        self.bad = bad
        self.end = end

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        return QueueBounds(0, self.end, self.end)

    def ask_master(self, queue: MessageQueue) -> None:
        pass

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        if at in self.bad:
            await trio.sleep(1.0)
            raise Refused(f"pull at {at}")
        stop = min([one for one in self.bad if one > at] + [at + min(count, 32), self.end])
        data = b"".join(number.to_bytes(4, "big") for number in range(at, stop))
        return RawPull(records=data, next_offset=stop, first=0, end=self.end, broker_id=0)


@pytest.mark.parametrize(
    ("bad", "seconds"),
    [
        ({*range(10, 510)} - {11, 13, 200, 333}, 40),
        ({*range(10, 510)}, 20),
        ({50, 52, 90}, 8),
        ({*range(590, 600)}, 10),
    ],
    ids=["islands", "a stretch", "single ones", "the end"],
)
def test_behind_damage_every_message_is_asked_for_and_many_at_once(
    bad: set[int], seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Two and a half seconds each it took: three quarters of an hour for a thousand."""
    log: Any = Damaged(bad, 600)
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": "false"})
    wanted = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 600)
    clock = MockClock(autojump_threshold=0)
    found = trio.run(chunks.chunk, options, wanted, 0, log, clock=clock)
    data = b"".join(one.records for one in found)
    given = [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]
    assert given == [number for number in range(600) if number not in bad]
    assert clock.current_time() <= seconds
    left_out = [record.args or () for record in caplog.records]
    told = [number for first, last, *_ in left_out for number in range(int(first), int(last) + 1)]  # type: ignore[call-overload]
    assert told == sorted(bad)


def test_a_broker_that_gives_nothing_has_other_troubles() -> None:
    log: Any = Damaged({*range(600)}, 600)
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": "false"})
    wanted = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 600)
    with pytest.raises(Refused, match="pull at 0"):
        trio.run(chunks.chunk, options, wanted, 0, log, clock=MockClock(autojump_threshold=0))


def test_what_a_slave_refuses_the_master_is_asked_for() -> None:
    asked: list[bool] = []

    class Log(WireLog):
        async def _pull(self, *_: object, at_master: bool) -> RawPull:
            asked.append(at_master)
            if not at_master:
                raise RequestRefused("queue", "broker", ResponseCode.SYSTEM_ERROR, "damaged")
            return RawPull(records=b"m", next_offset=1, first=0, end=1, broker_id=0)

    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    log = Log("127.0.0.1:1")
    clock = MockClock(autojump_threshold=0)
    assert trio.run(log.pull, queue, 0, clock=clock).records == b"m"
    assert asked == [False, True]


class Shorter(Damaged):
    """A broker that has lost the end of a queue, for good or for some seconds."""

    def __init__(self, back_after: float) -> None:
        super().__init__(set(), 100)
        self.back_after = back_after

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        self.end = 100 if trio.current_time() >= self.back_after else 90
        if at >= self.end:
            return RawPull(records=b"", next_offset=at, first=0, end=self.end, broker_id=0)
        return await super().pull(queue, at, count)

    pause = WireLog.pause


@pytest.mark.parametrize(("back_after", "count"), [(8.0, 100), (math.inf, 90)])
def test_a_queue_that_became_shorter_since_the_read_was_planned(
    back_after: float, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Who allows loss waits for the rest as long as for a broker, and goes on without it."""
    log: Any = Shorter(back_after)
    wanted = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 100)

    def read(**given: str) -> list[RawPull]:
        options = Options.parse({"endpoints": "h:1", "retryTimeoutMs": "10000", **given})
        return trio.run(
            chunks.chunk, options, wanted, 0, log, clock=MockClock(autojump_threshold=0)
        )

    with pytest.raises(WireError, match=r"no messages at 90, .* has 0 to 90: .* failOn") as caught:
        read()
    assert caught.value.condition is Condition.DATA_LOSS
    found = read(failOnDataLoss="false")
    assert sum(len(one.records) for one in found) == 4 * count
    assert found[-1].next_offset == 100
    assert ("wire.shorter" in caplog.text) == (count == 90)
