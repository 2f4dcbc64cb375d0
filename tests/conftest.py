"""What tests in more than one folder share."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.docker_daemon"]

settings.register_profile("rocketbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rocketbed")
"""How long an example takes says how busy the machine is, and nothing about the code."""


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
