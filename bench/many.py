"""Many of everything at once: topics, queues, groups, offsets, connections, and slow readers.

A separate nameserver and node, and a crowd of clients (crowd.py). Measured is its effect on clients
that are not part of it.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

from bench.asker import Asker
from bench.consumers import topic_fields
from bench.crowd import FOLLOWED, group_name, topic_name
from bench.frames import QUEUES, frame
from bench.ping import GROUPS, TOPICS
from bench.processes import Bench, Broker, free_port, load, wait_serving
from rocketbed.wire.bodies import SubscriptionGroupConfig

Row = tuple[str, float, str]
MIB = 1 << 20
CONNECTIONS = 2000
SLOW = 50
SLOW_BYTES_PER_S = 50_000_000
STUCK = 20
RESTLESS_PER_S = 100
SECONDS = 15.0
BEATS = 20_000


class Crowd:
    """The process of crowd.py."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.crowd", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: object) -> None:
        """Send a command without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def done(self) -> dict[str, float]:
        """Wait for the answer to a command."""
        assert self._process.stdout is not None
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def many(bench: Bench) -> Iterator[Row]:
    """Yield all rows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = bench.nameserver()
    settings = (f"namesrvAddr=127.0.0.1:{names.port}", "mappedFileSizeCommitLog=1073741824")
    port = free_port()
    broker = bench.node(*settings, port=port)
    wait_serving(broker)
    yield "many: resident memory before", broker.resident_bytes / MIB, "MiB"
    yield from _fill(broker)
    yield from _pings(broker, names, "alone")
    yield "  resident memory, broker", broker.resident_bytes / MIB, "MiB"
    yield "  resident memory, nameserver", names.resident_bytes / MIB, "MiB"
    yield "many: clean stop", broker.stop(), "s"
    bench.running.remove(broker)
    _write_offsets(broker)
    began = time.perf_counter()
    broker = bench.node(*settings, port=port, root=broker.root)
    wait_serving(broker, 300)
    yield "many: start to open port", time.perf_counter() - began, "s"
    yield "  resident memory", broker.resident_bytes / MIB, "MiB"
    crowd = Crowd(port)
    with closing(crowd):
        yield from _crowd(broker, names, crowd)
    broker.kill()
    bench.running.remove(broker)
    began = time.perf_counter()
    broker = bench.node(*settings, port=port, root=broker.root)
    wait_serving(broker, 300)
    yield "many: start after kill -9 to open port", time.perf_counter() - began, "s"
    broker.kill()
    names.kill()


def _fill(broker: Broker) -> Iterator[Row]:
    """Create topics, a message in each queue, and enough in one topic to pull from."""
    with closing(Asker(broker.port)) as asker:
        groups = [frame(200, {}, n, _group(n)) for n in range(GROUPS)]
        asker.ask_all(groups, 1)
        topics = [
            frame(17, topic_fields(topic_name(number), QUEUES), number) for number in range(TOPICS)
        ]
        yield f"many: {TOPICS} topics made one by one", asker.ask_all(topics, 1), "s"
        sends = [
            frame(310, _send(n // QUEUES, n % QUEUES), n, b"x") for n in range(TOPICS * QUEUES)
        ]
        yield f"many: first sends to {len(sends)} queues", asker.ask_all(sends, 64), "s"
    load(broker, "64", 3.0)
    time.sleep(3)


def _group(number: int) -> bytes:
    return SubscriptionGroupConfig(group_name=group_name(number)).encode()


def _send(topic: int, queue: int) -> dict[str, str]:
    return {
        "a": "bench", "b": topic_name(topic), "c": "TBW102", "d": "8", "e": str(queue), "f": "0",
        "g": "1700000000000", "h": "0", "i": "WAIT\x01true", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def _write_offsets(broker: Broker) -> None:
    """Write offsets as if each group had read each queue."""
    queues = {str(queue): 1 for queue in range(QUEUES)}
    table = {
        f"{topic_name(topic)}@{group_name(group)}": queues
        for topic in range(TOPICS)
        for group in range(GROUPS)
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    text = json.dumps({"dataVersion": version, "offsetTable": table})
    (broker.root / "config" / "consumerOffset.json").write_text(text)


def _crowd(broker: Broker, names: Broker, crowd: Crowd) -> Iterator[Row]:
    crowd.tell("join", CONNECTIONS, GROUPS, TOPICS)
    yield f"many: {CONNECTIONS} members of {GROUPS} groups join", crowd.done()["seconds"], "s"
    before = broker.cpu_seconds
    crowd.tell("beat", BEATS)
    crowd.done()
    cost = 1e6 * (broker.cpu_seconds - before) / BEATS
    yield f"  CPU of a heartbeat ({FOLLOWED} topics)", cost, "us"
    yield "  resident memory", broker.resident_bytes / MIB, "MiB"
    yield from _pings(broker, names, "beside the idle crowd")
    yield from _restless(broker, names, crowd)
    crowd.tell("slow", SLOW, SLOW_BYTES_PER_S, int(SECONDS) + 3)
    time.sleep(1)  # the first pulls come all at once
    yield from _pings(broker, names, f"beside {SLOW} slow readers too")
    yield "  resident memory", broker.resident_bytes / MIB, "MiB"
    slow = crowd.done()
    yield "  they read", slow["bytes"] / slow["seconds"] / 1e6, "MB/s"
    crowd.tell("stuck", STUCK, TOPICS * QUEUES)
    crowd.done()
    yield from _pings(broker, names, f"beside {STUCK} that read nothing")
    yield "  resident memory", broker.resident_bytes / MIB, "MiB"
    crowd.tell("leave")
    crowd.done()
    time.sleep(1)
    yield "  resident memory when they have gone", broker.resident_bytes / MIB, "MiB"


def _restless(broker: Broker, names: Broker, crowd: Crowd) -> Iterator[Row]:
    """Yield the effect of a client id of a group of eleven that reconnects all the time."""
    before = broker.cpu_seconds
    crowd.tell("restless", RESTLESS_PER_S, int(SECONDS) + 3)
    yield from _pings(broker, names, f"beside one that connects {RESTLESS_PER_S} times a second")
    done = crowd.done()
    yield "  it came", done["came"] / done["seconds"], "/s"
    yield "  and was not answered", done["came"] - done["answered"], "times"
    yield "  CPU of the broker meanwhile", broker.cpu_seconds - before, "s"
    yield "  resident memory", broker.resident_bytes / MIB, "MiB"


def _pings(broker: Broker, names: Broker, when: str) -> Iterator[Row]:
    """Yield latencies of sends and commits to the broker and requests to the nameserver,
    together."""
    running = {
        kind: subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.ping", str(port), kind, str(SECONDS)],
            stdout=subprocess.PIPE,
        )
        for kind, port in (("send", broker.port), ("commit", broker.port), ("route", names.port))
    }
    for kind, process in running.items():
        result = json.loads(process.communicate()[0])
        for percentile in ("p50", "p99", "longest"):
            yield f"many: {kind} {when}, {percentile}", result[percentile], "ms"
        if result["refused"]:
            yield "  refused", result["refused"], "requests"
