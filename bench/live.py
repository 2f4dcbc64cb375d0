"""The live page: its share of the harness's processor at 10,000 messages a second.

One node; two producers that send in batches and a reader that follows every queue, all of them in
the harness's own process. Windows without a page, with one and with twenty, in turn, so that other
load of the machine affects all of them. The cost of a page is the process's use beyond that for the
messages; twenty pages make it measurable. The node's share is reported too: on two processors the
two together limit the rate.
"""

import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from rocketbed.chaos.evidence.history import Function, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE

Row = tuple[str, float, str]
PAGES: Final = (0, 1, 20)
WINDOW_S: Final = 3.0
WINDOWS: Final = 3
"""Of each kind: with more the node's volume of 256 MiB would be full before the end."""
WARM_UP_MESSAGES: Final = 20_000
SCENARIO: Final = """
name = "live-bench"
steps = []
[cluster]
brokers = 1
nameservers = 1
flush = "async"
repl = "async"
segment = "16MiB"
[load.producer]
count = 2
rate = 1250
in_flight = 64
batch = 1.0
queues = 8
body = [64, 200]
[load.consumer]
count = 1
mode = "pull"
[recovery]
at = "10s"
drain = "2s"
"""


def live_page() -> Iterator[Row]:
    """Yield the rows of the page."""
    with tempfile.TemporaryDirectory() as place:
        scenario = Path(place) / "live-bench.toml"
        scenario.write_text(SCENARIO)
        words = ("chaos", "run", str(scenario), "--live", "--backend", "process", "--net", "plain")
        process = subprocess.Popen(
            [sys.executable, "-m", "rocketbed", *words, "--seed", "1", "--report", place],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield from _measure(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
        yield "  of them read while it went on", 100 * _share_read(Path(place)), "%"


def _measure(process: "subprocess.Popen[str]") -> Iterator[Row]:
    assert process.stdout is not None
    match = None
    while match is None:
        line = process.stdout.readline()
        assert line, "the run ended before it had an address"
        match = re.search(r"live page: http://(.+):(\d+)/\?token=(\S+)", line)
    page = _Page(match[1], int(match[2]), match[3])
    while page.look().get("counts", {}).get("ok", 0) < WARM_UP_MESSAGES:
        time.sleep(0.1)
    node = _node_of(process.pid)
    followed: list[tuple[int, int]] = []
    windows = {pages: _Window() for pages in PAGES}
    for _ in range(WINDOWS):
        for pages, window in windows.items():
            messages, cpu_s, began = page.acknowledged(), _cpu_s(process.pid), time.monotonic()
            node_cpu_s = _cpu_s(node)
            followed += page.open(pages)
            window.seconds += time.monotonic() - began
            window.cpu_s += _cpu_s(process.pid) - cpu_s
            window.node_cpu_s += _cpu_s(node) - node_cpu_s
            window.messages += page.acknowledged() - messages
    bare = windows[0].cpu_s / windows[0].messages
    node_bare = windows[0].node_cpu_s / windows[0].messages
    yield "live page, acknowledged messages", windows[0].messages / windows[0].seconds, "messages/s"
    yield "  harness's CPU for a message, no page open", 1e6 * bare, "us"
    yield "  node's CPU for a message", 1e6 * node_bare, "us"
    for pages in PAGES[1:]:
        window = windows[pages]
        more = (window.cpu_s - window.messages * bare) / window.seconds
        yield f"  CPU beyond that, pages open: {pages}", 100 * more, "% of a core"
    updates, size = (sum(column) / len(followed) for column in zip(*followed, strict=True))
    yield "  updates of a page", updates / WINDOW_S, "updates/s"
    yield "  size of them", size / WINDOW_S / 1024, "KiB/s"


@dataclass(slots=True)
class _Window:
    """Messages, and their cost, with a given number of pages open."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of the harness."""
    node_cpu_s: float = 0.0
    messages: int = 0


class _Page:
    """A browser, as far as the harness can tell."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._address = host, port
        self._token = token

    def look(self) -> dict[str, Any]:
        """Return all present values."""
        with closing(self._open()) as connection:
            answer = connection.getresponse()
            line = b""
            while not line.startswith(b"data: "):
                line = answer.readline()
            values: dict[str, Any] = orjson.loads(line[6:])["values"]
            return values

    def acknowledged(self) -> int:
        """Return the messages acknowledged so far."""
        return int(self.look()["counts"]["ok"])

    def open(self, pages: int) -> list[tuple[int, int]]:
        """Keep pages open for a window; return updates and bytes that came to each."""
        if not pages:
            time.sleep(WINDOW_S)
            return []
        with ThreadPoolExecutor(pages) as threads:
            return list(threads.map(self.follow, [WINDOW_S] * pages))

    def follow(self, seconds: float) -> tuple[int, int]:
        """Keep a page open for this long; return updates and bytes."""
        updates = size = 0
        until = time.monotonic() + seconds
        with closing(self._open()) as connection, suppress(TimeoutError):
            answer = connection.getresponse()
            while time.monotonic() < until:
                line = answer.readline()
                size += len(line)
                updates += line.startswith(b"data: ")
        return updates, size

    def _open(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self._address, timeout=10)
        connection.request("GET", f"/feed?token={self._token}")
        return connection


def _node_of(harness: int) -> int:
    """Return the process of the harness's one node."""
    for child in Path(f"/proc/{harness}/task/{harness}/children").read_text().split():
        if b"\0node\0" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("the harness has no process that is a node")


def _share_read(place: Path) -> float:
    """Return messages that the reader got for each that was sent, over the whole run."""
    (path,) = place.rglob(HISTORY_FILE)
    functions = read_history(path).columns["function"]
    return functions.count(Function.GOT) / functions.count(Function.SEND)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
