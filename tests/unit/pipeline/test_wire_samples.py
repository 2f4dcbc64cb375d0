"""How a read detects that its topic was recreated: by a message for each topic and broker."""

import math
from collections.abc import Mapping
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from rocketbed.pipeline.wire.log import RawPull, Refused, WireLog
from rocketbed.pipeline.wire.samples import SAMPLES_S, Sample, replaced_samples, samples_of
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import Message


def queue(topic: str, queue_id: int = 0, broker: str = "a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


class Log:
    """A log like `WireLog`: records of each queue, by offset, after so many seconds."""

    def __init__(
        self,
        records: Mapping[MessageQueue, bytes],
        slow: Mapping[MessageQueue, float] = {},
        *,
        end: int = 99,
        broker_id: int = 0,
    ) -> None:
        self.records = records
        self.slow = slow
        self.end, self.broker_id = end, broker_id
        self.pulled: list[MessageQueue] = []
        self.at_master = self

    def ask_master(self, queue: MessageQueue) -> None:
        master = self.at_master
        self.records, self.slow = master.records, master.slow
        self.end, self.broker_id = master.end, master.broker_id

    async def pull(self, queue: MessageQueue, at: int, *, count: int) -> RawPull:
        assert count == 1
        self.pulled.append(queue)
        await trio.sleep(self.slow.get(queue, 0))
        if queue not in self.records:
            raise Refused("damaged")
        data = self.records[queue]
        return RawPull(
            records=data, next_offset=at + 1, first=0, end=self.end, broker_id=self.broker_id
        )


def record(at: int, body: bytes = b"one") -> bytes:
    return Message(body=body).encode(0, at)


def changed(samples: list[Sample], log: Log) -> list[MessageQueue]:
    async def look() -> list[Sample]:
        return await replaced_samples(samples, cast(WireLog, log))

    return [one.queue for one in trio.run(look, clock=MockClock(autojump_threshold=0))]


def sampled(
    log: Log, lasts: Mapping[MessageQueue, int], *, is_everywhere: bool = False
) -> list[Sample]:
    async def look() -> list[Sample]:
        everywhere = lasts.keys() if is_everywhere else ()
        return [*(await samples_of(cast(WireLog, log), lasts, everywhere)).values()]

    return trio.run(look, clock=MockClock(autojump_threshold=0))


def test_one_queue_per_topic_and_broker_is_sampled() -> None:
    queues = [queue("T"), queue("T", 1), queue("T", broker="b"), queue("U"), queue("%LMQ%x")]
    log = Log(dict.fromkeys(queues, record(9)))
    samples_read = sampled(log, dict.fromkeys(queues, 9))
    assert sorted(log.pulled) == sorted(one.queue for one in samples_read)
    assert [one.queue for one in samples_read] == [queue("T"), queue("T", broker="b"), queue("U")]
    assert changed(samples_read, log) == []
    assert changed(samples_read, Log({**log.records, queue("U"): record(9, b"two")})) == [
        queue("U")
    ]


def test_shorter_topic_is_another_one() -> None:
    log = Log({queue("T"): record(9)})
    (sample,) = sampled(log, {queue("T"): 9})
    shorter = Log({queue("T"): b""}, end=9)
    assert changed([sample], shorter) == [queue("T")]
    assert sampled(shorter, {queue("T"): 9}) == []


@pytest.mark.parametrize("is_everywhere", [False, True])
def test_shorter_slave_matters_only_if_the_master_is_silent(
    is_everywhere: bool,
) -> None:
    """It may have lost its disk, and copies it again."""
    log = Log({queue("T"): record(9)})
    samples = sampled(log, {queue("T"): 9}, is_everywhere=is_everywhere)

    def slave() -> Log:
        return Log({queue("T"): b""}, end=9, broker_id=1)

    assert changed(samples, slave()) == ([queue("T")] if is_everywhere else [])
    for master, is_same in (
        (log, True),
        (Log({queue("T"): record(9, b"two")}), False),
        (Log({queue("T"): b""}, end=9), False),
        (Log({queue("T"): record(9)}, {queue("T"): math.inf}), not is_everywhere),
    ):
        following = slave()
        following.at_master = master
        assert changed(samples, following) == ([] if is_same else [queue("T")])


def test_damaged_body_and_moved_record_are_the_same_message() -> None:
    good = record(9)
    (sample,) = sampled(Log({queue("T"): good}), {queue("T"): 9})
    damaged = good.replace(b"one", b"onf")
    moved = good[:28] + (1 << 30).to_bytes(8, "big") + good[36:]
    for data in (damaged, moved):
        assert data != good
        assert changed([sample], Log({queue("T"): data})) == []


def test_unreadable_sample_is_no_other_message() -> None:
    """It expired, is damaged, is not there, or is not given soon."""
    (sample,) = sampled(Log({queue("T"): record(9)}), {queue("T"): 9})
    for log in (
        Log({queue("T"): record(10, b"two")}),
        Log({}),
        Log({queue("T"): b""}),
        Log({queue("T"): record(9, b"two")}, {queue("T"): math.inf}),
    ):
        assert changed([sample], log) == []


def test_a_queue_that_hangs_holds_up_no_other() -> None:
    ends = {queue("T"): 9, queue("U"): 9, queue("V"): 9}
    log = Log(dict.fromkeys(ends, record(9)), {queue("U"): SAMPLES_S + 1})
    assert [one.queue for one in sampled(log, ends)] == [queue("T"), queue("V")]
