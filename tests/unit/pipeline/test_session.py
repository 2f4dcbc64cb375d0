"""What is known before Spark is asked."""

import socket

import pytest

from rocketbed.pipeline import session
from rocketbed.pipeline.errors import SparkMissing
from rocketbed.pipeline.session import build_session, refuse_silent


@pytest.mark.parametrize("kind", ["spark", "sc"])
def test_an_address_where_nothing_listens_is_refused_at_once(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refuse_silent(f"{kind}://127.0.0.1:{port}")
        refuse_silent(f"{kind}://127.0.0.1:{port}/;token=x")
        refuse_silent(f"{kind}://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(SparkMissing, match=f"nothing listens at {kind}://127.0.0.1:{port}: is"):
        refuse_silent(f"{kind}://127.0.0.1:{port}")
    with pytest.raises(SparkMissing, match="nothing listens at"):
        refuse_silent(f"{kind}://127.0.0.1:what")


@pytest.mark.parametrize("address", ["local[2]", "local[*]", "k8s://https://nowhere:1", ""])
def test_other_addresses_are_left_to_spark(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda *where, **_: dialled.append(where))
    refuse_silent(address)
    assert dialled == []


def test_connect_without_its_libraries_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"pip install 'rocketbed\[connect\]'"):
        build_session(remote="local[2]")
