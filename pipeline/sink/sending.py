"""Sending of a task's messages to the brokers, with the project's own client.

A send that was refused or whose outcome is unknown is repeated with the same message ids until
`retryTimeoutMs` is over; then the task fails and Spark decides. A message that was stored, but not
yet as safe as the cluster promises (a slave or a disk was late), is repeated too. So the log can
have copies: the position of the last, successful send counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import trio

from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.outcome import Outcome, Refused, Sent, wants_retry
from rocketbed.client.producer import Producer
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkError, SinkOptions
from rocketbed.pipeline.sink.rate import TokenBucket
from rocketbed.pipeline.sink.requests import Request, make_requests
from rocketbed.pipeline.sink.rows import Outgoing
from rocketbed.pipeline.sink.runs import Place, Runs
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue

ATTEMPT_S: Final = 5.0
"""Timeout of one attempt to send a request."""
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
LANES_MAX: Final = 16
"""Concurrent requests of a task."""


@dataclass(slots=True)
class SendReport:
    """Totals of the messages that a task sent and the broker acknowledged."""

    rows: int = 0
    bytes: int = 0
    """Total size of bodies."""
    retries: int = 0
    """Repeated attempts of all requests."""
    doubtful: int = 0
    """Messages that may have copies."""
    runs: Runs = field(default_factory=Runs)
    """Positions of the messages."""


class TaskSender:
    """Sends the rows of one task. An async context manager."""

    def __init__(self, options: SinkOptions, key: TaskKey) -> None:
        self._options = options
        self._key = key
        self._limit_s = options.retry_timeout_ms / 1000
        self._bucket = TokenBucket(options.bytes_per_s / options.tasks)
        self._producer = Producer(nameservers=options.endpoints, group=options.group, retries=0)
        self._turn = key.partition
        self._limiter = trio.CapacityLimiter(LANES_MAX)
        self.report = SendReport()

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._producer.__aexit__(kind, error, traceback)

    async def send(self, rows: Iterable[Outgoing]) -> None:
        """Send rows and wait until all are stored. Raises `SinkError` for the first failure."""
        lanes = make_requests(rows, self._options.request_bytes).values()
        failures: list[SinkError] = []
        async with trio.open_nursery() as nursery:

            async def run_lane(requests: Sequence[Request]) -> None:
                try:
                    for item in requests:
                        async with self._limiter:
                            await self._deliver(item)
                except SinkError as exc:
                    failures.append(exc)
                    nursery.cancel_scope.cancel()

            for lane in lanes:
                nursery.start_soon(run_lane, lane)
        if failures:
            raise failures[0]

    # --- inside

    async def _deliver(self, item: Request) -> None:
        """Send a request, repeatedly if need be. Raises `SinkError`."""
        bodies = sum(len(row.message.body) for row in item.rows)
        await trio.sleep(self._bucket.take(bodies, trio.current_time()))
        deadline = trio.current_time() + self._limit_s
        pause_s = PAUSE_S
        while True:
            outcome = await self._attempt(item, deadline)
            if isinstance(outcome, Sent) and outcome.is_safe:
                self._note(item, outcome, bodies)
                return
            self.report.retries += 1
            reason = outcome if isinstance(outcome, str) else _reason(outcome)
            if trio.current_time() + pause_s >= deadline:
                raise SinkError(
                    f"{self._describe(item)}: not accepted within {self._limit_s:g} s: {reason}"
                )
            if not isinstance(outcome, str):
                self.report.doubtful += 0 if isinstance(outcome, Refused) else len(item.rows)
                if not wants_retry(outcome, retry_unknown=True, retry_unsafe=True):
                    raise SinkError(f"{self._describe(item)}: {reason}")
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _attempt(self, item: Request, deadline: float) -> Outcome | str:
        """Return the outcome of one attempt, or the reason why nothing could be sent."""
        messages = [row.message for row in item.rows]
        try:
            with trio.fail_at(deadline):
                queue = await self._queue(item)
            left_s = max(min(ATTEMPT_S, deadline - trio.current_time()), 0.001)
            if item.is_single:
                return await self._producer.send(messages[0], queue=queue, timeout_s=left_s)
            return await self._producer.send_batch(messages, queue=queue, timeout_s=left_s)
        except BadMessage as exc:
            raise SinkError(f"{self._describe(item)}: {exc}", Condition.ILLEGAL_ROW) from exc
        except (ClientError, RemotingError) as exc:
            return str(exc)
        except trio.TooSlowError:
            return f"no route for topic {item.topic} within the timeout"

    async def _queue(self, item: Request) -> MessageQueue:
        """Return the queue for a request; the next queue each time if the row names none."""
        queues = await self._producer.queues(item.topic)
        brokers = sorted({queue.broker_name for queue in queues})
        if item.queue_id is not None:
            queues = tuple(
                queue
                for queue in queues
                if queue.queue_id == item.queue_id and item.broker in (None, queue.broker_name)
            )
        if not queues:
            where = "" if item.queue_id is None else f" with queue {item.queue_id}"
            where += f" at {item.broker}" if item.broker else ""
            hint = (
                f": it has queues at {', '.join(brokers)}; rows without the columns broker and"
                " queue_id go to any of them"
            )
            raise ClientError(
                f"no broker{where} accepts messages for topic {item.topic} now"
                + (hint if brokers else "")
            )
        self._turn += 1
        return queues[0 if item.queue_id is not None else self._turn % len(queues)]

    def _note(self, item: Request, outcome: Sent, bodies: int) -> None:
        queue = outcome.queue
        if outcome.queue_offset < 0 and self._options.is_exactly_once:
            raise SinkError(
                f"{self._describe(item)}: broker {queue.broker_name} does not say at which queue "
                f"offset it stored them, so they cannot be marked: delivery=at-least-once"
            )
        self.report.rows += len(item.rows)
        self.report.bytes += bodies
        if outcome.queue_offset >= 0:
            place = Place(queue.topic, queue.broker_name, queue.queue_id)
            self.report.runs.add(place, outcome.queue_offset, len(item.rows))

    def _describe(self, item: Request) -> str:
        first, last = item.rows[0].row, item.rows[-1].row
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        return f"{rows} of partition {self._key.partition} for topic {item.topic}"


def _reason(outcome: Outcome) -> str:
    if isinstance(outcome, Sent):
        return f"broker {outcome.queue.broker_name} stored it, but says {outcome.status.name}"
    return outcome.reason
