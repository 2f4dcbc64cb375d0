"""Latency of single requests while a broker is busy: `python -m bench.ping PORT KIND S`.

One request every 2 ms on a separate connection; KIND is `send`, `commit` or `route`. Prints a line
of JSON: milliseconds p50, p99, longest, and the number of refusals.
"""

import itertools
import json
import socket
import sys
import time
from collections.abc import Iterator

from bench.crowd import group_name, topic_name
from bench.frames import frame, send_frames

PAUSE_S = 0.002
TOPICS = 1000
GROUPS = 200


def _frames(kind: str) -> Iterator[bytes]:
    if kind == "send":
        yield from itertools.cycle(send_frames(512))
    for number in itertools.count():
        topic = topic_name(number % TOPICS)
        if kind == "route":
            yield frame(105, {"topic": topic}, number)
            continue
        fields = {
            "consumerGroup": group_name(number % GROUPS), "topic": topic, "queueId": "0",
            "commitOffset": str(number),
        }  # fmt: skip
        yield frame(15, fields, number)


def ping(port: int, kind: str, seconds: float) -> dict[str, float]:
    """Send requests for some seconds."""
    times, refused = [], 0
    frames = _frames(kind)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            connection.sendall(next(frames))
            answer = connection.recv(65_536)
            while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
                answer += connection.recv(65_536)
            times.append(1e3 * (time.perf_counter() - began))
            refused += b'"code":0,' not in answer[:120]
            time.sleep(PAUSE_S)
    times.sort()
    return {
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
        "longest": times[-1],
        "refused": refused,
    }


if __name__ == "__main__":
    print(json.dumps(ping(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))))
