"""Broker processes to measure: ours, and a real RocketMQ from a folder of its jars."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from bench.asker import Asker
from bench.frames import frame

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """Return a base port p such that p - 2, p and p + 1 are free now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port > 1026 and all(_is_free(port + step) for step in (-2, 0, 1)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(slots=True)
class Broker:
    """A running broker process."""

    process: subprocess.Popen[bytes]
    port: int
    root: Path
    log: Path
    name: str

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        return cpu_seconds(self.process.pid)

    @property
    def resident_bytes(self) -> int:
        """Resident memory now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE

    def stop(self) -> float:
        """Stop cleanly; return the seconds it took."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.perf_counter() - began

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Bench:
    """A folder for all stores, and the running brokers; `close` ends and removes everything."""

    directory: Path = field(
        default_factory=lambda: Path(tempfile.mkdtemp(prefix="rocketbed-bench-"))
    )
    running: list[Broker] = field(default_factory=list)

    def node(
        self,
        *settings: str,
        root: Path | None = None,
        port: int = 0,
        checkout: Path | None = None,
    ) -> Broker:
        """Start a rocketbed node, from another checkout if given; it may not serve yet."""
        port = port or free_port()
        root = root or Path(tempfile.mkdtemp(dir=self.directory))
        options = [
            f"listenPort={port}", f"storePathRootDir={root}", "brokerName=bench",
            "bindAddress=127.0.0.1", *settings,
        ]  # fmt: skip
        command = [sys.executable, "-P", "-m", "rocketbed", "node"]
        for option in options:
            command += ["--set", option]
        environment = {"PYTHONPATH": str(checkout.absolute())} if checkout else {}
        return self._start(command, port, root, "rocketbed", environment)

    def nameserver(self) -> Broker:
        """Start a rocketbed nameserver and wait for it."""
        port = free_port()
        command = [
            sys.executable, "-P", "-m", "rocketbed", "nameserver", "--set", f"listenPort={port}",
        ]  # fmt: skip
        server = self._start(command, port, self.directory / f"nameserver-{port}", "nameserver")
        wait_serving(server)
        return server

    def peer(self, jars: Path, *settings: str) -> Broker:
        """Start a real RocketMQ broker."""
        port = free_port()
        root = Path(tempfile.mkdtemp(dir=self.directory))
        lines = [
            f"listenPort={port}", f"haListenPort={port + 1}", f"storePathRootDir={root}",
            f"storePathCommitLog={root}/commitlog", "brokerName=bench", "brokerIP1=127.0.0.1",
            "namesrvAddr=127.0.0.1:1", "bindAddress=127.0.0.1", *settings,
        ]  # fmt: skip
        config = root / "broker.conf"
        config.write_text("\n".join(lines) + "\n")
        command = [
            "java", "-Xms2g", "-Xmx2g", "-XX:+UseG1GC", f"-Duser.home={root}",
            f"-Drocketmq.home.dir={root}", "-cp", f"{jars}/*",
            "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config),
        ]  # fmt: skip
        return self._start(command, port, root, "RocketMQ")

    def _start(
        self,
        command: list[str],
        port: int,
        root: Path,
        name: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Broker:
        log = self.directory / f"{root.name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        broker = Broker(process, port, root, log, name)
        self.running.append(broker)
        return broker

    def forget(self, broker: Broker) -> None:
        """Remove the store of a broker that has ended."""
        self.running.remove(broker)
        shutil.rmtree(broker.root)

    def close(self) -> None:
        """End running brokers and remove every store."""
        for broker in self.running:
            if broker.process.poll() is None:
                broker.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def wait_serving(broker: Broker, seconds: float = 60) -> None:
    """Wait until the port accepts. Raises `RuntimeError` with the log's end if the process
    ended."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        if broker.process.poll() is not None:
            raise RuntimeError(f"{broker.name} ended:\n{broker.log.read_text()[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", broker.port), timeout=1).close()
        except OSError:
            time.sleep(0.002)
        else:
            return
    raise RuntimeError(f"{broker.name} does not serve after {seconds:g} s")


def wait_routed(nameserver: Broker, topics: Iterable[str], seconds: float = 60) -> None:
    """Wait until a nameserver knows topics. Raises `RuntimeError`."""
    deadline = time.perf_counter() + seconds
    with closing(Asker(nameserver.port)) as asker:
        for topic in topics:
            while True:
                try:
                    asker.ask_all([frame(105, {"topic": topic}, 0)], 1)
                    break
                except RuntimeError:
                    if time.perf_counter() > deadline:
                        raise
                    time.sleep(0.05)


def load(
    broker: Broker, kind: str, seconds: float, generator: str = "bench.load"
) -> dict[str, float]:
    """Run the generator; return its result, and the broker's CPU microseconds a message."""
    before = broker.cpu_seconds
    result = generate(broker.port, kind, seconds, generator)
    spent = broker.cpu_seconds - before
    result["cpu_us"] = 1e6 * spent / result["messages"] if result["messages"] else 0.0
    return result


def generate(
    port: int, kind: str, seconds: float, generator: str = "bench.load"
) -> dict[str, float]:
    """Run the generator, a module that gets `kind` word by word; return its result, and messages a
    second."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", generator, str(port), *kind.split(), str(seconds)],
        capture_output=True,
        timeout=seconds + 60,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr.decode()[-1000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    result["rate"] = result["messages"] / result["seconds"]
    return result
