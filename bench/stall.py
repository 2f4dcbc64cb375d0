"""Longest stall of the loop while appends meet a slow disk and a memory limit (design.md 7).

80 MB/s of appends, 256 MiB of memory, a disk of 4 MB/s: a loop-mounted file system whose device is
throttled, and a memory control group. Needs root and control groups version 1; says so if they are
missing.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.limits import DiskLimit, MemoryLimit
from bench.processes import Bench, wait_serving
from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

Row = tuple[str, float, str]
DISK_BYTES = 3 << 30
DISK_BYTES_PER_S = 4_000_000
LIMIT_BYTES = 256 << 20
SECONDS = 20.0


def longest_stall(bench: Bench) -> Iterator[Row]:
    """Yield rows, or print one line to standard error with the reason why there are none."""
    with ExitStack() as stack:
        run = stack.enter_context(Ledger.begin())
        try:
            volume = Volume.create(run.directory / "slow", run=run, size=DISK_BYTES)
            stack.callback(volume.destroy)
            memory = stack.enter_context(MemoryLimit("stall", run=run, limit=LIMIT_BYTES))
        except HostError as exc:
            print(f"stall: left out, {exc}", file=sys.stderr)
            return
        broker = bench.node(
            "mappedFileSizeCommitLog=268435456",
            "diskMaxUsedSpaceRatio=95",
            root=volume.path / "store",
        )
        stack.callback(broker.kill)
        memory.add(broker.process.pid)
        wait_serving(broker)
        stack.enter_context(DiskLimit(volume, run=run, write_bytes_per_s=DISK_BYTES_PER_S))
        pauses, refused, accepted = _probe(broker.port)
        yield "longest stall, slow disk and 256 MiB", 1000 * max(pauses), "ms"
        ordered = sorted(pauses)
        yield "  p99 of the same", 1000 * ordered[int(len(ordered) * 0.99)], "ms"
        yield "  accepted meanwhile", accepted, "messages"
        yield "  refused meanwhile (page cache busy)", refused, "messages"


def _probe(port: int) -> tuple[list[float], float, float]:
    """Return answer times of a cheap request every 5 ms, while another process sends 80 MB/s."""
    import json
    import socket

    from bench.frames import pull_frame

    sender = subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.load", str(port), "64", str(SECONDS)],
        stdout=subprocess.PIPE,
    )
    pauses = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            began = time.perf_counter()
            connection.sendall(pull_frame(0, 1 << 40, 1))
            connection.recv(65_536)
            pauses.append(time.perf_counter() - began)
            time.sleep(0.005)
    output, _ = sender.communicate(timeout=120)
    result = json.loads(output)
    return pauses, result["refused"], result["messages"]
