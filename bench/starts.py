"""Time of a start with much to read, and the cost of a scrub of damage.

Each directory is written once and started several times from the same evidence; rows are medians.
Cold starts are in pairs with warm ones: nothing of the directory is in the page cache, as after a
reboot.
"""

import shutil
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.frames import pull_frame
from bench.processes import Bench, Broker, wait_serving
from bench.stores import Snapshot, build, evict

Row = tuple[str, float, str]
TIMES = 5
MIB = 1 << 20
QUEUES = 1000
LOG_BYTES = 2048 * MIB
HOLE_BEGIN, HOLE_BYTES = 8 * MIB, 490 * MIB
SCRUBBED_BYTES = 512 * MIB
ASK_S = 0.001
"""Pause between two requests during the scrub."""
SCRUB_S = 20.0
"""Time by which the scrub has reported the hole."""


def late_queues(bench: Bench) -> Iterator[Row]:
    """Start with 1,000 queues, each with one message at the end of its first file of 6 MB."""
    root = bench.directory / "late"
    build(root, "late", str(QUEUES))
    yield from _starts(bench, root, f"start, {QUEUES} queues that begin late, clean", clean=True)
    _remove(root)


def large_log(bench: Bench) -> Iterator[Row]:
    """Start with 2 GiB of messages of 1 MiB."""
    for end, description in (
        ("clean", "clean stop"),
        ("killed", "kill -9, the mark at the log's end"),
        ("unmarked", "kill -9, the mark at the log's beginning"),
    ):
        root = bench.directory / f"large-{end}"
        build(root, "large", str(LOG_BYTES), end)
        yield from _starts(bench, root, f"start, 2 GiB, {description}", clean=end == "clean")
        _remove(root)


def _starts(bench: Bench, root: Path, name: str, *, clean: bool) -> Iterator[Row]:
    snapshot = Snapshot(root, bench.directory)
    serving: dict[str, list[float]] = {"cold": [], "warm": []}
    stopped: list[float] = []
    for _ in range(TIMES):
        for state, seconds in serving.items():
            snapshot.put_back()
            if state == "cold":
                evict(root)
            began = time.perf_counter()
            broker = bench.node(root=root)
            wait_serving(broker)
            seconds.append(time.perf_counter() - began)
            if clean:
                stopped.append(broker.stop())
            else:
                broker.kill()
    for state, seconds in serving.items():
        yield f"{name}, {state}", statistics.median(seconds), "s"
    if clean:
        yield "  clean stop", statistics.median(stopped), "s"


def scrub(bench: Bench) -> Iterator[Row]:
    """Yield answer times of a cheap request while the scrub finds 490 MiB of zeros below the mark.

    In pairs with a node that does not scrub, for as long.
    """
    root = bench.directory / "scrub"
    build(root, "large", str(SCRUBBED_BYTES), "clean")
    _zero(root)
    snapshot = Snapshot(root, bench.directory)
    waits: dict[str, list[list[float]]] = {"beside the scrub": [], "without it": []}
    for earlier_reports in range(TIMES):
        snapshot.put_back()
        broker = bench.node(root=root)
        wait_serving(broker)
        began = time.perf_counter()
        waits["beside the scrub"].append(_ask_until_found(broker, earlier_reports))
        seconds = time.perf_counter() - began
        broker.stop()
        snapshot.put_back()
        broker = bench.node("rbScrubRate=0", root=root)
        wait_serving(broker)
        waits["without it"].append(_ask(broker, time.perf_counter() + seconds))
        broker.stop()
    for name, runs in waits.items():
        longest = [1000 * max(run) for run in runs]
        late = [1000 * sorted(run)[int(len(run) * 0.99)] for run in runs]
        title = f"request, {HOLE_BYTES // MIB} MiB of zeros, {name}"
        yield f"{title}: p99", statistics.median(late), "ms"
        yield "  longest, median of 5 runs", statistics.median(longest), "ms"
        yield "  longest of all", max(longest), "ms"
    _remove(root)


def _zero(root: Path) -> None:
    (segment,) = sorted((root / "commitlog").iterdir())[:1]
    with segment.open("r+b") as file:
        file.seek(HOLE_BEGIN)
        for _ in range(HOLE_BYTES // MIB):
            file.write(bytes(MIB))


def _ask_until_found(broker: Broker, earlier_reports: int) -> list[float]:
    """Send requests until the log, which all starts of a directory share, reports the hole once
    more."""
    waits: list[float] = []
    deadline = time.perf_counter() + SCRUB_S
    while broker.log.read_text().count("store.damage") == earlier_reports:
        if time.perf_counter() > deadline:
            raise RuntimeError(f"the scrub found nothing in {SCRUB_S:g} s; see {broker.log}")
        waits += _ask(broker, time.perf_counter() + 0.2)
    return waits


def _ask(broker: Broker, until: float) -> list[float]:
    """Return the seconds that each pull of a missing topic took."""
    frame = pull_frame(0, 0, 1)
    waits: list[float] = []
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
        while time.perf_counter() < until:
            began = time.perf_counter()
            connection.sendall(frame)
            answer = connection.recv(65_536)
            waits.append(time.perf_counter() - began)
            assert answer
            time.sleep(ASK_S)
    return waits


def _remove(root: Path) -> None:
    """Remove it now rather than at the end: these are gigabytes."""
    shutil.rmtree(root)
