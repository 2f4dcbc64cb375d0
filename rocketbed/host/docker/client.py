"""Client of the Docker daemon, through the SDK, with errors that say what to do.

Everything this project creates there has the label `rocketbed.run`, and nothing without it is ever
touched. The SDK blocks, so callers in a trio program use `call`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from rocketbed.host.closing import Closing
from rocketbed.host.errors import HostError
from rocketbed.host.extras import install_command
from rocketbed.wire.errors import RocketbedError

if TYPE_CHECKING:
    import docker

T = TypeVar("T")

LABEL: Final = "rocketbed.run"
"""Label of every container and network; its value is the id of the run or cluster they belong
to."""
API_MIN: Final = "1.41"
"""API version of Docker 20.10, in Debian 11 and 12."""
TIMEOUT_S: Final = 60
LOCAL: Final = "unix://"


class DockerError(HostError, RocketbedError):
    """No daemon, no image, or a container that does not start; the message says what to do."""


class Daemon(Closing):
    """A connection to a daemon of this machine."""

    def __init__(self, client: docker.APIClient, address: str) -> None:
        self.api = client
        self.address = address
        """`unix:///path`."""

    @classmethod
    def connect(cls, address: str | None = None) -> Daemon:
        """Connect to `address`, by default DOCKER_HOST's or the usual one. Raises `DockerError`."""
        try:
            import docker
        except ImportError as exc:
            raise DockerError(
                f"the Docker SDK is not installed: {install_command('chaos')}"
            ) from exc
        address = address or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        if not address.startswith(LOCAL):
            raise DockerError(
                f"the Docker daemon at {address} is on another machine: disks and networks of its "
                "containers cannot be reached from here; use one of this machine (unix://...)"
            )
        _knock(address.removeprefix(LOCAL))
        with asking(f"the Docker daemon at {address}"):
            client = docker.APIClient(base_url=address, version="auto", timeout=TIMEOUT_S)
            version = client.version()
        if docker.utils.version_lt(version["ApiVersion"], API_MIN):
            client.close()
            raise DockerError(
                f"the Docker daemon at {address} is {version['Version']}; 20.10 or newer is needed"
            )
        return cls(client, address)

    def close(self) -> None:
        self.api.close()

    def image(self, name: str) -> dict[str, Any] | None:
        """Return the daemon's description of an image; None if it does not have it. Raises
        `DockerError`."""
        import docker.errors

        with asking(f"the image {name} cannot be inspected"):
            try:
                row: dict[str, Any] = self.api.inspect_image(name)
            except docker.errors.ImageNotFound:
                return None
        return row

    def containers(self, run_id: str) -> list[dict[str, Any]]:
        """Return all containers of a run, running or not."""
        rows: list[dict[str, Any]] = self.api.containers(
            all=True, filters={"label": f"{LABEL}={run_id}"}
        )
        return rows


@contextmanager
def asking(action: str) -> Iterator[None]:
    """Turn errors of the SDK into a `DockerError` that begins with `action`."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as exc:
        raise DockerError(f"{action}: {exc.explanation or exc}") from exc
    except (docker.errors.DockerException, requests.RequestException, OSError) as exc:
        raise DockerError(f"{action}: the Docker daemon does not answer: {exc}") from exc


async def call(function: Callable[[], T], action: str) -> T:
    """Call the daemon in a thread. Raises `DockerError` that begins with `action`."""

    def ask() -> T:
        with asking(action):
            return function()

    return await trio.to_thread.run_sync(ask)


def _knock(path: str) -> None:
    """Raise `DockerError` when no daemon listens, or this user may not connect."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except PermissionError as exc:
        raise DockerError(
            f"no permission to use the Docker daemon at {path}: run as root, or join the group "
            "that owns the socket (docker)"
        ) from exc
    except OSError as exc:
        raise DockerError(
            f"no Docker daemon runs at {path}: start one (Debian: apt-get install docker.io), or "
            "set DOCKER_HOST to one that runs"
        ) from exc
