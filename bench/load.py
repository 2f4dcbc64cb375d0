"""The load generator: one process, one blocking socket, a fixed number of requests in flight.

python -m bench.load PORT IN_FLIGHT SECONDS: sends
python -m bench.load PORT pull SECONDS: pulls all queues from the start, again and again

Prints one JSON line: accepted messages, seconds, the number of refusals, and the processor time of
the generator itself.
"""

import json
import socket
import sys
import time

from bench.frames import QUEUES, pull_frame, send_frames

_OK = b'"code":0,'


def connect(port: int) -> socket.socket:
    """Return a connection that sends small data at once (TCP_NODELAY)."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Answers:
    """Counts whole frames in the data of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = b""
        self.refused = 0

    def receive(self) -> int:
        """Wait for some bytes; return how many answers they completed."""
        received = self._connection.recv(1 << 18)
        if not received:
            raise ConnectionError("the broker closed the connection")
        data = self._data + received if self._data else received
        position, count, end = 0, 0, len(data)
        while end - position >= 4:
            after = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if after > end:
                break
            self.refused += _OK not in data[position : position + 120]
            position = after
            count += 1
        self._data = data[position:]
        return count


def send_load(port: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Send for some seconds with `in_flight` requests open."""
    connection = connect(port)
    answers = Answers(connection)
    frames = send_frames(4096)
    # Joined beforehand: windows of `step` frames, so that a send is one call.
    step = max(1, in_flight // 2)
    windows = [b"".join(frames[i : i + step]) for i in range(0, len(frames) - step + 1, step)]
    sent = accepted = turn = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        while sent - accepted + step <= in_flight:
            connection.sendall(windows[turn % len(windows)])
            turn += 1
            sent += step
        accepted += answers.receive()
    while accepted < sent:
        accepted += answers.receive()
    elapsed = time.perf_counter() - began
    return {"messages": accepted - answers.refused, "seconds": elapsed, "refused": answers.refused}


def pull_load(port: int, seconds: float) -> dict[str, float]:
    """Pull 32 messages at a time from each queue in turn, two requests a queue in flight."""
    connection = connect(port)
    data = b""
    offsets = [0] * QUEUES
    for queue_id in range(QUEUES):
        connection.sendall(pull_frame(queue_id, 0, queue_id))
    messages = refused = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        data += connection.recv(1 << 20)
        position, requests = 0, []
        while len(data) - position >= 8:
            after = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if after > len(data):
                break
            head_length = int.from_bytes(data[position + 5 : position + 8], "big")
            header = json.loads(data[position + 8 : position + 8 + head_length])
            queue_id = header["opaque"]
            if header["code"] == 0:
                body_at = position + 8 + head_length
                record = int.from_bytes(data[body_at : body_at + 4], "big")
                messages += (after - body_at) // record
                offsets[queue_id] = int(header["extFields"]["nextBeginOffset"])
            else:
                refused += header["code"] not in (19, 21)
                offsets[queue_id] = 0
            requests.append(pull_frame(queue_id, offsets[queue_id], queue_id))
            position = after
        data = data[position:]
        if requests:
            connection.sendall(b"".join(requests))
    elapsed = time.perf_counter() - began
    return {"messages": messages, "seconds": elapsed, "refused": refused}


def main() -> None:
    """Run one load."""
    port, kind, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    began = time.process_time()
    result = pull_load(port, seconds) if kind == "pull" else send_load(port, int(kind), seconds)
    result["generator_s"] = time.process_time() - began
    print(json.dumps(result))


if __name__ == "__main__":
    main()
