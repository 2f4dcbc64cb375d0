"""Our consumer under measurement: `python -m bench.readers KIND NAMESERVERS TOPIC NUMBER`.

listen, poll: latencies of messages of paced.py, until none came for a second
first: from a consumer's start to its first message, of existing ones
drain: reads NUMBER existing messages, by a listener
members: NUMBER members share 32 queues; the last joins late, and leaves
send: NUMBER messages, 64 tasks

Prints `ready` when a load may begin, then a line of JSON: names, each with value and unit.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

import rocketbed
from bench.paced import STAMP
from rocketbed import Consumer

Figures = dict[str, tuple[float, str]]
SILENT_S = 3.0
"""Silence after which everything counts as received."""
LOOK_S = 0.001
WORKERS = 20
AT_ONCE = 64


class Latencies:
    """Latencies of messages that contain their send times."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self.began = self.ended = 0

    def take(self, body: bytes) -> None:
        """Record a message."""
        self.ended = time.monotonic_ns()
        self.began = self.began or self.ended
        self._times.append(self.ended - int(body[:STAMP]))

    async def silence(self) -> None:
        """Wait until all have come."""
        while not self.ended or time.monotonic_ns() - self.ended < 1e9 * SILENT_S:
            await trio.sleep(0.1)

    def figures(self) -> Figures:
        """Return the figures, in milliseconds."""
        times = sorted(self._times)
        count = len(times)
        seconds = max((self.ended - self.began) / 1e9, 0.001)
        return {
            "p50": (times[count // 2] / 1e6, "ms"),
            "p99": (times[count * 99 // 100] / 1e6, "ms"),
            "least": (times[0] / 1e6, "ms"),
            "longest": (times[-1] / 1e6, "ms"),
            "received": (count / seconds, "messages/s"),
            "count": (count, "messages"),
        }


async def _assigned(consumer: Consumer, topic: str, count: int) -> None:
    while sum(queue.topic == topic for queue in consumer.positions()) < count:
        await trio.sleep(LOOK_S)


async def latency(kind: str, nameservers: str, topic: str, queues: int) -> Figures:
    """Measure from the send to the function, or to the polling task."""
    latencies = Latencies()
    async with Consumer(nameservers=nameservers, group=f"bench-{kind}-{os.getpid()}") as consumer:
        await consumer.subscribe(topic)
        await _assigned(consumer, topic, queues)

        async def handle(message: rocketbed.Received) -> None:
            latencies.take(message.body)

        async def poll() -> None:
            while True:
                for message in await consumer.poll():
                    latencies.take(message.body)

        async def listen() -> None:
            await consumer.listen(handle, workers=WORKERS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll if kind == "poll" else listen)
            await trio.sleep(0.5)
            print("ready", flush=True)
            await latencies.silence()
            nursery.cancel_scope.cancel()
    return latencies.figures()


async def first(nameservers: str, topic: str, times: int) -> Figures:
    """Return the median of some starts, each of a new group."""
    took = []
    for number in range(times):
        began = time.perf_counter()
        group = f"bench-first-{number}"
        async with Consumer(nameservers=nameservers, group=group) as consumer:
            await consumer.subscribe(topic, start="first")
            while not await consumer.poll():
                pass
            took.append(time.perf_counter() - began)
    return {"median": (1e3 * sorted(took)[times // 2], "ms"), "longest": (1e3 * max(took), "ms")}


async def drain(nameservers: str, topic: str, count: int) -> Figures:
    """Read all existing messages, by a function."""
    read = 0
    done = trio.Event()

    async def handle(message: rocketbed.Received) -> None:
        nonlocal read
        read += 1
        if read == count:
            done.set()

    began = time.perf_counter()
    async with Consumer(nameservers=nameservers, group="bench-drain") as consumer:
        await consumer.subscribe(topic, start="first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: consumer.listen(handle, workers=WORKERS))
            await done.wait()
            took = time.perf_counter() - began
            nursery.cancel_scope.cancel()
    async with Consumer(nameservers=nameservers, group="bench-drain-poll") as consumer:
        began, read = time.perf_counter(), 0
        await consumer.subscribe(topic, start="first")
        while read < count:
            read += len(await consumer.poll())
        polled = time.perf_counter() - began
    return {"by listen": (count / took, "messages/s"), "by poll": (count / polled, "messages/s")}


async def send(nameservers: str, topic: str, count: int) -> Figures:
    """Send one message after the other in several tasks."""
    message = rocketbed.Message(topic, bytes(1024))
    async with rocketbed.Producer(nameservers=nameservers) as producer:
        numbers = iter(range(count))

        async def work() -> None:
            for _ in numbers:
                (await producer.send(message)).raise_for_outcome()

        await producer.send(message)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(work)
        return {f"{AT_ONCE} at once": (count / (time.perf_counter() - began), "/s")}


async def members(nameservers: str, topic: str, count: int, queues: int = 32) -> Figures:
    """Measure until each has its share of the queues, and no queue has two owners."""
    figures: Figures = {}
    group: dict[Consumer, None] = {}

    async def stay(goes: trio.Event) -> None:
        async with Consumer(nameservers=nameservers, group="bench-members") as consumer:
            group[consumer] = None
            await consumer.subscribe(topic, start="first")
            await goes.wait()
            del group[consumer]

    async def settled(size: int) -> float:
        """Return the milliseconds from now."""
        began = time.perf_counter()
        while True:
            owned = [[q for q in member.positions() if q.topic == topic] for member in group]
            owners = Counter(queue for owned_queues in owned for queue in owned_queues)
            is_whole = len(group) == size and owners.total() == len(owners) == queues
            if is_whole and max(map(len, owned)) - min(map(len, owned)) <= 1:
                return 1e3 * (time.perf_counter() - began)
            await trio.sleep(LOOK_S)

    never, goes = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(count - 1):
            nursery.start_soon(stay, never)
        figures[f"{count - 1} that come together"] = await settled(count - 1), "ms"
        nursery.start_soon(stay, goes)
        figures[f"member {count} comes"] = await settled(count), "ms"
        goes.set()
        figures[f"member {count} goes"] = await settled(count - 1), "ms"
        nursery.cancel_scope.cancel()
    return figures


def main() -> None:
    """Run one kind."""
    kind, nameservers, topic, number = sys.argv[1:]
    kinds: dict[str, Callable[..., Awaitable[Figures]]] = {
        "first": first, "drain": drain, "members": members, "send": send,
    }  # fmt: skip
    if kind in kinds:
        figures = trio.run(kinds[kind], nameservers, topic, int(number))
    else:
        figures = trio.run(latency, kind, nameservers, topic, int(number))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
