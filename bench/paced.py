"""Sends with their time in the body: `python -m bench.paced PORT TOPIC RATE SECONDS [LEVEL]`.

RATE messages a second of 1 KiB (0: as fast as they are answered), evenly; each begins with the time
on the machine's monotonic clock (ns); with LEVEL they are delayed. Prints a line of JSON: the
numbers of accepted and refused ones, and seconds.
"""

import json
import socket
import sys
import time

from bench.frames import BODY_SIZE, QUEUES, frame
from bench.load import Answers

STAMP = 20
"""Digits of the time."""
STEP_S = 0.001
AT_ONCE = 64
"""Requests in flight without a rate."""
FRAMES = 1024


def _head(topic: str, number: int, level: int) -> bytes:
    """Return a frame without its body."""
    properties = f"UNIQ_KEY\x017F000001000A18B4AAC2{number:012X}\x02WAIT\x01true"
    if level:
        properties += f"\x02DELAY\x01{level}"
    fields = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return frame(310, fields, number, bytes(BODY_SIZE))[:-BODY_SIZE]


def paced_load(
    port: int, topic: str, rate: float, seconds: float, level: int = 0
) -> dict[str, float]:
    """Send for some seconds, then wait for the answers."""
    heads = [_head(topic, number, level) for number in range(FRAMES)]
    padding = b"x" * (BODY_SIZE - STAMP)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(connection)
        sent = answered = 0
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            target = int(now * rate) if rate else answered + AT_ONCE
            stamp = b"%020d" % time.monotonic_ns() + padding
            batch = [heads[number % FRAMES] + stamp for number in range(sent, target)]
            if batch:
                connection.sendall(b"".join(batch))
                sent += len(batch)
            if sent - answered >= (2 * rate * STEP_S + 1 if rate else AT_ONCE // 2):
                answered += answers.receive()
            if rate:
                time.sleep(STEP_S)
        while answered < sent:
            answered += answers.receive()
        took = time.perf_counter() - began
    return {"accepted": sent - answers.refused, "refused": answers.refused, "seconds": took}


if __name__ == "__main__":
    _, to, about, how_many, how_long, *rest_of_it = sys.argv
    print(
        json.dumps(
            paced_load(int(to), about, float(how_many), float(how_long), *map(int, rest_of_it))
        )
    )
