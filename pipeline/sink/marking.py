"""Markers of exactly-once jobs in a live cluster: looked up by tasks, written by the driver."""

import uuid
from collections.abc import Sequence
from typing import Final

import trio

from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.sink.markers import (
    BadMarker,
    Committed,
    committed,
    decode_part,
    encode_marker,
    jobs_of,
    marker_topic,
    warn_expired,
)
from rocketbed.pipeline.sink.options import SinkError, SinkOptions
from rocketbed.pipeline.sink.runs import Runs
from rocketbed.pipeline.wire.log import WireError, WireLog
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.message import decode_messages

PAUSE_S: Final = 0.1
STEP: Final = 32
"""Messages that are read at once when searching back from the end of the marker topic."""


async def marker_of(options: SinkOptions, job: str, batch: int) -> Runs | None:
    """Return the committed messages of a batch; None if it is not marked.

    Searches from the end of the topic back to a marker of an earlier batch. Raises `WireError`,
    `BadMarker`.
    """
    async with WireLog(options.endpoints, limit_s=options.retry_timeout_ms / 1000) as log:
        queue = await _queue(log, job)
        if queue is None:
            return None
        bounds = await log.bounds(queue)
        begin = bounds.end
        while begin > bounds.first:
            begin = max(begin - STEP, bounds.first)
            state = Committed(job)
            earlier = False
            for body in await _bodies(log, queue, begin, bounds.end):
                part = decode_part(body, job)
                earlier = earlier or part.batch < batch
                state.add(part)
            if state.has(batch) or earlier:
                return state.runs_of(batch)
        return None


async def write_marker(options: SinkOptions, job: str, batch: int, runs: Runs) -> None:
    """Write the marker of a batch, so that its messages count.

    Raises `SinkError`: the batch may be marked or not then, and has to be run again.
    """
    bodies = encode_marker(job, batch, str(uuid.uuid4()), runs)
    deadline = trio.current_time() + options.retry_timeout_ms / 1000
    async with Producer(nameservers=options.endpoints, group=options.group, retries=0) as producer:
        queue = await _create_queue(options, job, deadline)
        for body in bodies:
            message = Message(marker_topic(job), body, keys=[f"{job}-{batch:x}"])
            reason = "no time was left"
            while True:
                if trio.current_time() >= deadline:
                    raise SinkError(f"batch {batch} of job {job} cannot be marked: {reason}")
                outcome = await producer.send(message, queue=queue)
                if isinstance(outcome, Sent) and outcome.is_safe:
                    break
                reason = outcome.status.name if isinstance(outcome, Sent) else outcome.reason
                await trio.sleep(PAUSE_S)


async def read_markers(log: WireLog, topics: Sequence[str]) -> dict[str, Runs | None]:
    """Return the committed messages of each job with a marker topic among `topics`.

    None for a job whose topic does not hold markers. Raises `PipelineError`.
    """
    runs_by_job: dict[str, Runs | None] = {}
    for job in jobs_of(topics):
        try:
            queue = await _queue(log, job)
        except BadMarker:
            runs_by_job[job] = None
            continue
        bodies: list[bytes] = []
        if queue is not None:
            bounds = await log.bounds(queue)
            if bounds.first:
                warn_expired(queue.topic, bounds.first, f"broker {queue.broker_name}")
            bodies = await _bodies(log, queue, bounds.first, bounds.end)
        state = committed(job, bodies)
        runs_by_job[job] = None if state is None else state.runs()
    return runs_by_job


# --- inside


async def _queue(log: WireLog, job: str) -> MessageQueue | None:
    """Return the only queue of a job's markers; None if the topic does not exist yet.

    Raises `BadMarker` for a topic with several queues.
    """
    topic = marker_topic(job)
    if not await log.has_topic(topic):
        return None
    queues = await log.queues(topic)
    if len(queues) != 1:
        raise BadMarker(
            f"marker topic {topic} has {len(queues)} queues, not 1: it was not created by this "
            f"writer, so the order of markers is unknown"
        )
    return queues[0]


async def _bodies(log: WireLog, queue: MessageQueue, begin: int, end: int) -> list[bytes]:
    """Return the bodies of the messages in [begin, end) of a queue. Raises `WireError`."""
    bodies: list[bytes] = []
    offset = begin
    tried: set[int] = set()
    while offset < end:
        pulled = await log.pull(queue, offset, count=min(end - offset, STEP))
        # Each member of a group expires its messages independently: another one may have more.
        if pulled.first > offset and not pulled.records:
            tried.add(pulled.broker_id)
            if (member := await log.another(queue, tried)) is not None:
                tried.add(member)
                log.ask_member(queue, member)
                continue
        try:
            messages = decode_messages(pulled.records)
        except ProtocolError as exc:
            raise WireError(f"marker topic {queue.topic} at {offset}: {exc}") from exc
        offsets = [message.queue_offset for message in messages]
        if not offsets or offsets != list(range(offset, offset + len(offsets))):
            raise WireError(
                f"markers of {queue.topic}: for those from {offset} to {end - 1} its broker gives"
                f" {offsets[:3] or 'none'}: they are being deleted, or its store is damaged",
                Condition.DATA_LOSS,
            )
        bodies += [message.body for message in messages if message.queue_offset < end]
        offset += len(offsets)
    return bodies


async def _create_queue(options: SinkOptions, job: str, deadline: float) -> MessageQueue:
    """Return the queue of a job's markers, created on one broker if missing. Raises `SinkError`."""
    reason = "no broker answered"
    topic = marker_topic(job)
    while trio.current_time() < deadline:
        try:
            async with Admin(nameservers=options.endpoints) as admin:
                route = await admin.route(topic)
                if route is None or not route.queue_datas:
                    masters = (await admin.cluster()).broker_addr_table
                    broker = min(name for name, row in masters.items() if 0 in row.broker_addrs)
                    await admin.create_topic(topic, queues=1, brokers=[broker])
                else:
                    broker = route.queue_datas[0].broker_name
                return MessageQueue(topic=topic, broker_name=broker, queue_id=0)
        except ValueError:
            reason = "no broker has a master now"
        except (ClientError, RemotingError) as exc:
            reason = str(exc)
        await trio.sleep(PAUSE_S)
    raise SinkError(f"cannot create marker topic {topic}: {reason}")
