"""Spark's own standalone cluster, of the pyspark package alone."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

SPARK_CLASS = Path(pyspark.__file__).resolve().parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
START_S = 120.0


@contextmanager
def daemon(
    log: Path, sign: str, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[None]:
    """A Java process of Spark that runs and has said so; ended with all that it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    try:
        await_text(log, sign, process)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def await_text(log: Path, sign: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process has written `sign`. Fails with its output when it ends before or is
    late.
    """
    end = time.monotonic() + START_S
    while sign not in (text := log.read_text(errors="replace")):
        assert process.poll() is None, text
        assert time.monotonic() < end, text
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)


def master(host: str, port: int) -> list[str]:
    place = ["--host", host, "--port", str(port), "--webui-port", "0"]
    return [str(SPARK_CLASS), f"{DEPLOY}.master.Master", *place]


def worker(host: str, address: str, *, cores: int, memory: str) -> list[str]:
    place = ["--host", host, "--webui-port", "0", "--cores", str(cores), "--memory", memory]
    return [str(SPARK_CLASS), f"{DEPLOY}.worker.Worker", *place, address]
