"""Removal of containers and networks over the daemon's socket. Standard library only.

A module of its own, since most reaper processes never need it and should start fast.
"""

import http.client
import socket
import time
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 20.0
GONE: Final = (200, 204)
UNKNOWN: Final = 404
BUSY: Final = (403, 409)
"""Status codes for a network that a container is still leaving, or a container that is already
being removed."""
BUSY_S: Final = 10.0
LOOK_S: Final = 0.05


def docker_record(address: str, name: str) -> str:
    """Return the value of a record: the daemon's address (`unix:///path`), and the object's
    name."""
    return f"{address} {name}"


def delete(value: str, path: str) -> bool:
    """DELETE an object and wait until it is gone; True if it existed. Raises `OSError`.

    A private daemon took its objects along, and the directory of its socket. Another daemon that
    does not answer may come back with its objects, so this raises an error and is tried again
    later.
    """
    address, _, name = value.partition(" ")
    socket_path = Path(address.removeprefix("unix://"))
    if not socket_path.parent.exists():
        return False
    until = time.monotonic() + BUSY_S
    was_there = False
    while (status := _delete(socket_path, path.format(name))) in BUSY:
        was_there = True
        if time.monotonic() >= until:
            break
        time.sleep(LOOK_S)
    if status not in (*GONE, UNKNOWN):
        raise OSError(f"the Docker daemon at {address} answers {status} for {name}")
    return was_there or status != UNKNOWN


def _delete(socket_path: Path, path: str) -> int:
    """Return the answer's status. Raises `OSError`."""
    connection = _UnixConnection(str(socket_path))
    try:
        connection.request("DELETE", path)
        return int(connection.getresponse().status)
    except http.client.HTTPException as error:
        raise OSError(
            f"the Docker daemon at {socket_path} sent an invalid response: {error!r}"
        ) from error
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
