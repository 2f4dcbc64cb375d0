"""Fixtures that tests in more than one folder share."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from rocketbed.host.ports import FIRST, PORTS_VARIABLE, connection_ports_begin

WORKERS = 8
"""So many share the ports out; more share them again."""
LEAST_END = FIRST + 1000 * WORKERS
"""Where connections have nearly all ports there is nothing to share out."""

pytest_plugins = ["tests.support.docker_daemon"]

settings.register_profile(
    "fixed",
    deadline=None,  # the time of an example says how busy the machine is
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fuzz", settings.get_profile("fixed"), derandomize=False)
settings.load_profile(os.environ.get("ROCKETBED_HYPOTHESIS", "fixed"))
"""Every commit runs the same examples; `make fuzz` draws others."""


@pytest.fixture(scope="session", autouse=True)
def each_worker_has_its_own_ports() -> None:
    """A server that one worker has stopped comes back to its port, which no other has taken."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    end = connection_ports_begin()
    if not worker.startswith("gw") or end < LEAST_END or PORTS_VARIABLE in os.environ:
        return
    size = (end - FIRST) // WORKERS
    first = FIRST + int(worker.removeprefix("gw")) % WORKERS * size
    os.environ[PORTS_VARIABLE] = f"{first}-{first + size - 1}"


@pytest.fixture(scope="session", autouse=True)
def children_can_be_interrupted() -> Iterator[None]:
    """Give the tests' children SIGINT's default action, however this run was started.

    `nohup`, a shell's background and some CI agents start it with SIGINT ignored, which a process
    hands on to those it starts. A handler is not handed on, and this one does nothing: the run
    itself goes on ignoring the signal.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the mark `ci` of a parametrized test hold for its first parameters alone."""
    marked: set[str] = set()
    for item in items:
        if item.get_closest_marker("ci") is None:
            continue
        function = item.nodeid.partition("[")[0]
        if function in marked:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "ci"]
        marked.add(function)
