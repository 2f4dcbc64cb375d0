"""Taking containers and networks away over the daemon's socket. Standard library only.

Apart, since most guardians never need it and should start fast.
"""

import http.client
import socket
from typing import Final

TIMEOUT_S: Final = 20.0
GONE: Final = (200, 204, 409)
"""409: somebody else is removing it."""
UNKNOWN: Final = 404


def docker_record(address: str, name: str) -> str:
    """The value of a record: where the daemon is (`unix:///path`), and the thing's name."""
    return f"{address} {name}"


def delete(value: str, path: str) -> bool:
    """DELETE a thing; whether it was there. Raises `OSError`. Without a daemon there is nothing."""
    address, _, name = value.partition(" ")
    connection = _UnixConnection(address.removeprefix("unix://"))
    try:
        connection.request("DELETE", path.format(name))
        status = connection.getresponse().status
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    finally:
        connection.close()
    if status not in (*GONE, UNKNOWN):
        raise OSError(f"the Docker daemon at {address} answers {status} for {name}")
    return status != UNKNOWN


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket of this system."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """To the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
