"""Times and targets of the sends of `replay`, and what it refuses before anything starts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.replay.job import (
    SURVEY_COLUMNS,
    ReplayOptions,
    deal,
    merged_places,
    pace_of,
    replay,
)
from rocketbed.pipeline.jobs.replay.send import GROUP_MAX, Due, Pace, grouped, play, with_origin
from rocketbed.pipeline.jobs.replay.target import SourceQueue, matched
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.pipeline.sink.rows import Outgoing, outgoing
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import STORE_MS, Log, rows
from tests.support.logs import messages as stored

KEY = TaskKey(job="j", batch=0, partition=0)
OPTIONS = SinkOptions(endpoints="h:1", topic="T")
FIRST_MS = 1_000_000


def rows_due(times_ms: Iterable[int]) -> list[Due]:
    times = list(times_ms)
    cells = {"body": [b"x"] * len(times)}
    rows = outgoing(cells, first_row=0, key=KEY, options=OPTIONS)
    return [(FIRST_MS + time, row) for time, row in zip(times, rows, strict=True)]


def queue(number: int = 0, **fields: Any) -> SourceQueue:
    fields_used: dict[str, Any] = {
        "broker": "a",
        "topic": "T",
        "queue_id": number,
        "messages": 10,
        "bytes": 100,
        "first_offset": 0,
        "last_offset": 9,
        "first_ms": FIRST_MS,
        "last_ms": FIRST_MS + 9,
        "last_position": 999,
        "last_stored_ms": FIRST_MS + 9,
    }
    return SourceQueue(**fields_used | fields)


async def times_of(
    rows: list[Due], pace: Pace, *, rate: float = 0.0, takes_s: float = 0.0
) -> tuple[list[float], int]:
    """Seconds at which each message goes out, and how late the latest one was."""
    began, times = trio.current_time(), []

    async def send(group: list[Outgoing]) -> None:
        times.extend([round(trio.current_time() - began, 3)] * len(group))
        await trio.sleep(takes_s)

    played = await play(rows, send, pace, rate=rate)
    return times, played.late_ms_max


async def test_gaps_are_kept_and_scaled(autojump_clock: MockClock) -> None:
    rows = rows_due([0, 5, 1000, 1000, 3000])
    assert await times_of(rows, Pace(speed=1.0, first_ms=FIRST_MS)) == ([0, 0, 1, 1, 3], 0)
    assert await times_of(rows, Pace(speed=10.0, first_ms=FIRST_MS)) == ([0, 0, 0.1, 0.1, 0.3], 0)
    later = Pace(speed=1.0, first_ms=FIRST_MS - 2000)  # another task has the first message
    assert await times_of(rows[:1], later) == ([2], 0)


async def test_late_task_catches_up(autojump_clock: MockClock) -> None:
    rows = rows_due([0, 1000, 2000, 9000])
    result = await times_of(rows, Pace(speed=1.0, first_ms=FIRST_MS), takes_s=1.5)
    assert result == ([0, 1.5, 3, 9], 1000)


async def test_a_rate_holds_whatever_the_gaps_were(autojump_clock: MockClock) -> None:
    rows = rows_due([0] * 100 + [50_000] * 100)
    times, _ = await times_of(rows, Pace(), rate=50.0)
    assert times[-1] == 4.0
    assert all(abs(at - (number + 1) / 50) < 0.03 for number, at in enumerate(times))
    assert (await times_of(rows, Pace()))[0] == [0.0] * 200


def test_messages_of_one_request() -> None:
    groups = list(grouped(rows_due([0, 10, 20, 30, 500]), Pace(speed=1.0, first_ms=FIRST_MS)))
    assert [(at, len(group)) for at, group in groups] == [(0, 3), (0.03, 1), (0.5, 1)]
    assert [len(group) for _, group in grouped(rows_due([0] * (GROUP_MAX + 1)), Pace())] == [
        4000,
        1,
    ]
    assert [len(group) for _, group in grouped(rows_due([0] * 3), Pace(), 1.0)] == [1, 1, 1]
    assert list(grouped([], Pace())) == []


def test_queues_and_rates_are_spread_over_tasks() -> None:
    assert deal([10, 90, 40, 45], 2) == [1, 0, 1, 1]
    assert deal([5], 8) == [0]
    queues = [queue(0, messages=30), queue(1, messages=10, first_ms=FIRST_MS - 7)]
    options = ReplayOptions(target="h:1", rate=100.0)
    pace = pace_of(options, queues, [0, 1])
    assert (pace.rates, pace.first_ms, pace.speed) == ((75.0, 25.0), FIRST_MS - 7, 0.0)
    assert pace_of(ReplayOptions(target="h:1", speed=2.0), queues, [0, 0]).rates == ()


def test_queue_goes_to_its_namesake_or_in_turn() -> None:
    def target(broker: str, number: int) -> MessageQueue:
        return MessageQueue(topic="T", broker_name=broker, queue_id=number)

    same = [target("a", 0), target("a", 1)]
    assert matched([queue(1), queue(0)], {"T": same}) == [same[1], same[0]]
    unlike = [target("x", 1), target("x", 0)]
    targets = matched([queue(0), queue(1), queue(2)], {"T": unlike})
    assert [one.queue_id for one in targets] == [0, 1, 0]


def test_an_origin_for_messages_that_have_no_id() -> None:
    assert with_origin("UNIQ_KEY\x01id\x02", "a/T/0/1") == "UNIQ_KEY\x01id\x02"
    for text in ("", "K\x01v\x02", "MY_UNIQ_KEY\x01v\x02", "junk"):
        cells: dict[str, list[Any]] = {"body": [b"x"], "properties": [with_origin(text, "a/T/0/1")]}
        (row,) = outgoing(cells, first_row=0, key=KEY, options=OPTIONS)
        assert row.message.properties["RB_ORIGIN"] == "a/T/0/1"


def test_ranges_of_the_target_are_put_together() -> None:
    tasks: list[dict[str, Any]] = [
        {"rows": 3, "places": [["T", "x", 0, 5, 9, 3]]},
        {"rows": 2, "places": [["T", "x", 0, 2, 7, 2], ["U", "x", 0, 0, 0, 1]]},
        {"rows": 0},
    ]
    places = merged_places(tasks)
    assert places["T", "x", 0] == {
        "broker": "x",
        "queue_id": 0,
        "first_offset": 2,
        "last_offset": 9,
        "messages": 5,
    }
    assert len(places) == 2


@pytest.mark.parametrize("options", [{"topics": "topic-0"}, {"endTimestamp": STORE_MS + 5000}])
def test_survey_shows_records_of_unknown_topic_or_time(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """A message was left out and the replay good."""
    log = Log(tmp_path / "store").append(stored(9))
    log.write(log.offsets[3], bytes(8))
    actual_rows = rows(log.root, SURVEY_COLUMNS, **options)
    assert [row["physical_offset"] for row in actual_rows if not row["topic"]] == [log.offsets[3]]


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"speed": 1.0, "rate": 5.0}, "give one of them"),
        ({"speed": 0.0}, "--speed must be positive"),
        ({"rate": float("nan")}, "--rate must be positive"),
        ({"start": "noon"}, "--start 'noon': expected milliseconds"),
        ({"topics": ("%RETRY%g",)}, "a system topic of its cluster"),
    ],
)
def test_impossible_replays(options: dict[str, Any], pattern: str) -> None:
    job = Job("replay", JobSettings(stores=("x",)))
    with pytest.raises(WrongUsage, match=pattern):
        replay(job, ReplayOptions(target="h:1", **options))
