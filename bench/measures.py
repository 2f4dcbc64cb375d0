"""Basic measures. Each function takes a `Bench` and returns rows of (name, value, unit)."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from bench.frames import BODY_SIZE
from bench.processes import Bench, Broker, free_port, load, wait_serving

Row = tuple[str, float, str]
GIB = 1 << 30
MIB = 1 << 20
WARM_S = {"rocketbed": 2.0, "RocketMQ": 25.0}
"""Load before a measure begins: Java compiles while it runs."""


def one_slave(bench: Bench, seconds: float) -> Iterator[Row]:
    """Yield the send rate with one synchronous slave."""
    port = free_port()
    master = bench.node("brokerRole=SYNC_MASTER", "inSyncReplicas=2", port=port)
    wait_serving(master)
    slave = bench.node("brokerRole=SLAVE", "brokerId=1", f"haMasterAddress=127.0.0.1:{port + 1}")
    wait_serving(slave)
    load(master, "1", 1)
    for in_flight in (64, 1):
        result = load(master, str(in_flight), seconds)
        yield f"send, one synchronous slave, {in_flight} in flight", result["rate"], "messages/s"
        if result["refused"]:
            yield f"  not acknowledged, {in_flight} in flight", result["refused"], "messages"
    slave.kill()
    master.kill()


def start_and_stop(bench: Bench, start: Callable[..., Broker]) -> Iterator[Row]:
    """Start an empty store: time to the first acknowledged send, idle memory, clean stop."""
    starts = []
    for _ in range(3):
        began = time.perf_counter()
        broker = start()
        wait_serving(broker)
        first = load(broker, "1", 0.0)
        # The generator's own start is not the broker's: measured from its first byte on.
        starts.append(time.perf_counter() - began - (_generator_start_s()))
        assert first["messages"] >= 0
        time.sleep(1)
        memory = broker.resident_bytes
        stopped = broker.stop()
    yield "start to first acknowledged send", min(starts), "s"
    yield "resident memory, idle", memory / MIB, "MiB"
    yield "clean stop", stopped, "s"


def _generator_start_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", "import bench.load"], check=True)
    return time.perf_counter() - began


def recovery(bench: Bench, size: int) -> Iterator[Row]:
    """Recover a log of `size` bytes after kill -9: from the mark, without derived files, and
    fsck."""
    broker = bench.node("mappedFileSizeCommitLog=268435456", "flushIntervalConsumeQueue=1000")
    wait_serving(broker)
    messages = 0.0
    while messages * (BODY_SIZE + 300) < size:
        messages += load(broker, "64", 1)["messages"]
    broker.kill()
    root = broker.root
    log_bytes = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    for name, remove in (
        ("recovery, from the durable mark", ()),
        ("recovery, mark, queues and index gone",
         ("rocketbed.ckpt", "rocketbed.flushed", "consumequeue", "index")),
    ):  # fmt: skip
        for directory_name in remove:
            subprocess.run(["rm", "-rf", str(root / directory_name)], check=True)
        restarted = bench.node("mappedFileSizeCommitLog=268435456", root=root)
        wait_serving(restarted, 300)
        seconds, scanned = _recovered(restarted)
        restarted.kill()
        yield name, seconds, "s"
        yield "  records", scanned, "records"
        if remove:
            yield "  speed", log_bytes / MIB / seconds, "MiB/s"
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "rocketbed", "store", "fsck", str(root)],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    seconds = time.perf_counter() - began
    yield "fsck of the same", log_bytes / MIB / seconds, "MiB/s"


def _recovered(broker: Broker) -> tuple[float, float]:
    """Return seconds and records of a node's recovery, from its log."""
    for line in reversed(broker.log.read_text().splitlines()):
        if "store.recovered" in line:
            fields = dict(part.partition("=")[::2] for part in line.split())
            return float(fields["seconds"]), float(fields["records"])
    raise RuntimeError(f"no recovery in {broker.log}")


def nameserver_memory(bench: Bench) -> Iterator[Row]:
    """Yield the resident memory of an idle nameserver."""
    server = bench.nameserver()
    time.sleep(0.5)
    yield "nameserver: resident memory, idle", server.resident_bytes / MIB, "MiB"
    server.kill()
