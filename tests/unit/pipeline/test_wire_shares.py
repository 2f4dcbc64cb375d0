"""Distribution of the queues of a live cluster to tasks, and reading by them."""

import math
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rocketbed.client.errors import RequestRefused
from rocketbed.client.routes import Route
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import DataLoss
from rocketbed.pipeline.wire import chunks
from rocketbed.pipeline.wire import cluster as module
from rocketbed.pipeline.wire.cluster import Cluster, QueueSnapshot
from rocketbed.pipeline.wire.log import RawPull, Refused, WireError, WireLog
from rocketbed.pipeline.wire.plan import TASKS_MAX, QueueRange, WirePlan, shared
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.remoting.errors import NotConnected, RequestTimeout
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.command import Command, answer


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
    queue_ranges = ranges(*lengths)
    shares = shared(queue_ranges, at_least)
    assert (at_least if lengths else 0) <= len(shares) <= most
    ends: dict[int, int] = {}
    for share in shares:
        assert share
        for part in share:
            number = part.queue.queue_id
            assert part.start == ends.get(number, 5)
            ends[number] = part.end
    assert ends == {part.queue.queue_id: part.end for part in queue_ranges}


@pytest.mark.parametrize("place", [{"at": 99}, {"at": 1}, {"at": 99, "start": 4}])
def test_missing_offset_is_reported(
    caplog: pytest.LogCaptureFixture, place: dict[str, int]
) -> None:
    queue, bounds = ranges(1)[0].queue, QueueBounds(3, 8, 8)

    def nearest(fails: str) -> int:
        options = Options.parse({"endpoints": "h:1", "failOnDataLoss": fails})
        return WirePlan.of(options)._nearest(queue, place["at"], bounds, start=place.get("start"))

    with pytest.raises(DataLoss, match=f"has 3 to 8, and {place['at']} was asked for"):
        nearest("true")
    assert not caplog.records
    assert nearest("false") == (8 if place["at"] == 99 else 3)
    (record,) = caplog.records
    assert f"has 3 to 8, and {place['at']} was asked for" in record.getMessage()


class Members:
    """A queue whose members each lost another part of the beginning to retention; some are away."""

    def __init__(
        self, firsts: dict[int, int], first_asked: int = 0, away: Sequence[int] = ()
    ) -> None:
        self.firsts, self.requests, self.away = firsts, first_asked, away
        self.current: int | None = None

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        member = (
            self.requests if self.current is None or self.current in self.away else self.current
        )
        first = self.firsts[member]
        stop = min(at + 20, 100)
        records = b"".join(bytes([member, number]) for number in range(at, stop))
        return RawPull(
            records=records if at >= first else b"",
            next_offset=stop if at >= first else first,
            first=first,
            end=100,
            broker_id=member,
        )

    async def another(self, queue: MessageQueue, tried: Collection[int]) -> int | None:
        return min(self.firsts.keys() - tried, default=None)

    def ask_member(self, queue: MessageQueue, broker_id: int) -> None:
        self.current = broker_id


@pytest.mark.parametrize(
    ("members", "member", "first"),
    [
        (Members({0: 0, 1: 50}, first_asked=1), 0, 0),
        (Members({0: 50, 1: 0}), 1, 0),
        (Members({0: 50, 1: 70, 2: 0}), 2, 0),
        (Members({0: 50}), 0, 50),
        (Members({0: 0, 1: 50}, first_asked=1, away=[0]), 1, 50),
        (Members({0: 70, 1: 50, 2: 60}), 1, 50),
    ],
    ids=[
        "master has all",
        "slave",
        "last slave",
        "no member",
        "holder is away",
        "no member has all",
    ],
)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_messages_deleted_at_one_member_come_from_another(
    members: Members, member: int, first: int, fails: str
) -> None:
    """It was an error, or what others have was passed over."""
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": fails})
    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    log: Any = members
    members.current = None

    def chunk() -> list[RawPull]:
        return trio.run(chunks.chunk, options, QueueRange(queue, 0, 100), 0, log)

    if first and fails == "true":
        with pytest.raises(WireError, match="messages 0 to 50 were deleted"):
            chunk()
        return
    data = b"".join(one.records for one in chunk())
    assert data == b"".join(bytes([member, number]) for number in range(first, 100))


@pytest.mark.parametrize("is_named", [True, False])
def test_unreadable_queues_are_reported_once_per_topic(
    is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Their messages were left out without a word, as while a topic is scaled."""

    async def get(topic: str) -> Route:
        queues = tuple(MessageQueue(topic=topic, broker_name="a", queue_id=n) for n in range(4))
        count = {"T": 1, "U": 0, "all": 4}[topic]
        members = {"a": {0: ("h", 0)}}
        return Route(
            topic=topic, brokers=members, writable=queues, ordered=queues, readable=queues[:count]
        )

    async def read() -> list[int]:
        log = WireLog("127.0.0.1:1")
        log._session = SimpleNamespace(routes=SimpleNamespace(get=get))  # type: ignore[assignment]
        ask = log.queues if is_named else log.queues_now
        return [len(await ask(topic)) for topic in ("T", "U", "all", "T", "U")]

    assert trio.run(read) == [1, 0, 4, 1, 0]
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert "wire.not_readable topic T: by its route 3 queues, queue 1 of topic T at a" in logged[0]
    assert "topic U: by its route 4 queues, queue 0 of topic U at a the first" in logged[1]


@pytest.mark.parametrize(
    ("end", "longest", "uncommitted", "is_told"),
    [
        (10_000, 10_099, "false", False),  # on its way, it may be
        (10_000, 10_100, "false", True),
        (10_000, 10_100, "true", False),
        (30, 60, "false", False),
        (29, 60, "false", True),
        (0, 1, "false", True),
        (0, 0, "false", False),
    ],
)
def test_messages_missing_at_a_member_are_reported(
    end: int, longest: int, uncommitted: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch ended where an empty replica does, which was on the route, and said nothing."""
    options = {"endpoints": "127.0.0.1:1", "topics": "T", "readUncommitted": uncommitted}
    bounds = {"b|T|0": QueueBounds(0, 500, 500), "b|T|1": QueueBounds(0, end, longest, 2)}
    Cluster(Options.parse(options)).tell_left_out(QueueSnapshot({}, bounds))
    text = f"wire.behind {longest - end} messages of 1 queues, b|T|1 the first"
    assert [record.getMessage()[: len(text)] for record in caplog.records] == [text] * is_told


@pytest.mark.parametrize("uncommitted", ["false", "true"])
def test_reason_to_wait_is_reported_once_each_time(
    uncommitted: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read nothing more, and said nothing."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster = Cluster(Options.parse({"endpoints": "h:1", "readUncommitted": uncommitted}))

    def waits_told(at_s: float, *ends: tuple[int, int], at: int = 0) -> list[str]:
        now[0] = at_s
        caplog.clear()
        bounds = {f"b|T|{number}": QueueBounds(0, *one) for number, one in enumerate(ends)}
        cluster.tell_held_up(QueueSnapshot({}, bounds), dict.fromkeys(bounds, at))
        return [record.getMessage() for record in caplog.records]

    stands, steady = (100, 101), (50, 50)
    assert [waits_told(at_s, stands, steady) for at_s in (0.0, 9.9)] == [[], []]
    text = waits_told(10.0, (100, 300), steady)
    if uncommitted == "true":
        assert text == []
        return
    assert text[0].startswith("wire.held_up 200 messages of 1 queues, b|T|0 the first, are not at")
    assert "have not come there in 10 s" in text[0]
    assert waits_told(30.0, (100, 400), (50, 60)) == []
    # It goes on and stands again, beside another one that does; each has its own ten seconds.
    assert [waits_told(at_s, (101, 400), (50, 60)) for at_s in (35.0, 39.9)] == [[], []]
    (other_text,) = waits_told(40.0, (101, 400), (50, 60))
    assert "10 messages of 1 queues, b|T|1" in other_text
    assert [len(waits_told(at_s, (101, 400), (50, 60))) for at_s in (44.9, 45.0, 60.0)] == [0, 1, 0]
    # What has come is forgotten.
    assert [len(waits_told(at_s, (400, 400), (60, 60))) for at_s in (61.0, 80.0)] == [0, 0]
    assert [len(waits_told(at_s, (400, 401), (60, 60))) for at_s in (81.0, 90.0, 91.0)] == [0, 0, 1]
    # What was read already, before the member lost it, is not waited for.
    assert [waits_told(at_s, (1, 300), at=300) for at_s in (100.0, 110.0)] == [[], []]
    read = [waits_told(at_s, (1, 310), at=300) for at_s in (120.0, 130.0)]
    assert [one[0][:40] for one in read if one] == ["wire.held_up 10 messages of 1 queues, b|"]


@pytest.mark.parametrize("uncommitted", ["false", "true"])
def test_silent_members_are_reported_once_until_they_answer(
    uncommitted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch of an empty slave, whose master hung, was empty without a reason."""
    cluster = Cluster(Options.parse({"endpoints": "h:1", "readUncommitted": uncommitted}))

    def unanswered_told(*silent: str) -> list[str]:
        caplog.clear()
        bounds = {f"b|T|{number}": QueueBounds(0, 1, 1, 1, silent) for number in range(2)}
        cluster.tell_unanswered(QueueSnapshot({}, bounds))
        return [record.getMessage() for record in caplog.records]

    warning = "wire.unanswered no answer from h:1 of b: what only it has is not read"
    assert [
        unanswered_told(),
        unanswered_told("h:1"),
        unanswered_told("h:1"),
        unanswered_told(),
        unanswered_told("h:1"),
    ] == [[], [warning], [], [], [warning]]
    both = "wire.unanswered no answer from h:2 of b, h:3 of b: what only they have is not read"
    assert unanswered_told("h:1", "h:2", "h:3") == [both]


def test_chosen_member_stays_until_it_stops_answering() -> None:
    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    members = {number: ("h", number) for number in (0, 1, 2)}
    route = Route(topic="T", brokers={"a": members}, writable=(), ordered=(), readable=(queue,))
    member_ids: list[int] = []

    async def get(topic: str) -> Route:
        return route

    async def ask(address: tuple[str, int], command: Command, timeout_s: float) -> Command:
        member_ids.append(address[1])
        if len(member_ids) == 3:
            raise NotConnected("gone")
        fields = {"suggestWhichBrokerId": 0, "nextBeginOffset": 9, "minOffset": 0, "maxOffset": 9}
        texts = {name: str(value) for name, value in fields.items()}
        return answer(command, ResponseCode.PULL_NOT_FOUND, None, texts)

    async def questions() -> list[int | None]:
        log = WireLog("127.0.0.1:1")
        routes = SimpleNamespace(get=get, distrust=lambda *_, **__: None)
        log._session = SimpleNamespace(routes=routes, ask=ask)  # type: ignore[assignment]
        next_members = [await log.another(queue, tried) for tried in ((), (0,), (0, 1, 2))]
        log.ask_member(queue, 2)
        for _ in range(3):
            await log.pull(queue, 0)
        return next_members

    member_ids_found = trio.run(questions, clock=MockClock(autojump_threshold=0))
    assert member_ids_found == [0, 1, None]
    assert member_ids == [2, 2, 2, 0]


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
    queue_range = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 100)
    log: Any = Backwards(since, back)

    async def read() -> None:
        with trio.fail_after(3):
            await chunks.chunk(options, queue_range, 0, log)

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
def test_messages_after_damage_are_read_many_at_once(
    bad: set[int], seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Two and a half seconds each it took: three quarters of an hour for a thousand."""
    log: Any = Damaged(bad, 600)
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": "false"})
    queue_range = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 600)
    clock = MockClock(autojump_threshold=0)
    pulls = trio.run(chunks.chunk, options, queue_range, 0, log, clock=clock)
    data = b"".join(one.records for one in pulls)
    numbers = [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]
    assert numbers == [number for number in range(600) if number not in bad]
    assert clock.current_time() <= seconds
    left_out = [record.args or () for record in caplog.records]
    reported: list[int] = []
    for first, last, *_ in left_out:
        reported += range(int(first), int(last) + 1)  # type: ignore[call-overload]
    assert reported == sorted(bad)


def test_a_broker_that_gives_nothing_has_other_troubles() -> None:
    log: Any = Damaged({*range(600)}, 600)
    options = Options.parse({"endpoints": "h:1", "failOnDataLoss": "false"})
    queue_range = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 600)
    with pytest.raises(Refused, match="pull at 0"):
        trio.run(chunks.chunk, options, queue_range, 0, log, clock=MockClock(autojump_threshold=0))


def test_master_is_asked_where_a_slave_refuses() -> None:
    at_master_calls: list[bool] = []

    class Log(WireLog):
        async def _pull(self, *_: object, at_master: bool, answer_s: float) -> RawPull:
            at_master_calls.append(at_master)
            if not at_master:
                raise RequestRefused("queue", "broker", ResponseCode.SYSTEM_ERROR, "damaged")
            return RawPull(records=b"m", next_offset=1, first=0, end=1, broker_id=0)

    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    log = Log("127.0.0.1:1")
    clock = MockClock(autojump_threshold=0)
    assert trio.run(log.pull, queue, 0, clock=clock).records == b"m"
    assert at_master_calls == [False, True]


def test_shorter_master_does_not_speak_for_a_refusing_slave() -> None:
    """Its slave alone had the queue's end, one message of it damaged: everything after that was
    left out with it, as the shorter master seemed to say that there was nothing.
    """
    bad = {95}

    class Log(WireLog):
        async def _pull(
            self, queue: MessageQueue, at: int, count: int, *, at_master: bool, answer_s: float
        ) -> RawPull:
            end = 100 if self._chosen.get(queue) == 1 and not at_master else 90
            if at in bad and end == 100:
                raise RequestRefused("queue", "broker", ResponseCode.SYSTEM_ERROR, "damaged")
            stop = min([one for one in bad if one > at] + [at + min(count, 32), end])
            data = b"".join(number.to_bytes(4, "big") for number in range(at, stop))
            fields = {"next_offset": max(at, stop), "first": 0, "end": end}
            return RawPull(records=data, broker_id=int(end == 100), **fields)

        async def bounds(self, queue: MessageQueue) -> QueueBounds:
            return QueueBounds(0, 90, 100)

        async def another(self, queue: MessageQueue, tried: Collection[int]) -> int | None:
            return min({0, 1} - set(tried), default=None)

    options = Options.parse(
        {"endpoints": "h:1", "failOnDataLoss": "false", "readUncommitted": "true"}
    )
    queue_range = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 100)
    clock = MockClock(autojump_threshold=0)
    log = Log("127.0.0.1:1", limit_s=5.0, anyone=True)
    pulls = trio.run(chunks.chunk, options, queue_range, 0, log, clock=clock)
    data = b"".join(one.records for one in pulls)
    numbers = [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]
    assert numbers == [number for number in range(100) if number not in bad]


def test_slow_answer_is_waited_for_longer_each_time() -> None:
    """An answer that took over five seconds was requested again until the limit, and never read."""
    waits_s: list[float] = []

    class Slow(WireLog):
        async def _pull(self, *_: object, at_master: bool, answer_s: float) -> RawPull:
            waits_s.append(answer_s)
            with trio.move_on_after(answer_s):
                await trio.sleep(12)
                return RawPull(records=b"m", next_offset=1, first=0, end=1, broker_id=0)
            raise RequestTimeout("no answer")

    queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
    clock = MockClock(autojump_threshold=0)
    log = Slow("127.0.0.1:1", limit_s=60.0)
    assert trio.run(log.pull, queue, 0, clock=clock).records == b"m"
    assert waits_s == [5.0, 10.0, 20.0]
    log = Slow("127.0.0.1:1", limit_s=20.0)
    with pytest.raises(WireError, match="at 0: after 20 s still"):
        trio.run(log.pull, queue, 0, clock=MockClock(autojump_threshold=0))


class Shorter(Damaged):
    """A broker that has lost the end of a queue, for good or for some seconds."""

    def __init__(self, back_after: float, broker_id: int = 0) -> None:
        super().__init__(set(), 100)
        self.back_after = back_after
        self.broker_id = broker_id

    async def another(self, queue: MessageQueue, tried: set[int]) -> None:
        return None

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        self.end = 100 if trio.current_time() >= self.back_after else 90
        if at >= self.end:
            return RawPull(
                records=b"", next_offset=at, first=0, end=self.end, broker_id=self.broker_id
            )
        return await super().pull(queue, at, count)

    pause = WireLog.pause


@pytest.mark.parametrize(("back_after", "count"), [(8.0, 100), (math.inf, 90)])
def test_queue_shortened_since_the_plan(
    back_after: float, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that allows loss waits for the rest as long as for a broker, and continues without
    it.
    """
    log: Any = Shorter(back_after)
    queue_range = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 100)

    def read(**more: str) -> list[RawPull]:
        options = Options.parse({"endpoints": "h:1", "retryTimeoutMs": "10000", **more})
        return trio.run(
            chunks.chunk, options, queue_range, 0, log, clock=MockClock(autojump_threshold=0)
        )

    with pytest.raises(WireError, match=r"no messages at 90, .* has 0 to 90: .* failOn") as caught:
        read()
    assert caught.value.condition is Condition.DATA_LOSS
    pulls = read(failOnDataLoss="false")
    assert sum(len(one.records) for one in pulls) == 4 * count
    assert pulls[-1].next_offset == 100
    assert ("wire.shorter" in caplog.text) == (count == 90)


@pytest.mark.parametrize(
    ("broker_id", "longest", "member"),
    [(1, "false", "the slave that answers, 1,"), (0, "true", "the broker")],
)
def test_shorter_member_does_not_decide(broker_id: int, longest: str, member: str) -> None:
    """The master, or the longest member, was away for a second: its log was called truncated."""
    options = {"endpoints": "h:1", "retryTimeoutMs": "10000", "readUncommitted": longest}
    queue_range = QueueRange(MessageQueue(topic="T", broker_name="a", queue_id=0), 0, 100)

    def read(back_after: float) -> int:
        log: Any = Shorter(back_after, broker_id)
        clock = MockClock(autojump_threshold=0)
        pulls = trio.run(chunks.chunk, Options.parse(options), queue_range, 0, log, clock=clock)
        return sum(len(one.records) for one in pulls)

    assert read(8.0) == 400
    with pytest.raises(WireError, match=f"and {member} says it has 0 to 90: .* is away; failOn"):
        read(math.inf)
