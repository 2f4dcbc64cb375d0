"""Our client by its three interfaces: trio, asyncio, threads; one program each, one broker.

`python -m bench.clients FACE NAMESERVERS` is such a program; it prints its figures as JSON.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import trio

import rocketbed
from bench.asker import Asker
from bench.consumers import topic_fields
from bench.frames import QUEUES, frame
from bench.processes import Bench, Broker, wait_routed, wait_serving
from rocketbed import Message, aio, blocking

Row = tuple[str, float, str]
TOPIC = "Bench"
COUNT = 10_000
AT_ONCE = 64
MANY = 512
LINGER_S = 0.005
WARM = 500
MESSAGE = Message(TOPIC, b"x" * 1024)
FACES = ("trio", "aio", "blocking")


def client_faces(bench: Bench, start: Callable[..., Broker]) -> Iterator[Row]:
    """Yield the rates of sends and reads of 1 KiB, async flush; the nameserver is ours."""
    names = bench.nameserver()
    at = f"127.0.0.1:{names.port}"
    broker = start(f"namesrvAddr={at}", "autoCreateSubscriptionGroup=true")
    wait_serving(broker)
    with closing(Asker(broker.port)) as asker:
        asker.ask_all([frame(17, topic_fields(TOPIC, QUEUES), 0)], 1)
    wait_routed(names, {TOPIC: QUEUES})
    for face in FACES:
        command = [sys.executable, "-m", "bench.clients", face, at]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        for name, (value, unit) in json.loads(done.stdout).items():
            yield f"{name}, {face}", value, unit
    broker.kill()
    names.kill()


Figures = dict[str, tuple[float, str]]


async def _from_loop(
    producer: Any,
    lingering: Any,
    consumer: Any,
    together: Callable[[list[Callable[[], Awaitable[None]]]], Any],
) -> Figures:
    """Run the same program for trio and asyncio."""
    figures: Figures = {}
    for _ in range(WARM):
        await producer.send(MESSAGE)
    times = []
    for _ in range(COUNT // 5):
        began = time.perf_counter()
        await producer.send(MESSAGE)
        times.append(time.perf_counter() - began)
    _add_alone(figures, times)
    for sender, at_once in ((producer, AT_ONCE), (producer, MANY), (lingering, MANY)):
        numbers = iter(range(COUNT))

        async def send(sender: Any = sender, numbers: Iterator[int] = numbers) -> None:
            for _ in numbers:
                (await sender.send(MESSAGE)).raise_for_outcome()

        began = time.perf_counter()
        await together([send] * at_once)
        how = f", linger {1e3 * LINGER_S:g} ms" if sender is lingering else ""
        name = f"client, sends, {at_once} at once{how}"
        figures[name] = COUNT / (time.perf_counter() - began), "/s"
    await consumer.subscribe(TOPIC, start="first")
    began, read = time.perf_counter(), 0
    while read < COUNT:
        read += len(await consumer.poll())
    figures["client, read by poll"] = read / (time.perf_counter() - began), "messages/s"
    for queue in consumer.positions():
        consumer.seek(queue, 0)
    began, read = time.perf_counter(), 0
    async for _ in consumer:
        read += 1
        if read == COUNT // 2:
            break
    figures["client, read by async for"] = read / (time.perf_counter() - began), "messages/s"
    return figures


def _add_alone(figures: Figures, times: list[float]) -> None:
    times.sort()
    figures["client, a send alone, p50"] = 1e3 * times[len(times) // 2], "ms"
    figures["client, a send alone, p99"] = 1e3 * times[len(times) * 99 // 100], "ms"


async def _on_trio(nameservers: str) -> Figures:
    async def together(functions: list[Callable[[], Awaitable[None]]]) -> None:
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)

    async with (
        rocketbed.Producer(nameservers=nameservers) as producer,
        rocketbed.Producer(nameservers=nameservers, linger_s=LINGER_S) as lingering,
        rocketbed.Consumer(nameservers=nameservers, group="bench_trio") as consumer,
    ):
        return await _from_loop(producer, lingering, consumer, together)


async def _on_asyncio(nameservers: str) -> Figures:
    async def together(functions: list[Callable[[], Awaitable[None]]]) -> None:
        await asyncio.gather(*(function() for function in functions))

    async with (
        aio.Producer(nameservers=nameservers) as producer,
        aio.Producer(nameservers=nameservers, linger_s=LINGER_S) as lingering,
        aio.Consumer(nameservers=nameservers, group="bench_aio") as consumer,
    ):
        return await _from_loop(producer, lingering, consumer, together)


def _plain(nameservers: str) -> Figures:
    figures: Figures = {}
    with (
        blocking.Producer(nameservers=nameservers) as producer,
        blocking.Consumer(nameservers=nameservers, group="bench_blocking") as consumer,
    ):
        for _ in range(WARM):
            producer.send(MESSAGE)
        times = []
        for _ in range(COUNT // 5):
            began = time.perf_counter()
            producer.send(MESSAGE)
            times.append(time.perf_counter() - began)
        _add_alone(figures, times)
        numbers = iter(range(COUNT))
        lock = threading.Lock()

        def send() -> None:
            while True:
                with lock:
                    if next(numbers, None) is None:
                        return
                producer.send(MESSAGE).raise_for_outcome()

        threads = [threading.Thread(target=send) for _ in range(AT_ONCE)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        figures[f"client, sends, {AT_ONCE} at once"] = COUNT / (time.perf_counter() - began), "/s"
        consumer.subscribe(TOPIC, start="first")
        began, read = time.perf_counter(), 0
        while read < COUNT:
            read += len(consumer.poll())
        figures["client, read by poll"] = read / (time.perf_counter() - began), "messages/s"
    return figures


def main() -> None:
    """Run one interface."""
    face, nameservers = sys.argv[1:]
    if face == "trio":
        figures = trio.run(_on_trio, nameservers)
    elif face == "aio":
        figures = asyncio.run(_on_asyncio(nameservers))
    else:
        figures = _plain(nameservers)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
