"""Measures of Spark, `python -m bench.spark [--only NAME]`: prints the machine, then a row for each
figure.

The generator of `bench/`, run as a process, writes the store in a separate directory that is
removed at the end. Each part begins a Spark of its own, so that none profits from another's warmth.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.spark import latency, reads
from bench.spark.reads import MIB, Row
from rocketbed.pipeline.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("reads", "memory", "rebuild", "verify", "latency")
VERIFIED: Final = 2_000_000
REPLICAS: Final = 3
HEAP_MIB: Final = 512
"""About the least that Spark starts with; the log is four times as long."""


def main() -> int:
    """Run the parts, each in a separate process."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark")
    parser.add_argument("--only", default="", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--mib", type=int, default=1024, help="size of the log")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        for name, value, unit in _part(options.part, options.place, options.mib):
            print(f"{name:<52} {value:>12,.2f} {unit}", flush=True)
        return 0
    print(_machine(), flush=True)
    place = Path(tempfile.mkdtemp(prefix="rocketbed-bench-spark-"))
    try:
        for part in PARTS:
            if options.only in part:
                arguments = ["--part", part, "--place", str(place), "--mib", str(options.mib)]
                subprocess.run([sys.executable, "-m", "bench.spark", *arguments], check=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def _part(part: str, place: Path, mib: int) -> Iterable[Row]:
    if part == "latency":
        return latency.micro_batches(place, build)
    if part == "verify":
        return _verify(place)
    if part == "memory":
        large = _store(place / "large", "--mib", str(4 * HEAP_MIB), "--no-index")
        return reads.memory(lambda heap: build({"spark.driver.memory": heap}), large, HEAP_MIB)
    store = _store(place / "log", "--mib", str(mib))
    if part == "reads":
        return _reads(store)
    return _rebuild(store, place)


def build(conf: dict[str, str] | None = None) -> "SparkSession":
    """Return a session on all cores."""
    return build_session("bench", conf={"spark.driver.memory": "2g", **(conf or {})})


def _reads(store: Path) -> Iterator[Row]:
    yield from reads.fixed_costs(build, store)
    yield from reads.reads(build(), store)


def _rebuild(store: Path, place: Path) -> Iterator[Row]:
    out = place / "rebuilt"
    seconds = _job("rebuild", "--store", str(store), "--out", str(out))
    size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    for name, value in seconds.items():
        yield f"rebuild: {name}", value, "s"
    yield "rebuild: log", size / MIB / (seconds["all"] - seconds["starting Spark"]), "MiB/s"
    shutil.rmtree(out, ignore_errors=True)


def _verify(place: Path) -> Iterator[Row]:
    history = place / "history.jsonl"
    first = _store(
        place / "b1",
        "--messages",
        str(VERIFIED),
        "--body",
        "128",
        "--no-index",
        "--history",
        str(history),
    )
    stores = [first, *(place / f"b{number}" for number in range(2, REPLICAS + 1))]
    for copy in stores[1:]:
        shutil.copytree(first, copy, dirs_exist_ok=True)
    words = [word for path in stores for word in ("--store", f"b/{path.name}={path}")]
    seconds = _job("verify", *words, "--history", str(history), "--copies", "2")
    for name, value in seconds.items():
        yield f"verify: {name}", value, "s"
    for path in stores:
        shutil.rmtree(path, ignore_errors=True)


def _job(name: str, *arguments: str) -> dict[str, float]:
    """Run a job as a user does; return the seconds of its phases, and of all."""
    command = [sys.executable, "-P", "-m", "rocketbed", "pipeline", name, *arguments, "--json"]
    done = subprocess.run(
        [*command, "--conf", "spark.driver.memory=2g"], stdout=subprocess.PIPE, check=True
    )
    report = json.loads(done.stdout)
    return {**report["phases"], "all": report["seconds"]}


def _store(place: Path, *arguments: str) -> Path:
    """Return a store of the generator, written once."""
    if not place.exists():
        command = [sys.executable, "-m", "bench.generate", "--out", str(place), *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return place


def _machine() -> str:
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    from pyspark import __version__ as spark_version

    now = datetime.datetime.now(datetime.UTC)
    return (
        f"{now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} x {cpu}, Linux {platform.release()},"
        f" Python {platform.python_version()}, Spark {spark_version}"
    )


if __name__ == "__main__":
    sys.exit(main())
