"""A Docker daemon of the tests' own, with the base image made of Debian's packages.

Images are kept in `.docker` between runs: the first run takes a minute longer. Here, since tests in
several folders use it, and a fixture in each would be two daemons on one directory. The folder
`docker` has no `__init__.py`: as a package it would be called `docker` and hide the SDK.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.host.docker.client import LABEL, Daemon
from rocketbed.host.docker.image import BASE, ready_image
from tests.support.private_daemon import PrivateDaemon

ROOT = Path(__file__).parents[2]
BUILD_S = 600


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """Address of the daemon, which is also in DOCKER_HOST."""
    with PrivateDaemon(ROOT / ".docker") as private:
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = private.address
        try:
            subprocess.run([ROOT / "compose/take-host-settings"], check=True)
            yield private.address
        finally:
            del os.environ["DOCKER_HOST"]
            if before is not None:
                os.environ["DOCKER_HOST"] = before


@pytest.fixture(scope="session")
def base_image(docker_host: str) -> str:
    """The base of the other images."""
    with Daemon.connect(docker_host) as daemon:
        if not daemon.api.images(BASE):
            subprocess.run([ROOT / "compose/base-image"], check=True, timeout=BUILD_S)
    return BASE


@pytest.fixture(scope="session")
def image(docker_host: str, base_image: str) -> str:
    """The node's image, of these very sources."""
    with Daemon.connect(docker_host) as daemon:
        return ready_image(daemon)


@pytest.fixture
def daemon(docker_host: str) -> Iterator[Daemon]:
    """A connection."""
    with Daemon.connect(docker_host) as connected:
        yield connected


def nothing_left(daemon: Daemon) -> bool:
    """True if no run has left anything in the daemon."""
    networks = daemon.api.networks(filters={"label": LABEL})
    return not networks and not daemon.api.containers(all=True, filters={"label": LABEL})
