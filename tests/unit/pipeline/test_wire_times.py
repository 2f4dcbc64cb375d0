"""A broker's search by time, which one damaged store time can mislead; no broker is asked."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import Mark
from rocketbed.pipeline.streams.queues import QueueLog
from rocketbed.pipeline.wire.cluster import Cluster, QueueSnapshot
from rocketbed.pipeline.wire.log import RawPull, Refused
from rocketbed.pipeline.wire.plan import QueueRange, WirePlan
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.pipeline.wire.times import BESIDE
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import STORE_MS, Message

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
NAME = "a|T|0"
HOUR = 3_600_000
FAR = 10**10


class Broker:
    """A broker with one queue of messages, a second apart, that begins at `first`."""

    def __init__(self, times: Sequence[int], first: int = 0, answer: int | None = None) -> None:
        self.times, self.first, self.answer = times, first, answer
        self.refused: set[int] = set()
        self.has_from = first
        self.hollow_from = self.end
        """From there on it gives nothing, and refuses nothing."""
        self.step = 1
        """Messages in a record, all of one time; a record is given whole."""
        self.own_first = 0
        """Of the first record, where it says that it is."""
        self.pulled: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return self.first + len(self.times)

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        if self.answer is not None:
            return self.answer
        low, high = 0, len(self.times)
        while low < high:  # as brokers do
            middle = (low + high) // 2
            if self.times[middle] < time_ms:
                low = middle + 1
            else:
                high = middle
        return max(self.first + low, self.has_from)

    async def pull(self, queue: MessageQueue, at: int, *, count: int) -> RawPull:
        self.pulled.append((at, count))
        if at < self.has_from:
            return RawPull(
                records=b"", next_offset=self.has_from, first=self.has_from, end=0, broker_id=0
            )
        if at >= self.hollow_from:
            return RawPull(
                records=b"", next_offset=self.end, first=self.first, end=self.end, broker_id=0
            )
        at -= (at - self.first) % self.step
        stop = min(at + self.step * min(count, 2), self.end)  # large ones come a few at once
        if self.refused & {*range(at, stop)}:
            raise Refused("damaged")
        records = (
            Message(store_ms=self.times[one - self.first]).encode(7, one + self.own_first)
            for one in range(at, stop, self.step)
        )
        return RawPull(
            records=b"".join(records), next_offset=stop, first=self.first, end=self.end, broker_id=0
        )


def damaged(times: Sequence[int], number: int, stored: int) -> list[int]:
    return [*times[:number], stored, *times[number + 1 :]]


TIMES = [STORE_MS + 1000 * number for number in range(400)]
SPREAD = [STORE_MS + HOUR * number for number in range(400)]


def test_positions_without_messages_limit_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The read says then that it is not given what is there."""
    broker = Broker(TIMES, answer=200)
    broker.hollow_from = 200
    assert timed(broker, endTimestamp=TIMES[-1] + FAR) == (0, 400)
    assert "gives nothing from 200 on" in caplog.text


def timed(broker: Broker, **more: int) -> tuple[int, int]:
    """Return the range that a batch reads of the queue."""
    texts = {name: str(value) for name, value in more.items()}
    plan = WirePlan.of(Options.parse({"endpoints": "h:1", **texts}))
    log: Any = broker
    timed_range = trio.run(plan._timed, log, QueueRange(QUEUE, broker.first, broker.end))
    return timed_range.start, timed_range.end


def since(broker: Broker, time_ms: int) -> int:
    """Return the start of a stream."""
    cluster = Cluster(Options.parse({"endpoints": "h:1", "topics": "T"}))
    log: Any = broker
    bounds = QueueBounds(broker.first, broker.end, broker.end)
    return trio.run(cluster.since, log, QueueSnapshot({NAME: QUEUE}, {NAME: bounds}), time_ms)[NAME]


@pytest.mark.parametrize("stored", [0, STORE_MS + FAR])
def test_damaged_time_leaves_nothing_out(stored: int) -> None:
    """Half of the queue was left out, without a word."""
    for number in range(100):
        broker = Broker(damaged(TIMES[:100], number, stored), 5)
        times = dict(enumerate(broker.times, 5))
        for first_ms in (STORE_MS - HOUR, STORE_MS, STORE_MS + 50_000):
            offsets = [at for at, ms in times.items() if ms >= first_ms and at != 5 + number]
            assert timed(broker, startTimestamp=first_ms)[0] <= offsets[0]
            assert since(broker, first_ms) <= offsets[0]
        for end_ms in (STORE_MS + HOUR, STORE_MS + 50_000):
            offsets = [at for at, ms in times.items() if ms < end_ms and at != 5 + number]
            assert timed(broker, endTimestamp=end_ms)[1] > offsets[-1]


@pytest.mark.parametrize("stored", [0, STORE_MS + FAR])
def test_around_one_damaged_time_little_else_is_read(stored: int) -> None:
    for number in range(0, 400, 7):
        broker = Broker(damaged(SPREAD, number, stored))
        for number_wanted in (0, 1, 57, 200, 201, 398, 399):
            if number_wanted == number:
                continue
            wanted_ms = SPREAD[number_wanted]
            start, end = timed(broker, startTimestamp=wanted_ms, endTimestamp=wanted_ms + 1)
            assert start <= number_wanted < end
            begin = since(broker, wanted_ms)
            assert begin == number_wanted or (
                begin == number and number_wanted - BESIDE <= number < number_wanted
            )


def test_contradicted_search_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert timed(Broker(SPREAD), startTimestamp=SPREAD[100], endTimestamp=SPREAD[200]) == (100, 201)
    assert since(Broker(SPREAD), SPREAD[100] - 1) == 100
    assert not caplog.records
    broker = Broker(damaged(SPREAD, 200, 0))
    assert since(broker, SPREAD[100]) == 100
    assert len(broker.pulled) < 60
    assert "wire.times queue 0 of topic T at a: the broker finds" in caplog.text


@pytest.mark.parametrize("answer", [-1, 0, 399, 400, 10**9])
def test_broker_answer_is_checked_against_the_queue(answer: int) -> None:
    """-1 was the end of a range, and a thousand millions the beginning of one."""
    lies = Broker(TIMES, 100, answer)
    assert timed(lies, endTimestamp=STORE_MS + FAR) == (100, 500)
    start, end = timed(lies, startTimestamp=STORE_MS - HOUR)
    assert (start, end) == (100, 500)
    assert since(lies, STORE_MS + 7000) in {107, 100}
    assert timed(lies, startTimestamp=STORE_MS + FAR)[1] == 500


def test_unreadable_records_leave_nothing_out() -> None:
    broker = Broker(SPREAD, 0)
    broker.refused = {97, 203}
    options = {"startTimestamp": SPREAD[100], "endTimestamp": SPREAD[200]}
    assert timed(broker, **options) == (0, 400)
    assert since(broker, SPREAD[100]) == 0


def test_search_covers_messages_deleted_only_at_the_master() -> None:
    """Its search finds only what it has."""
    broker = Broker(SPREAD)
    broker.has_from = 200
    assert timed(broker, startTimestamp=SPREAD[100]) == (0, 400)
    assert timed(broker, endTimestamp=SPREAD[100])[1] >= 100
    assert since(broker, SPREAD[100]) == 0
    assert timed(broker, startTimestamp=SPREAD[300]) == (300, 400)


@pytest.mark.parametrize("stored", [0, STORE_MS + FAR])
def test_records_of_several_messages(stored: int) -> None:
    times = [ms for ms in SPREAD[:40] for _ in range(10)]
    for number in range(40):
        stored_times = [*times[: number * 10], *[stored] * 10, *times[number * 10 + 10 :]]
        broker = Broker(stored_times, 5)
        broker.step = 10
        for number_wanted in (7, 20, 33):
            start, end = timed(
                broker, startTimestamp=SPREAD[number_wanted], endTimestamp=SPREAD[number_wanted] + 1
            )
            begin = since(broker, SPREAD[number_wanted])
            if number_wanted != number:
                assert start - 5 <= number_wanted * 10 <= number_wanted * 10 + 9 < end - 5
                assert begin - 5 <= number_wanted * 10


def test_mixed_queues_are_timed_by_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their records do not contain the position in the queue."""
    shared = MessageQueue(topic="%LMQ%T", broker_name="a", queue_id=0)
    monkeypatch.setitem(globals(), "QUEUE", shared)
    broker = Broker(SPREAD)
    broker.own_first = -3
    assert timed(broker, startTimestamp=SPREAD[100], endTimestamp=SPREAD[200]) == (100, 201)
    assert broker.pulled == []


def test_recreated_queue_resumes_at_the_right_offset() -> None:
    log: Any = Broker(damaged(SPREAD, 200, 0))
    snapshot = QueueSnapshot({NAME: QUEUE}, {NAME: QueueBounds(0, 400, 400)})
    stream = QueueLog(Options.parse({"endpoints": "h:1", "topics": "T"}))
    mark = Mark(405, 7, SPREAD[100])
    assert trio.run(stream._restart_offset, log, snapshot, NAME, mark) == 101
