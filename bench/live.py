"""The live page: what it takes of the harness's processor at 10,000 messages a second.

One node, eight producers that send in batches, all in the harness's own process. Windows without
a page and with one, in turn, so that a machine that is busy with something else shows in both.
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
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import orjson

Row = tuple[str, float, str]
WINDOW_S: Final = 6.0
WINDOWS: Final = 4
WARM_UP_MESSAGES: Final = 20_000
SCENARIO: Final = """
name = "live-bench"
steps = []
[cluster]
brokers = 1
nameservers = 1
flush = "async"
repl = "async"
segment = "128MiB"
[load.producer]
count = 8
rate = 260
in_flight = 16
batch = 1.0
queues = 8
body = [64, 200]
[load.consumer]
count = 1
[calm]
at = "10s"
drain = "2s"
"""


def live_page() -> Iterator[Row]:
    """Rows of the page."""
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


def _measure(process: "subprocess.Popen[str]") -> Iterator[Row]:
    assert process.stdout is not None
    found = None
    while found is None:
        line = process.stdout.readline()
        assert line, "the run ended before it had an address"
        found = re.search(r"live page: http://(.+):(\d+)/\?token=(\S+)", line)
    page = _Page(found[1], int(found[2]), found[3])
    while page.look().get("counts", {}).get("ok", 0) < WARM_UP_MESSAGES:
        pass
    without: list[float] = []
    with_page: list[float] = []
    messages = updates = size = 0
    for _ in range(WINDOWS):
        before = page.look()["counts"]["ok"]
        without.append(_busy(process.pid, lambda: time.sleep(WINDOW_S)))
        messages += page.look()["counts"]["ok"] - before
        counted: list[tuple[int, int]] = []
        with_page.append(_busy(process.pid, lambda: counted.append(page.follow(WINDOW_S))))  # noqa: B023
        updates += counted[0][0]
        size += counted[0][1]
    seconds = WINDOWS * WINDOW_S
    yield "live page, acknowledged messages", messages / seconds, "messages/s"
    yield "  harness's CPU, no page open", 100 * sum(without) / WINDOWS, "% of a core"
    yield "  harness's CPU, one page open", 100 * sum(with_page) / WINDOWS, "% of a core"
    yield "  updates", updates / seconds, "updates/s"
    yield "  size of them", size / seconds / 1024, "KiB/s"


class _Page:
    """A browser, as far as the harness can tell."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._address = host, port
        self._token = token

    def look(self) -> dict[str, Any]:
        """All values now."""
        with closing(self._open()) as connection:
            answer = connection.getresponse()
            line = b""
            while not line.startswith(b"data: "):
                line = answer.readline()
            values: dict[str, Any] = orjson.loads(line[6:])["values"]
            return values

    def follow(self, seconds: float) -> tuple[int, int]:
        """Keep a page open for so long; updates and bytes that came."""
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


def _busy(pid: int, work: Any) -> float:
    """Share of a core that a process used while something else was done here."""
    began, used = time.monotonic(), _cpu_s(pid)
    work()
    return (_cpu_s(pid) - used) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
