"""A task of `replay`: sends the messages of some queues, in order and at their due times.

With a speed, each message has a due time relative to a start that all tasks share: they wait until
all of them have their first messages. A late task sends without waiting until it has caught up.
With a rate, a token bucket determines the time of the next message. Messages that are due at about
the same time are sent together.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.sink.keys import ORIGIN, TaskKey
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.pipeline.sink.rate import TokenBucket
from rocketbed.pipeline.sink.rows import Outgoing, outgoing
from rocketbed.wire.properties import UNIQUE_KEY, decode_properties, encode_properties

if TYPE_CHECKING:
    import pyarrow

TICK_S: Final = 0.02
"""Messages that are due within this time are sent together."""
GROUP_MAX: Final = 4000
"""Maximum number of messages that are sent before the task reads the clock again."""
GROUP_BYTES_MAX: Final = 8 << 20
RESULT: Final = "task int, text string"
COLUMNS: Final = ("topic", "queue_id", "broker", "flag", "properties", "body")

Due = tuple[int, Outgoing]
"""A message and its store time at the source, milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Speed of a replay. Without speed and rate, it is as fast as the cluster."""

    speed: float = 0.0
    """2.0: in half the original time; 0: not by time."""
    first_ms: int = 0
    """Store time of the first message of all queues, milliseconds since 1970."""
    rates: tuple[float, ...] = ()
    """Messages per second, for each task; empty: not by a rate."""


@dataclass(slots=True)
class Played:
    late_ms_max: int = 0
    """Maximum delay of a message after its due time."""
    groups: int = 0
    _group: list[Outgoing] = field(default_factory=list)


async def play(
    rows: Iterable[Due],
    send: Callable[[list[Outgoing]], Awaitable[None]],
    pace: Pace,
    *,
    rate: float = 0.0,
) -> Played:
    """Send rows, which are in the order of their times, at that pace; `rate` is this task's."""
    import trio

    played = Played()
    origin = trio.current_time()
    bucket = TokenBucket(rate)
    for due_s, group in grouped(rows, pace, rate):
        if pace.speed:
            late_s = trio.current_time() - origin - due_s
            played.late_ms_max = max(played.late_ms_max, round(late_s * 1000))
            await trio.sleep_until(origin + due_s)
        await trio.sleep(bucket.take(len(group), trio.current_time()))
        await send(group)
        played.groups += 1
    return played


def grouped(
    rows: Iterable[Due], pace: Pace, rate: float = 0.0
) -> Iterator[tuple[float, list[Outgoing]]]:
    """Yield the rows that are sent together, with their due second (0 without a speed)."""
    most = max(1, min(GROUP_MAX, round(rate * TICK_S))) if rate else GROUP_MAX
    group: list[Outgoing] = []
    began_s, size = 0.0, 0
    for due_ms, row in rows:
        due_s = (due_ms - pace.first_ms) / 1000 / pace.speed if pace.speed else 0.0
        is_full = len(group) >= most or size >= GROUP_BYTES_MAX
        if group and (is_full or due_s > began_s + TICK_S):
            yield began_s, group
            group, size = [], 0
        if not group:
            began_s = due_s
        group.append(row)
        size += len(row.message.body)
    if group:
        yield began_s, group


def send_task(
    batches: "Iterator[pyarrow.RecordBatch]", options: SinkOptions, pace: Pace
) -> "Iterator[pyarrow.RecordBatch]":
    """Run the task, and yield a row with its result as JSON.

    Raises `SinkError`, `ClientError`.
    """
    import pyarrow
    import trio
    from pyspark import BarrierTaskContext, TaskContext

    context = TaskContext.get()
    assert context is not None
    task = context.partitionId()
    first = next(batches, None)
    if pace.speed:
        BarrierTaskContext.get().barrier()
    summary: dict[str, Any] = {"task": task, "rows": 0}
    if first is not None:
        key = TaskKey(job=options.job, batch=0, partition=task)
        summary |= trio.run(_run, _rows(first, batches, key, options), options, key, pace)
    row = {"task": pyarrow.array([task], pyarrow.int32()), "text": [json.dumps(summary)]}
    yield pyarrow.RecordBatch.from_pydict(row)


async def _run(
    rows: Iterator[Due], options: SinkOptions, key: TaskKey, pace: Pace
) -> dict[str, Any]:
    from rocketbed.pipeline.sink.sending import TaskSender

    rate = pace.rates[key.partition] if pace.rates else 0.0
    async with TaskSender(options, key) as sender:
        played = await play(rows, sender.send, pace, rate=rate)
    report = sender.report
    counts = {
        place: sum(count for _, count in runs) for place, runs in report.runs.merged().items()
    }
    return {
        "rows": report.rows,
        "bytes": report.bytes,
        "retries": report.retries,
        "doubtful": report.doubtful,
        "late_ms_max": played.late_ms_max,
        "places": [[*place, *ends, counts[place]] for place, ends in report.runs.ranges().items()],
    }


def _rows(
    first: "pyarrow.RecordBatch",
    batches: "Iterator[pyarrow.RecordBatch]",
    key: TaskKey,
    options: SinkOptions,
) -> Iterator[Due]:
    number = 0
    batch: pyarrow.RecordBatch | None = first
    while batch is not None:
        cells = {name: batch[name].to_pylist() for name in COLUMNS}
        origins = batch["origin"].to_pylist()
        cells["properties"] = [
            with_origin(text, origin)
            for text, origin in zip(cells["properties"], origins, strict=True)
        ]
        messages = outgoing(cells, first_row=number, key=key, options=options)
        yield from zip(batch["due_ms"].to_pylist(), messages, strict=True)
        number += batch.num_rows
        batch = next(batches, None)


def with_origin(properties: str, origin: str) -> str:
    """Return stored properties, as readers see them, with an origin.

    A message without an id gets its place at the source as origin.
    """
    stored = decode_properties(properties)
    # `outgoing` turns an id into the origin.
    return encode_properties(stored if UNIQUE_KEY in stored else {ORIGIN: origin} | stored)
