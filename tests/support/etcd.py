"""A real etcd on loopback, for one test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.ports import free_port

STARTED_S = 120
"""For hangs only."""


@contextmanager
def etcd(directory: Path) -> Iterator["Etcd"]:
    """A member that forms a cluster alone: its address, and its process to be paused or killed."""
    client = free_port()  # and the next one is free as well
    member = Etcd(directory, client, client + 1)
    member.start()
    try:
        yield member
    finally:
        member.kill()


class Etcd:
    def __init__(self, directory: Path, port: int, peer_port: int) -> None:
        self.address = ("127.0.0.1", port)
        self._url, self._peer = (f"http://127.0.0.1:{one}" for one in (port, peer_port))
        self._directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        with open(self._directory / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    "etcd",
                    "--data-dir",
                    str(self._directory / "etcd"),
                    "--listen-client-urls",
                    self._url,
                    "--advertise-client-urls",
                    self._url,
                    "--listen-peer-urls",
                    self._peer,
                    "--initial-advertise-peer-urls",
                    self._peer,
                    "--initial-cluster",
                    f"default={self._peer}",
                ],
                stdout=log,
                stderr=log,
            )
        transport = httpx.HTTPTransport(retries=STARTED_S)
        with httpx.Client(transport=transport, timeout=STARTED_S, trust_env=False) as http:
            http.post(f"{self._url}/v3/kv/range", json={"key": "AA=="}).raise_for_status()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
