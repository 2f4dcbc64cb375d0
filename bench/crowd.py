"""A crowd of consumers on one broker: idle ones, slow ones, and some that never read.

`python -m bench.crowd PORT` takes a command a line and answers each with a line of JSON:

join COUNT GROUPS TOPICS: open connections; each is a member of a group and follows 5 topics
beat COUNT: heartbeats, one after the other on each connection in turn
slow COUNT RATE SECONDS: consumers that read RATE bytes a second altogether
stuck COUNT PULLS: consumers that send PULLS pulls and read nothing
leave: close the stuck ones
restless RATE SECONDS: a member that connects, sends a heartbeat and disconnects, RATE times a
second
"""

import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from socket import SO_LINGER, SOL_SOCKET

import trio

from bench.frames import QUEUES, frame, pull_frame
from rocketbed.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData

FOLLOWED = 5
"""Topics of a group."""
HEARTBEAT_S = 30.0
PIECE = 64 * 1024
"""Bytes that a slow reader takes at once, and its receive buffer."""


def topic_name(number: int) -> str:
    return f"crowd-{number:04}"


def group_name(number: int) -> str:
    return f"crowd-group-{number:03}"


def _heartbeat(member: int, groups: int, topics: int) -> bytes:
    group = member % groups
    followed = [topic_name((group * FOLLOWED + step) % topics) for step in range(FOLLOWED)]
    body = HeartbeatData(
        client_id=f"10.0.{member // 250}.{member % 250}@{member}",
        consumer_data_set=[
            ConsumerData(
                group_name=group_name(group),
                subscription_data_set=[SubscriptionData(topic=name) for name in followed],
            )
        ],
    )
    return frame(34, {}, member, body.encode())


class Crowd:
    """State of the commands."""

    def __init__(self, port: int, nursery: trio.Nursery) -> None:
        self._port = port
        self._nursery = nursery
        self._members: list[tuple[trio.SocketStream, bytes]] = []
        self._answered = 0
        self._stuck: list[trio.SocketStream] = []

    async def join(self, count: int, groups: int, topics: int) -> dict[str, float]:
        """Open connections with a heartbeat each; they continue for ever."""
        began = time.perf_counter()
        for member in range(count):
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            heartbeat = _heartbeat(member, groups, topics)
            self._members.append((stream, heartbeat))
            self._nursery.start_soon(self._listen, stream)
            await stream.send_all(heartbeat)
        self._nursery.start_soon(self._beat_forever)
        return {"seconds": time.perf_counter() - began}

    async def _listen(self, stream: trio.SocketStream) -> None:
        while await stream.receive_some(65_536):
            self._answered += 1

    async def _beat_forever(self) -> None:
        while True:
            for stream, heartbeat in self._members:
                await trio.sleep(HEARTBEAT_S / len(self._members))
                await stream.send_all(heartbeat)

    async def beat(self, count: int) -> dict[str, float]:
        """Send heartbeats as fast as the broker answers, 16 in flight."""
        began, goal = time.perf_counter(), self._answered
        for number in range(count):
            stream, heartbeat = self._members[number % len(self._members)]
            await stream.send_all(heartbeat)
            goal += 1
            while self._answered < goal - 16:
                await trio.lowlevel.checkpoint()
        return {"seconds": time.perf_counter() - began}

    async def slow(self, count: int, rate: float, seconds: float) -> dict[str, float]:
        """Pull, two requests of each queue in flight, and read in small pieces; return bytes and
        seconds."""
        bytes_read = [0] * count
        began = time.perf_counter()
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(self._read_slowly, number, rate / count, bytes_read)
        return {"bytes": sum(bytes_read), "seconds": time.perf_counter() - began}

    async def _read_slowly(self, number: int, rate: float, bytes_read: list[int]) -> None:
        await trio.sleep(number * PIECE / rate / len(bytes_read))  # staggered
        async with await self._small_stream() as stream:
            for queue in range(QUEUES):
                await stream.send_all(pull_frame(queue, 0, queue) * 2)
            began, data, offset = trio.current_time(), b"", 0
            while True:
                data += await stream.receive_some(PIECE)
                while len(data) >= 4:
                    after = 4 + int.from_bytes(data[:4], "big")
                    if after > len(data):
                        break
                    data = data[after:]
                    bytes_read[number] += after
                    offset = (offset + 4) % 100_000
                    queue = offset // 4 % QUEUES
                    await stream.send_all(pull_frame(queue, offset, queue))
                await trio.sleep_until(began + (bytes_read[number] + len(data)) / rate)

    async def _small_stream(self) -> trio.SocketStream:
        socket = trio.socket.socket()
        socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, PIECE)
        await socket.connect(("127.0.0.1", self._port))
        return trio.SocketStream(socket)

    async def stuck(self, count: int, pulls: int) -> dict[str, float]:
        """Behave as a consumer of thousands of queues whose machine hangs."""
        for _ in range(count):
            stream = await self._small_stream()
            self._stuck.append(stream)
            frames = b"".join(pull_frame(n % QUEUES, n, n) for n in range(pulls))
            with trio.move_on_after(1):  # a broker with enough requests takes no more
                await stream.send_all(frames)
        return {}

    async def restless(self, rate: float, seconds: float) -> dict[str, float]:
        """Connect with one client id again and again; each connection ends in order, by a reset, or
        in the middle of a frame in turn. Return the counts of answers and of connections."""
        heartbeat = _heartbeat(0, 1, FOLLOWED)
        began, answered, connections = trio.current_time(), 0, 0
        while trio.current_time() < began + seconds:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            async with stream:
                await stream.send_all(heartbeat)
                with trio.move_on_after(5):
                    answered += bool(await stream.receive_some(4096))
                if connections % 3 == 1:
                    stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                elif connections % 3 == 2:
                    await stream.send_all(heartbeat[: len(heartbeat) // 2])
            connections += 1
            await trio.sleep_until(began + connections / rate)
        return {"answered": answered, "came": connections, "seconds": trio.current_time() - began}

    async def leave(self) -> dict[str, float]:
        """Close the stuck connections."""
        for stream in self._stuck:
            await trio.aclose_forcefully(stream)
        self._stuck.clear()
        return {}


async def _serve(port: int) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Crowd(port, nursery)
        commands: dict[str, Callable[..., Awaitable[dict[str, float]]]] = {
            "join": crowd.join,
            "beat": crowd.beat,
            "slow": crowd.slow,
            "stuck": crowd.stuck,
            "leave": crowd.leave,
            "restless": crowd.restless,
        }
        read_line = partial(trio.to_thread.run_sync, sys.stdin.readline, abandon_on_cancel=True)
        while line := await read_line():
            word, *numbers = line.split()
            print(json.dumps(await commands[word](*map(int, numbers))), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]))
