"""`rocketbed.aio` on real nodes: what is cancelled loses nothing, and where functions run."""

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import FrameType

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span

import rocketbed
from rocketbed import aio, blocking, portal
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.otel import OpenTelemetry

COUNT = 300
SOON = {"messageDelayLevel": "1s 1s 1s 1s"}
"""What fails comes again after the third of them, not after 10 s."""


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.process
async def test_programs_on_asyncio(tmp_path: Path) -> None:
    async with LocalCluster.create(
        tmp_path / "cluster", slaves=0, sync=False, settings=SOON, tied=True
    ) as cluster:
        await cluster.start()
        address = cluster.nameserver_address
        for program in (
            cancelled_polls,
            polls_again_before_it_has_seen,
            iterate_and_commit,
            limited_calls,
            listen,
            stopped_listener,
            traced,
            calls_that_end,
        ):
            await trio.to_thread.run_sync(asyncio.run, program(address))
        interrupted_polls(address)


async def fill(address: str, topic: str, queues: int, count: int) -> None:
    async with aio.Admin(nameservers=address) as admin:
        await admin.create_topic(topic, queues=queues)
    async with aio.Producer(nameservers=address) as producer:
        outcomes = await asyncio.gather(
            *(producer.send(aio.Message(topic, b"%d" % number)) for number in range(count))
        )
        assert all(isinstance(outcome, aio.Sent) for outcome in outcomes)


async def cancelled_polls(address: str) -> None:
    """Wherever a cancellation meets a poll: what it would have returned is the next one's."""
    await fill(address, "Cancelled", 2, COUNT)
    random = Random(7)
    got: Counter[bytes] = Counter()
    cancelled = 0
    async with aio.Consumer(nameservers=address, group="cancelled") as consumer:
        await consumer.subscribe("Cancelled", start="first")
        while len(got) < COUNT:
            polling = asyncio.ensure_future(
                consumer.poll() if random.random() < 0.5 else next_one(consumer)
            )
            for _ in range(random.randrange(12)):
                await asyncio.sleep(random.choice((0, 0, 0.0002)))
            if random.random() < 0.5:
                time.sleep(0.005)  # noqa: ASYNC251 - so that the answer has arrived unseen
            polling.cancel()
            try:
                got.update(message.body for message in await polling)
            except asyncio.CancelledError:
                cancelled += 1
                if cancelled % 10 == 0:  # whatever the machine's pace
                    got.update(message.body for message in await consumer.poll())
        await consumer.commit()
        assert set(got.values()) == {1}
        assert cancelled
        ends = [await consumer.committed(queue) for queue in consumer.positions()]
        # What was given to tasks that are gone is not dealt with, unless they said so.
        assert sum(end or 0 for end in ends) <= COUNT


async def polls_again_before_it_has_seen(address: str) -> None:
    """A task cancels its poll whose answer is on its way, and polls again."""
    await fill(address, "Unseen", 1, 2)
    async with aio.Consumer(nameservers=address, group="unseen") as consumer:
        await consumer.subscribe("Unseen", start="first")
        first = asyncio.ensure_future(anext_of(consumer))
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - the loop is busy while the answer comes
        first.cancel()
        asyncio.get_running_loop().call_soon(time.sleep, 0.05)
        got = {(await anext(consumer)).body, (await anext(consumer)).body}
        assert got == {b"0", b"1"}
        with pytest.raises(asyncio.CancelledError):
            await first


async def next_one(consumer: aio.Consumer) -> list[aio.Received]:
    return [await anext(consumer)]


def interrupted_polls(address: str) -> None:
    """The same for signals that raise in a plain program."""

    class Interrupted(Exception):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Elsewhere the answer may be on its way already, and nothing could hold it.
        if frame is not None and frame.f_code.co_filename == portal.__file__:
            call = frame.f_locals.get("call")
            if call is None or not call.is_seen:
                raise Interrupted

    asyncio.run(fill(address, "Interrupted", 2, COUNT))
    random = Random(8)
    got: Counter[bytes] = Counter()
    interruptions = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with blocking.Consumer(nameservers=address, group="interrupted") as consumer:
            consumer.subscribe("Interrupted", start="first")
            while len(got) < COUNT or interruptions < 20:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.004))
                if len(got) < COUNT and interruptions % 10 == 9:  # whatever the machine's pace
                    signal.setitimer(signal.ITIMER_REAL, 0)
                try:
                    got.update(message.body for message in consumer.poll())
                except Interrupted:
                    interruptions += 1
                else:
                    interruptions += interruptions % 10 == 9
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(got.values()) == {1}


async def iterate_and_commit(address: str) -> None:
    await fill(address, "Iterated", 1, 20)
    async with aio.Consumer(nameservers=address, group="iterated") as consumer:
        await consumer.subscribe("Iterated", start="first")
        (queue,) = consumer.positions()
        messages = []
        async for message in consumer:
            messages.append(message)
            if len(messages) == 10:
                break
        assert {message.queue for message in messages} == {queue}
        assert consumer.position(queue) == 10

        async def read_and_commit() -> None:
            """Another task: what this one has in hand is not its to commit."""
            await anext(consumer)
            await consumer.commit()

        await asyncio.create_task(read_and_commit())
        assert await consumer.committed(queue) == 9
        with pytest.raises(TypeError, match="not 7"):
            consumer.finish(7)  # type: ignore[arg-type]
        consumer.finish(messages[-1])
        await consumer.commit()
        assert await consumer.committed(queue) == 11
        consumer.seek(queue, 3)
        assert (await anext(consumer)).queue_offset == 3
        assert (await consumer.offsets.max_offset(queue)) == 20


async def limited_calls(address: str) -> None:
    """`wait_for` makes a task of its own for each call on Python 3.11: who calls is who polls."""
    await fill(address, "Limited", 2, 100)
    got: Counter[bytes] = Counter()
    async with aio.Consumer(nameservers=address, group="limited", ordered=True) as consumer:
        await consumer.subscribe("Limited", start="first")
        while len(got) < 100:
            got[(await asyncio.wait_for(anext(consumer), 60)).body] += 1
        await asyncio.wait_for(consumer.commit(), 60)
        ends = [await consumer.committed(queue) or 0 for queue in consumer.positions()]
    assert sum(ends) == 100
    assert set(got.values()) == {1}


async def stopped_listener(address: str) -> None:
    """Check that messages handled before the client is stopped do not come again."""
    await fill(address, "Stopped", 2, COUNT)
    got: Counter[bytes] = Counter()
    while len(got) < COUNT:
        enough = asyncio.Event()
        consumer = aio.Consumer(nameservers=address, group="stopped")

        async def handle(message: aio.Received) -> None:
            await asyncio.sleep(0.001)
            got[message.body] += 1
            if got.total() % 100 == 0:
                enough.set()  # noqa: B023 - of the consumer that calls

        await consumer.start()
        await consumer.subscribe("Stopped", start="first")
        listening = asyncio.create_task(consumer.listen(handle, workers=5))
        await enough.wait()
        await consumer.stop()
        await listening
    assert set(got.values()) == {1}


async def listen(address: str) -> None:
    await fill(address, "Heard", 2, 40)
    loop = asyncio.get_running_loop()
    counts: Counter[bytes] = Counter()
    cancelled: list[bytes] = []
    consumer = aio.Consumer(nameservers=address, group="heard")

    async def handle(message: aio.Received) -> None:
        assert asyncio.get_running_loop() is loop
        first_time = not message.reconsume_times
        if message.body == b"7" and first_time:
            raise ValueError("not yet")
        if message.body == b"8" and first_time:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                return  # without having handled it
        counts[message.body] += 1
        if len(counts) == 40:
            consumer.stop_listening()

    await consumer.start()
    try:
        await consumer.subscribe("Heard", start="first")
        # A time in which messages that are not stuck are handled on any machine.
        await consumer.listen(handle, workers=4, timeout_s=5)
        assert set(counts.values()) == {1}
        assert cancelled == [b"8"]
        endless = asyncio.create_task(consumer.listen(handle))
        await asyncio.sleep(0)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
    finally:
        await consumer.stop()
        await consumer.stop()


async def traced(address: str) -> None:
    """A request, what it sends, and what handles that elsewhere, are one trace."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = OpenTelemetry(provider)
    span_ids: list[int] = []
    async with aio.Admin(nameservers=address) as admin:
        await admin.create_topic("Traced", queues=1)
    async with (
        aio.Producer(nameservers=address, tracing=tracing) as producer,
        aio.Consumer(nameservers=address, group="traced", tracing=tracing) as consumer,
    ):
        with provider.get_tracer("test").start_as_current_span("request") as request:
            sent = await producer.send(aio.Message("Traced", b"x", tag="A", keys=["k"]))
            await producer.send_batch([aio.Message("Traced", b"y"), aio.Message("Traced", b"z")])
        nowhere = rocketbed.MessageQueue(topic="Traced", broker_name="nobody", queue_id=0)
        refused = await producer.send(aio.Message("Traced", b"never"), queue=nowhere, timeout_s=0.2)
        assert isinstance(refused, aio.Refused)
        await consumer.subscribe("Traced", start="first")

        async def handle(message: aio.Received) -> None:
            span_ids.append(get_current_span().get_span_context().span_id)
            if message.body == b"x" and not message.reconsume_times:
                raise ValueError("once")
            if len(span_ids) == 4:
                consumer.stop_listening()

        await consumer.listen(handle, workers=1)
    spans = exporter.get_finished_spans()
    names = [span.name for span in spans]
    topics = [*["process Traced"] * 3, "process %RETRY%traced"]
    assert names == ["send Traced", "send Traced", "request", "send Traced", *topics]
    single, batch, _, failed, *handled = spans
    trace = request.get_span_context().trace_id
    assert single.parent is not None
    assert single.parent.span_id == request.get_span_context().span_id
    assert [span.context.span_id for span in handled] == span_ids
    parents = [span.parent.span_id if span.parent else None for span in handled]
    assert parents == [one.context.span_id for one in (single, batch, batch, single)]
    assert {span.context.trace_id for span in handled} == {trace}
    assert failed.status.status_code is handled[0].status.status_code is StatusCode.ERROR
    assert handled[0].attributes is not None
    assert handled[0].attributes["error.type"] == "ValueError"
    assert single.attributes is not None
    assert dict(single.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "Traced",
        "messaging.destination.partition.id": "0",
        "messaging.message.body.size": 1,
        "messaging.message.id": sent.message_id,
        "messaging.rocketmq.message.keys": ("k",),
        "messaging.rocketmq.message.tag": "A",
        "messaging.rocketmq.message.type": "normal",
    }
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2


async def calls_that_end(address: str) -> None:
    producer = aio.Producer(nameservers=address)
    with pytest.raises(ClientError, match="between start and stop"):
        await producer.queues("Iterated")
    await producer.start()
    with pytest.raises(ClientError, match="entered only once"):
        await producer.start()
    with pytest.raises(BadMessage):
        await producer.send(aio.Message("Iterated", b""))

    def elsewhere() -> None:
        async def use() -> None:
            with pytest.raises(ClientError, match="another event loop"):
                await producer.queues("Iterated")

        asyncio.run(use())

        async def on_trio() -> None:
            with pytest.raises(ClientError, match="import from rocketbed for trio"):
                await producer.queues("Iterated")

        trio.run(on_trio)

    await asyncio.to_thread(elsewhere)
    with pytest.raises(ClientError, match=r"import it from rocketbed\.aio"):
        await rocketbed.Producer(nameservers=address).__aenter__()
    consumer = aio.Consumer(nameservers=address, group="ends")
    await consumer.start()
    await consumer.subscribe("Iterated", start="last")
    waiting = asyncio.create_task(anext_of(consumer))
    await asyncio.sleep(0.05)
    await consumer.stop()
    with pytest.raises(ClientError, match="closed"):
        await waiting
    await producer.stop()
    with pytest.raises(ClientError, match="the client is closed"):
        await producer.queues("Iterated")


async def anext_of(consumer: aio.Consumer) -> aio.Received:
    return await anext(consumer)
