"""Measures from a consumer's view: latency, rates, its start, delays, assignment of queues.

Our client (readers.py) and, with the jars, Java's (java/Clients.java) on a broker of either side;
the nameserver is ours.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from bench.asker import Asker
from bench.frames import QUEUES, frame
from bench.processes import Bench, Broker, wait_routed, wait_serving

Row = tuple[str, float, str]
TOPIC = "BenchConsumers"
OLD = "BenchOld"
MANY_QUEUES = "BenchMembers"
RATES = (1_000, 10_000)
SECONDS = 8.0
WARM_S = {"rocketbed": 1.0, "RocketMQ": 20.0}
"""Load before a measure begins: Java compiles while it runs."""
MEMBERS = 4
STARTS = 5
SENDS = 50_000
DELAY_LEVEL = 1
DELAY_MS = 1000.0
DELAY_RATES = (500, 5_000)


def consumers(
    bench: Bench,
    start: Callable[..., Broker],
    messages: int,
    seconds: float,
    jars: Path | None = None,
) -> Iterator[Row]:
    """Yield all rows; `messages` existing ones are read from a topic."""
    java = _java(jars) if jars is not None else None
    names = bench.nameserver()
    at = f"127.0.0.1:{names.port}"
    broker = start(f"namesrvAddr={at}", "autoCreateSubscriptionGroup=true")
    wait_serving(broker)
    _make_topics(broker, names)
    _paced(broker, TOPIC, 0, WARM_S[broker.name])
    yield from _latencies(broker, at, seconds)
    yield from _delays(broker, at, seconds)
    sent = 0.0
    while sent < messages:
        sent += _paced(broker, OLD, 0, 2.0)["accepted"]
    yield from _figures("consumer, start to first message", _read("first", at, OLD, STARTS))
    read = _read("drain", at, OLD, messages)
    yield from _figures(f"consumer, {messages:,} existing messages", read)
    read = _read("members", at, MANY_QUEUES, MEMBERS)
    yield from _figures("consumer, 32 queues shared out", read)
    if java is not None:
        yield from _latencies(broker, at, seconds, java)
        read = _read("first", at, OLD, STARTS, java)
        yield from _figures("Java's client, start to first message", read)
        read = _read("drain", at, OLD, messages, java)
        yield from _figures(f"Java's client, {messages:,} existing messages", read)
        yield from _figures("Java's client, sends", _read("send", at, TOPIC, SENDS, java))
        read = _read("send", at, TOPIC, SENDS)
        yield from _figures("client, sends", read)
    broker.kill()
    names.kill()


def _java(jars: Path) -> list[str]:
    program = Path(__file__).with_name("java") / "Clients.java"
    return ["java", "-Xmx1g", "-cp", f"{jars}/*", str(program)]


def _make_topics(broker: Broker, names: Broker) -> None:
    queues = {TOPIC: QUEUES, OLD: QUEUES, MANY_QUEUES: 32}
    queues |= {f"{TOPIC}-{rate}": QUEUES for rate in RATES}
    with closing(Asker(broker.port)) as asker:
        for topic, count in queues.items():
            asker.ask_all([frame(17, topic_fields(topic, count), 0)], 1)
    wait_routed(names, queues)


def topic_fields(topic: str, queues: int) -> dict[str, str]:
    """Return the fields of a request that creates a topic."""
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues),
        "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


def _latencies(
    broker: Broker, at: str, seconds: float, java: list[str] | None = None
) -> Iterator[Row]:
    for kind in ("listen",) if java else ("listen", "poll"):
        for rate in RATES:
            # A new group of Java's begins at the first message of a young topic, whatever its
            # setting.
            topic = f"{TOPIC}-{rate}" if java else TOPIC
            with _Reader(kind, at, topic, QUEUES, java) as reader:
                sent = _paced(broker, topic, rate, seconds)
                read = reader.figures()
            name = f"{_client_name(java)}, end to end by {kind}, {rate:,}/s"
            for percentile in ("p50", "p99"):
                yield f"{name}, {percentile}", *read[percentile]
            if read["received"][0] < 0.97 * rate:
                yield f"  sent, {name}", sent["accepted"] / sent["seconds"], "messages/s"
                yield f"  received, {name}", *read["received"]


def _client_name(java: list[str] | None) -> str:
    return "Java's client" if java else "consumer"


def _delays(broker: Broker, at: str, seconds: float) -> Iterator[Row]:
    """Yield the lateness, counted from the send plus one second, so it includes the way to the
    consumer."""
    for rate in (*DELAY_RATES, 0):
        with _Reader("poll", at, TOPIC, QUEUES) as reader:
            sent = _paced(broker, TOPIC, rate, seconds, DELAY_LEVEL)
            read = reader.figures()
        name = f"delayed, {rate:,}/s" if rate else "delayed, as fast as they are taken"
        yield f"{name}: accepted", sent["accepted"] / sent["seconds"], "messages/s"
        yield f"{name}: delivered", *read["received"]
        yield f"{name}: late, p50", read["p50"][0] - DELAY_MS, "ms"
        yield f"{name}: late, p99", read["p99"][0] - DELAY_MS, "ms"
        if read["count"][0] != sent["accepted"]:
            yield f"  {name}: not received", sent["accepted"] - read["count"][0], "messages"


def _figures(name: str, figures: dict[str, tuple[float, str]]) -> Iterator[Row]:
    for figure, (value, unit) in figures.items():
        yield f"{name}, {figure}", value, unit


def _paced(
    broker: Broker, topic: str, rate: float, seconds: float, level: int = 0
) -> dict[str, float]:
    words = (broker.port, topic, rate, seconds, level)
    command = [sys.executable, "-P", "-m", "bench.paced", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-1000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _command(
    kind: str, at: str, topic: str, number: int, java: list[str] | None = None
) -> list[str]:
    program = java or [sys.executable, "-P", "-m", "bench.readers"]
    return [*program, kind, at, topic, str(number)]


class _Reader:
    """A ready process of readers.py, or of Clients.java."""

    def __init__(
        self, kind: str, at: str, topic: str, number: int, java: list[str] | None = None
    ) -> None:
        command = _command(kind, at, topic, number, java)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "_Reader":
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                return self
        raise RuntimeError("the reader has failed")

    def figures(self) -> dict[str, tuple[float, str]]:
        """Return its figures, once it has ended."""
        output, _ = self._process.communicate(timeout=300)
        return _last_line(output)

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()


def _read(
    kind: str, at: str, topic: str, number: int, java: list[str] | None = None
) -> dict[str, tuple[float, str]]:
    command = _command(kind, at, topic, number, java)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{_client_name(java)} failed: {done.stderr[-1000:]}")
    return _last_line(done.stdout)


def _last_line(output: str) -> dict[str, tuple[float, str]]:
    """Return the last line's figures: Java's client writes its log first."""
    figures: dict[str, tuple[float, str]] = json.loads(output.splitlines()[-1])
    return figures
