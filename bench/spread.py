"""Cost of a message with many topics, or many connections.

The generator is `python -m bench.spread PORT TOPICS CONNECTIONS IN_FLIGHT SECONDS`: one process,
sends of 1 KiB to all queues of all topics in turn, with IN_FLIGHT requests in flight on each
connection. Prints one JSON line as bench/load.py does.
"""

import json
import selectors
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing

from bench.asker import Asker
from bench.consumers import topic_fields
from bench.frames import QUEUES, frame, send_frames
from bench.load import Answers, connect
from bench.processes import Bench, load, wait_serving

Row = tuple[str, float, str]
TOPICS = (1, 10, 100, 1000)
CONNECTIONS = (4, 16, 100)
IN_FLIGHT = 64
ROUNDS = 5
GENERATOR = "bench.spread"
WARM_S = 6.0
"""Until each queue has its file."""
FRAMES = 16_000
"""Twice the number of queues: each is sent to in every round."""


def spread(bench: Bench, seconds: float, *settings: str) -> Iterator[Row]:
    """Yield rates and CPU by topics, by connections, and by connections with one request each."""
    broker = bench.node(*settings)
    wait_serving(broker)
    with closing(Asker(broker.port)) as asker:
        topic_requests = [frame(17, topic_fields(_topic(n), QUEUES), n) for n in range(max(TOPICS))]
        asker.ask_all(topic_requests, 1)
    plans = {f"{count} topics of {QUEUES} queues": f"{count} 1 {IN_FLIGHT}" for count in TOPICS}
    for count in CONNECTIONS:
        each = -(-IN_FLIGHT // count)
        plans[f"{each} in flight on each of {count} connections"] = f"1 {count} {each}"
    plans["the same to 100 topics"] = "100 100 1"
    results: dict[str, list[dict[str, float]]] = {name: [] for name in plans}
    load(broker, f"{max(TOPICS)} 1 {IN_FLIGHT}", max(seconds, WARM_S), GENERATOR)
    for _ in range(ROUNDS):
        for name, plan in plans.items():
            results[name].append(load(broker, plan, seconds, GENERATOR))
    for name, loads in results.items():
        yield f"sends, {name}", statistics.median(result["rate"] for result in loads), "messages/s"
        yield "  CPU", statistics.median(result["cpu_us"] for result in loads), "us/message"
        yield "  CPU, least of the rounds", min(result["cpu_us"] for result in loads), "us/message"
    yield "  resident memory", broker.resident_bytes / (1 << 20), "MiB"
    broker.kill()


def _topic(number: int) -> str:
    return f"Spread{number}"


def generate(
    port: int, topics: int, count: int, in_flight: int, seconds: float
) -> dict[str, float]:
    """Send for some seconds; each connection gets as many new requests as it had answers."""
    names = [_topic(number) for number in range(topics)]
    frames = send_frames(FRAMES, topics=names)
    connections = [connect(port) for _ in range(count)]
    accepted = at = refused = 0
    with selectors.DefaultSelector() as selector:

        def send(connection: int, number: int) -> None:
            nonlocal at
            data = b"".join(frames[(at + i) % FRAMES] for i in range(number))
            at = (at + number) % FRAMES
            connections[connection].sendall(data)

        answers = [Answers(connection) for connection in connections]
        for index, connection in enumerate(connections):
            selector.register(connection, selectors.EVENT_READ, index)
        began = time.perf_counter()
        for index in range(count):
            send(index, in_flight)
        while time.perf_counter() - began < seconds:
            for key, _ in selector.select():
                done = answers[key.data].receive()
                accepted += done
                send(key.data, done)
        elapsed = time.perf_counter() - began
    refused = sum(counter.refused for counter in answers)
    return {"messages": accepted - refused, "seconds": elapsed, "refused": refused}


def main() -> None:
    """Run one load."""
    port, topics, count, in_flight = map(int, sys.argv[1:5])
    print(json.dumps(generate(port, topics, count, in_flight, float(sys.argv[5]))))


if __name__ == "__main__":
    main()
