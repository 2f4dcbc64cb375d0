"""A sweep and a container or network that a daemon does not remove at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from rocketbed.host.janitor import docker as janitor_docker
from rocketbed.host.janitor.cleaners import REMOVERS
from rocketbed.host.janitor.docker import docker_record
from rocketbed.host.janitor.record import Ledger, clean


class _Answers(BaseHTTPRequestHandler):
    """Each DELETE gets the next status; the last one stays."""

    statuses: list[int]
    requests: list[str]

    def do_DELETE(self) -> None:
        self.requests.append(self.path)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.wfile.write(b"what?\r\n\r\n")

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def daemon(path: Path, *statuses: int) -> Iterator[list[str]]:
    """Yield the paths of the requests to a daemon that answers with these statuses."""
    requests: list[str] = []
    handler = type("Handler", (_Answers,), {"statuses": list(statuses), "requests": requests})
    with ThreadingUnixStreamServer(str(path), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield requests
        finally:
            server.shutdown()
            thread.join()


def record(path: Path) -> str:
    return docker_record(f"unix://{path}", "thing")


def test_present_objects_are_removed_and_missing_ones_are_fine(tmp_path: Path) -> None:
    with daemon(tmp_path / "socket", 204, 404) as requests:
        assert REMOVERS["container"](record(tmp_path / "socket"))
        assert not REMOVERS["container"](record(tmp_path / "socket"))
    assert requests == ["/containers/thing?force=true&v=true"] * 2


@pytest.mark.parametrize("statuses", [(409, 409, 404), (403, 204)])
def test_busy_object_is_waited_for(statuses: tuple[int, ...], tmp_path: Path) -> None:
    """Somebody else removes the container; a container is still leaving the network."""
    with daemon(tmp_path / "socket", *statuses) as requests:
        assert REMOVERS["docker-network"](record(tmp_path / "socket"))
    assert requests == ["/networks/thing"] * len(statuses)


def test_permanently_busy_object_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor_docker, "BUSY_S", 0.0)
    with (
        daemon(tmp_path / "socket", 403),
        pytest.raises(OSError, match="answers 403 for thing"),
    ):
        REMOVERS["docker-network"](record(tmp_path / "socket"))


def test_nonsense_is_an_error_that_a_sweep_survives(tmp_path: Path) -> None:
    with daemon(tmp_path / "socket", 0), Ledger.begin(tmp_path / "runs", guard=False) as run:
        (tmp_path / "file").touch()
        run.note("file", tmp_path / "file")
        run.note("container", record(tmp_path / "socket"))
        swept = clean(run.directory)
        assert [text.partition(":")[0] for text in swept.not_removed] == ["container unix"]
        assert "nonsense" in swept.not_removed[0]
        assert not (tmp_path / "file").exists()


def test_missing_private_daemon_took_everything_along(tmp_path: Path) -> None:
    assert not REMOVERS["container"](record(tmp_path / "gone" / "socket"))


def test_unreachable_daemon_may_return_with_its_objects(tmp_path: Path) -> None:
    """Its record stays, and a later sweep does what this one could not."""
    run = Ledger.begin(tmp_path / "runs", guard=False)
    run.note("container", record(tmp_path / "socket"))
    assert len(run.close().not_removed) == 1
    with daemon(tmp_path / "socket", 204) as requests:
        assert clean(run.directory).not_removed == []
    assert len(requests) == 1
    assert not run.directory.exists()
