"""Limits of reading a queue, and what holds a stream of queues up; no cluster is asked."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    QUEUE,
    DataLoss,
    Mark,
    StreamError,
    StreamOffset,
    queue_name,
    topic_of,
)
from rocketbed.pipeline.streams.queues import QueueLog
from rocketbed.pipeline.wire.cluster import HELD_UP_S, QueueSnapshot
from rocketbed.pipeline.wire.log import RawPull, Refused, WireError, WireLog
from rocketbed.pipeline.wire.plan import QueueRange
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.pipeline.wire.times import stored_ms
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import Message

NAME = "broker-a|T|0"


def log(**more: Any) -> QueueLog:
    options = Options.parse({"endpoints": "127.0.0.1:1", "topics": "T", **more})
    return QueueLog(options)


def stretch(log: QueueLog, at: int, first: int, end: int, longest: int) -> tuple[int, int]:
    return log._stretch(NAME, Mark(at), QueueBounds(first, end, longest))


def test_queue_is_read_up_to_its_shortest_member() -> None:
    assert stretch(log(), 5, 0, 20, 25) == (5, 20)
    assert stretch(log(readUncommitted="true"), 5, 0, 20, 25) == (5, 25)
    frozen = log()
    frozen._target = {NAME: 12}
    assert stretch(frozen, 5, 0, 20, 20) == (5, 12)
    assert stretch(frozen, 15, 0, 20, 20) == (15, 15)


def test_lagging_member_holds_the_stream_for_a_while() -> None:
    first = log()
    assert stretch(first, 15, 0, 10, 20) == (15, 15)
    assert NAME in first._held_up
    assert stretch(first, 15, 0, 20, 20) == (15, 20)
    assert not first._held_up


def test_member_catching_up_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = log(retryTimeoutMs="1000")
    for end in (10, 11, 12):
        assert stretch(first, 15, 0, end, 20) == (15, 15)
        first._held_up[NAME] -= 2.0
    (warning,) = caplog.messages
    assert warning.startswith(f"stream.waits {NAME}: a member ends at 10, the stream is at 15;")
    with pytest.raises(DataLoss, match="a member ends at 12"):
        stretch(first, 15, 0, 12, 20)


def test_finished_target_waits_for_no_member() -> None:
    first = log()
    first._target = {NAME: 15}
    assert stretch(first, 15, 0, 10, 20) == (15, 15)
    assert not first._held_up


@pytest.mark.parametrize(
    ("bounds", "why", "goes_on"),
    [
        (QueueBounds(0, 10, 20), "a member ends at 10, the stream is at 15", (15, 15)),
        (
            QueueBounds(0, 10, 20, 2, shortest="h:1"),
            r"a member ends at 10, h:1, and the stream is at 15",
            (15, 15),
        ),
        (QueueBounds(0, 10, 10), "it ends at 10", (10, 10)),
        (None, "not there any more", (15, 15)),
    ],
)
def test_waiting_has_a_limit(
    bounds: QueueBounds | None, why: str, goes_on: tuple[int, int]
) -> None:
    first, loose = log(retryTimeoutMs="1000"), log(retryTimeoutMs="1000", failOnDataLoss="false")
    for each in (first, loose):
        assert each._stretch(NAME, Mark(15), bounds) == (15, 15)
        each._held_up[NAME] -= 2.0
    with pytest.raises(DataLoss, match=f"{NAME.replace('|', '.')}: after 1 s still: .*{why}"):
        first._stretch(NAME, Mark(15), bounds)
    assert loose._stretch(NAME, Mark(15), bounds) == goes_on


@pytest.mark.parametrize(
    ("mark", "found_at", "goes_on", "words"),
    [
        (Mark(15, 7, 5000), 2, 2, "goes on at 2, the first that was stored later"),
        (Mark(15, 7, 5000), 99, 10, "has 2 to 10, and goes on at 10, the first that was"),
        (Mark(15, 7, 5000), 8, 8, "goes on at 8, the first that was stored later"),
        (Mark(15, 7), None, 2, "goes on at 2, which is all that is left: its time"),
        (Mark(15, 7, 9_000_000_000_000), None, 2, "goes on at 2, which is all that is left: i"),
        (Mark(15), None, 10, ""),
    ],
    ids=[
        "recreated",
        "cut",
        "cut and went on",
        "an old checkpoint",
        "a clock that was wrong",
        "nothing was read",
    ],
)
def test_offset_after_a_shortened_queue(
    mark: Mark, found_at: int | None, goes_on: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    snapshot = QueueSnapshot({NAME: queue}, {NAME: QueueBounds(2, 10, 10)})

    class Asked:
        async def offset_at(self, message_queue: MessageQueue, time_ms: int) -> int:
            assert (message_queue, time_ms, found_at is None) == (queue, 5001, False)
            return found_at or 0

        async def pull(self, queue: MessageQueue, at: int, *, count: int) -> RawPull:
            record = Message(store_ms=5000 + (at >= (found_at or 0))).encode(0, at)
            return RawPull(records=record, next_offset=at + 1, first=2, end=10, broker_id=0)

    assert trio.run(log()._restart_offset, cast(WireLog, Asked()), snapshot, NAME, mark) == goes_on
    assert words in caplog.text


def test_only_topic_of_its_broker_may_be_missing() -> None:
    """A reader that allows loss continues without it; a checkpoint all of whose brokers are absent
    is refused.
    """
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    snapshot = QueueSnapshot({NAME: queue}, {NAME: QueueBounds(0, 10, 10)})
    gone_queue, own = "broker-b|U|0", Mark(5)
    both = StreamOffset(QUEUE, {NAME: own, gone_queue: own})
    options = {"topics": "T,U"}
    with pytest.raises(StreamError, match=r"gone permanently, or the topic; failOnDataLoss=false"):
        log(**options)._check_names(both, snapshot)
    log(failOnDataLoss="false", **options)._check_names(both, snapshot)
    with pytest.raises(StreamError, match="it is another cluster"):
        log(failOnDataLoss="false", **options)._check_names(
            StreamOffset(QUEUE, {gone_queue: own}), snapshot
        )


def test_when_a_record_was_stored() -> None:
    for sys_flag in (0, 0x10, 0x30):
        record = Message(sys_flag=sys_flag, store_ms=1_795_173_432_123).encode(0, 0)
        assert stored_ms(record) == 1_795_173_432_123


def test_retention() -> None:
    with pytest.raises(DataLoss, match="messages 5 to 8 were deleted"):
        stretch(log(), 5, 8, 20, 20)
    assert stretch(log(failOnDataLoss="false"), 5, 8, 20, 20) == (8, 20)
    assert stretch(log(), 8, 8, 20, 20) == (8, 20)


class Wire:
    """Queues whose records identify their topic: a recreated topic has another stamp."""

    def __init__(self, stamp: int, bounds: dict[str, QueueBounds], damaged: str = "") -> None:
        self.bounds, self.damaged = bounds, damaged
        self.stamp = stamp
        self.pulled: list[tuple[str, int]] = []
        self.is_away = False
        self.comes: dict[str, QueueBounds] = {}

    async def brokers(self, names: Sequence[str], clusters: Sequence[str]) -> frozenset[str]:
        if self.is_away:
            raise WireError("no broker is registered")
        if self.comes:
            self.bounds |= self.comes
        return frozenset(names)

    def distrust(self, topic: str) -> None:
        """Routes are always right here."""

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return 3 if time_ms <= self.stamp else 1 << 30

    async def pull(self, queue: MessageQueue, at: int, *, count: int) -> RawPull:
        name = queue_name(queue.broker_name, queue.topic, queue.queue_id)
        self.pulled.append((name, at))
        if name == self.damaged:
            raise Refused("damaged")
        record = Message(store_ms=self.stamp).encode(0, at)
        return RawPull(
            records=record if at < self.bounds[name].longest else b"",
            next_offset=at + 1,
            first=0,
            end=self.bounds[name].longest,
            broker_id=0,
        )


def wired(log: QueueLog, wire: Wire) -> QueueLog:
    """A log whose cluster is this."""

    async def look(_log: Any, *, fresh: bool = False) -> QueueSnapshot:
        queues = {
            name: MessageQueue(topic="T", broker_name="broker-a", queue_id=int(name[-1]))
            for name in wire.bounds
        }
        return QueueSnapshot(queues, wire.bounds)

    def call(question: Callable[[Any], Awaitable[Any]]) -> Any:
        return trio.run(question, wire)

    log._cluster.look = look  # type: ignore[method-assign, assignment]
    log._log = SimpleNamespace(call=call)  # type: ignore[assignment]
    return log


def bounds_of(**ends: int) -> dict[str, QueueBounds]:
    """Bounds of queues `q0`, `q1`, ...: each begins at 3."""
    return {f"broker-a|T|{name[1:]}": QueueBounds(3, end, end) for name, end in ends.items()}


def test_stream_started_at_the_end_detects_a_recreated_topic() -> None:
    """The first marks have a checksum, but for an empty queue's and where there is damage."""
    bounds = bounds_of(q0=10, q1=3, q2=10)
    wire = Wire(5000, bounds, damaged="broker-a|T|2")
    begin = wired(log(startingOffsets="latest"), wire).initial()
    zero, empty_queue, two = (begin.marks[name] for name in bounds)
    assert (zero.at, zero.time_ms, empty_queue, two) == (10, 5000, Mark(3), Mark(10))
    assert sorted(wire.pulled) == [(NAME, 9), ("broker-a|T|2", 9)]
    checkpoint = begin.as_json()
    restarted = wired(log(startingOffsets=json.dumps(checkpoint)), Wire(6000, bounds)).initial()
    assert restarted.marks[NAME] == zero
    longer = Wire(6000, bounds_of(q0=20, q1=3, q2=10))
    with pytest.raises(StreamError, match="message 9 is not the one that the stream has read"):
        wired(log(), longer).latest(begin, bytes_max=None, rows_max=None)
    plain = StreamOffset(QUEUE, {name: Mark(mark.at) for name, mark in begin.marks.items()})
    assert wired(log(), longer).latest(plain, bytes_max=None, rows_max=None).marks[NAME].at == 20


@pytest.mark.parametrize("loses", ["true", "false"])
def test_waiting_stream_detects_a_topic_recreated_as_long(loses: str) -> None:
    """Each look compares one queue: the one whose last comparison is the longest ago."""
    wire = Wire(5000, bounds_of(q0=10, q1=10, q2=10))
    running = wired(log(startingOffsets="latest", failOnDataLoss=loses), wire)
    at = running.latest(running.initial(), bytes_max=None, rows_max=None)
    wire.pulled.clear()
    for _ in range(4):
        assert running.latest(at, bytes_max=None, rows_max=None) == at
    assert [name[-1] for name, _ in wire.pulled] == ["0", "1", "2", "0"]
    wire.stamp = 6000
    if loses == "true":
        with pytest.raises(StreamError, match="message 9 is not the one that the stream has read"):
            running.latest(at, bytes_max=None, rows_max=None)
        return
    marks = at.marks
    while any(mark == at.marks[name] for name, mark in marks.items()):
        marks = running.latest(StreamOffset(QUEUE, marks), bytes_max=None, rows_max=None).marks
    assert {mark.at for mark in marks.values()} <= {3, 10}


def test_stream_reports_why_it_waits_or_ends_first(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(5000, {NAME: QueueBounds(3, 10, 200)})
    running = wired(log(), wire)
    at = running.latest(running.initial(), bytes_max=None, rows_max=None)
    assert (at.marks[NAME].at, caplog.text) == (10, "")
    running._cluster._lacking_since[NAME] = (10, time.monotonic() - HELD_UP_S)
    for _ in range(2):
        running.latest(at, bytes_max=None, rows_max=None)
    assert caplog.text.count("wire.held_up 190 messages of 1 queues") == 1
    running.freeze()
    assert caplog.text.count("wire.behind 190 messages of 1 queues") == 1


def planned(log: QueueLog, start: StreamOffset, end: StreamOffset) -> list[tuple[int, int]]:
    return [(part.start, part.end) for share in log.plan(start, end) for part in share]


@pytest.mark.parametrize("longest", [8, 15, 20, 40])
def test_earlier_batch_is_not_read_from_a_recreated_topic(
    longest: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond the batch's end, just up to it, up to its middle, or not even so far."""
    wire = Wire(5000, bounds_of(q0=10))
    first = wired(log(), wire)
    begin = wired(log(startingOffsets="latest"), wire).initial()
    wire.bounds = bounds_of(q0=20)
    end = first.latest(begin, bytes_max=None, rows_max=None)
    wire.pulled.clear()
    assert planned(first, begin, end) == [(10, 20)]
    assert wire.pulled == [], "a stream that runs asks nothing more"
    assert planned(wired(log(), wire), begin, end) == [(10, 20)]
    assert wire.pulled == [(NAME, 19)]

    recreated = Wire(6000, bounds_of(q0=longest))
    strict = log(retryTimeoutMs="100")
    kind = DataLoss if longest < 10 else StreamError
    with pytest.raises(kind, match=r"it ends at 8|is not the one that the stream has read there"):
        wired(strict, recreated).plan(begin, end)
    loose = wired(log(failOnDataLoss="false", retryTimeoutMs="100"), recreated)
    assert planned(loose, begin, end) == []
    assert "stream.data_lost" in caplog.text
    from_zero = StreamOffset(QUEUE, {})
    assert planned(loose, from_zero, end) == []


def test_earlier_batch_is_read_from_a_shortened_queue() -> None:
    begin = StreamOffset(QUEUE, {NAME: Mark(10)})
    wire = Wire(5000, bounds_of(q0=20))
    end = wired(log(), wire).latest(begin, bytes_max=None, rows_max=None)
    wire.bounds = bounds_of(q0=15)
    loose = wired(log(failOnDataLoss="false", retryTimeoutMs="100"), wire)
    assert planned(loose, begin, end) == [(10, 15)]


@pytest.mark.parametrize("loses", ["true", "false"])
def test_planned_batch_waits_for_a_broker_not_a_topic(
    loses: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A part left out of a batch is never read, so the broker must not be one that comes back."""
    begin, end = (StreamOffset(QUEUE, {NAME: Mark(at)}) for at in (10, 20))
    options = {"failOnDataLoss": loses, "retryTimeoutMs": "100"}
    wire = Wire(5000, {})
    wire.is_away = True
    with pytest.raises(WireError, match="has messages of broker-a, and is not given without them"):
        wired(log(**options), wire).plan(begin, end)
    wire.is_away = False
    log_without = wired(log(**options), wire)
    if loses == "true":
        with pytest.raises(DataLoss, match="not there any more"):
            log_without.plan(begin, end)
    else:
        assert planned(log_without, begin, end) == []
        assert "not there any more" in caplog.text
    wire.comes = bounds_of(q0=20)
    assert planned(wired(log(**options), wire), begin, end) == [(10, 20)]


def test_batch_of_a_version_without_checksums_is_read() -> None:
    begin, end = (StreamOffset(QUEUE, {NAME: Mark(at)}) for at in (10, 20))
    wire = Wire(5000, bounds_of(q0=30))
    assert planned(wired(log(), wire), begin, end) == [(10, 20)]
    assert wire.pulled == []


def test_names_of_queues() -> None:
    assert topic_of(queue_name("broker-a", "%RETRY%a|b", 3)) == "%RETRY%a|b"


def test_ranges_are_cut() -> None:
    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    pieces = QueueRange(queue, 5, 26).cut(10)
    assert [(piece.start, piece.end) for piece in pieces] == [(5, 15), (15, 25), (25, 26)]
    assert QueueRange(queue, 5, 5).cut(10) == []
