"""`rocketbed health`: what serves, and each way not to."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.cluster.cluster import LocalCluster
from rocketbed.chaos.host.ports import HOST, free_port
from rocketbed.cli import health
from rocketbed.cli.main import main

pytestmark = [pytest.mark.process, pytest.mark.slow]


@contextmanager
def running(directory: Path, slaves: int = 0) -> Iterator[LocalCluster]:
    """A cluster while inside; its processes end with this one."""
    cluster = LocalCluster.create(directory, slaves=slaves, sync=False, tied=True)
    trio.run(cluster.start)
    try:
        yield cluster
    finally:
        trio.run(cluster.close)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("one")) as found:
        yield found


@pytest.fixture(scope="module")
def strange_nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that no node has registered with."""
    with running(tmp_path_factory.mktemp("two")) as found:
        yield found.nameserver_address


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of patience is enough."""
    monkeypatch.setattr(health, "TIMEOUT_S", 1.0)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts and says nothing."""
    with socket.create_server((HOST, 0)) as server:
        yield f"{HOST}:{server.getsockname()[1]}"


@pytest.fixture
def nobody() -> str:
    """An address that nobody listens at."""
    return f"{HOST}:{free_port()}"


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["health", *words])
    shown = capsys.readouterr()
    assert shown.err == "" or code == 64
    return code, shown.out.strip() or shown.err


def test_a_nameserver_and_a_node_serve(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    node, nameserver = cluster.address("master"), cluster.nameserver_address
    assert say(capsys, nameserver) == (0, f"{nameserver} serves")
    assert say(capsys, node, "-n", nameserver) == (0, f"{node} serves")
    assert say(capsys, node) == (0, f"{node} serves")


def test_who_is_silent_or_not_there_does_not_serve(
    silent: str, nobody: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for address in (silent, nobody):
        for options in ((), ("-n", cluster.nameserver_address)):
            code, said = say(capsys, address, *options)
            assert code == 1
            assert said.startswith(f"{address} does not serve: ")


def test_a_node_that_a_nameserver_does_not_know_does_not_serve(
    cluster: LocalCluster, strange_nameserver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = cluster.address("master")
    reason = f"{node} does not serve: not registered at {strange_nameserver}"
    both = f"{cluster.nameserver_address};{strange_nameserver}"
    assert say(capsys, node, "-n", strange_nameserver) == (1, reason)
    assert say(capsys, node, "-n", both) == (1, reason)


def test_a_nameserver_that_is_down_is_no_fault_of_the_node(
    cluster: LocalCluster, nobody: str, silent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = cluster.address("master")
    many = f"{silent};{nobody};{silent};{cluster.nameserver_address};"
    assert say(capsys, node, "-n", many) == (0, f"{node} serves")


def test_with_all_nameservers_down_it_does_not_serve(
    cluster: LocalCluster, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = cluster.address("master")
    reason = f"{node} does not serve: no nameserver answered"
    assert say(capsys, node, "-n", nobody) == (1, reason)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:port", "127.0.0.1:70000"])
def test_what_is_no_address_is_wrong_usage(
    address: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((address,), (address, "-n", cluster.nameserver_address)):
        code, said = say(capsys, *words)
        assert code == 64
        assert address in said
