"""Daemons that cannot be used, each with a sentence that says what to do."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from rocketbed.host.docker.client import Daemon, DockerError

NOBODY = 65_534


class _Versions(BaseHTTPRequestHandler):
    """Answers with what version the daemon has, and nothing else."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def daemon_of(version: str, api: str, path: Path) -> Iterator[str]:
    """The address of a daemon that claims to be of a version."""
    body = f'{{"Version": "{version}", "ApiVersion": "{api}"}}'.encode()
    handler = type("Handler", (_Versions,), {"body": body})
    with ThreadingUnixStreamServer(str(path), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown()
            thread.join()


def test_a_daemon_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    with (
        daemon_of("20.10.24", "1.41", tmp_path / "socket") as address,
        Daemon.connect(address) as daemon,
    ):
        assert daemon.address == address


def test_an_old_daemon_is_refused(tmp_path: Path) -> None:
    with (
        daemon_of("19.03.15", "1.40", tmp_path / "socket") as address,
        pytest.raises(DockerError, match=r"is 19\.03\.15; 20\.10 or newer is needed"),
    ):
        Daemon.connect(address)


def test_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(DockerError, match=r"no Docker daemon runs at .*start one"):
        Daemon.connect(f"unix://{tmp_path}/socket")


def test_socket_without_a_listener(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(str(tmp_path / "socket"))
    with pytest.raises(DockerError, match=r"no Docker daemon runs at .*start one"):
        Daemon.connect(f"unix://{tmp_path}/socket")


def test_a_daemon_of_another_machine_is_refused() -> None:
    with pytest.raises(DockerError, match=r"tcp://192\.0\.2\.1:2375 is on another machine"):
        Daemon.connect("tcp://192.0.2.1:2375")


def test_without_permission(tmp_path: Path) -> None:
    """Root runs this as another user for a moment; other users have their own view."""
    path = tmp_path / "socket"
    with daemon_of("20.10.24", "1.41", path) as address:
        path.chmod(0o000)
        own = os.geteuid()
        if own == 0:
            for parent in [*path.parents][:3]:
                parent.chmod(0o755)
            os.seteuid(NOBODY)
        try:
            with pytest.raises(DockerError, match=r"no permission .*join the group"):
                Daemon.connect(address)
        finally:
            os.seteuid(own)
