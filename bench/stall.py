"""Longest stall of the loop while appends run into a slow disk and a memory limit (design.md 7).

80 MB/s of appends, 256 MiB of memory, a disk of 4 MB/s: a loop-mounted file system whose device
is throttled, and a memory control group. Needs root and control groups version 1; says so if not.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.processes import Bench, wait_serving

Row = tuple[str, float, str]
MEMORY = Path("/sys/fs/cgroup/memory")
BLKIO = Path("/sys/fs/cgroup/blkio")
DISK_BYTES_PER_S = 4_000_000
LIMIT_BYTES = 256 << 20
SECONDS = 20.0


def longest_stall(bench: Bench) -> Iterator[Row]:
    """Rows, or one line on standard error that says why there are none."""
    throttle = BLKIO / "blkio.throttle.write_bps_device"
    if os.geteuid() != 0 or not throttle.exists() or not MEMORY.is_dir():
        print("stall: left out, needs root and control groups version 1", file=sys.stderr)
        return
    with ExitStack() as stack:
        image = bench.directory / "slow.img"
        with image.open("wb") as file:
            file.truncate(3 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        device = subprocess.run(
            ["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=True
        ).stdout.strip()
        stack.callback(subprocess.run, ["losetup", "-d", device], check=False)
        mount = Path(tempfile.mkdtemp(dir=bench.directory))
        subprocess.run(["mount", device, str(mount)], check=True)
        stack.callback(subprocess.run, ["umount", "-l", str(mount)], check=False)
        numbers = os.stat(device).st_rdev
        major_minor = f"{os.major(numbers)}:{os.minor(numbers)}"
        group = MEMORY / f"rocketbed-bench-{os.getpid()}"
        group.mkdir()
        stack.callback(group.rmdir)
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
        broker = bench.node(
            "mappedFileSizeCommitLog=268435456", "diskMaxUsedSpaceRatio=95", root=mount / "store"
        )
        stack.callback(broker.kill)
        (group / "cgroup.procs").write_text(str(broker.process.pid))
        wait_serving(broker)
        throttle.write_text(f"{major_minor} {DISK_BYTES_PER_S}")
        stack.callback(throttle.write_text, f"{major_minor} 0")
        pauses, refused, accepted = _probe(broker.port)
        yield "longest stall, slow disk and 256 MiB", 1000 * max(pauses), "ms"
        ordered = sorted(pauses)
        yield "  p99 of the same", 1000 * ordered[int(len(ordered) * 0.99)], "ms"
        yield "  accepted meanwhile", accepted, "messages"
        yield "  refused meanwhile (page cache busy)", refused, "messages"


def _probe(port: int) -> tuple[list[float], float, float]:
    """Answer times of a cheap request every 5 ms, while another process sends 80 MB/s."""
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
