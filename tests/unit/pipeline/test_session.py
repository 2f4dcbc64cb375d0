"""Facts known before Spark is asked."""

import socket
import sys

import pytest

from rocketbed.pipeline import session
from rocketbed.pipeline.errors import SparkMissing
from rocketbed.pipeline.session import build_session, name_python, refuse_silent, unpacked


@pytest.mark.parametrize("kind", ["spark", "sc"])
def test_address_without_a_listener_is_refused_at_once(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refuse_silent(f"{kind}://127.0.0.1:{port}")
        refuse_silent(f"{kind}://127.0.0.1:{port}/;token=x")
        refuse_silent(f"{kind}://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(SparkMissing, match=f"nothing listens at {kind}://127.0.0.1:{port}: is"):
        refuse_silent(f"{kind}://127.0.0.1:{port}")
    with pytest.raises(SparkMissing, match="nothing listens at"):
        refuse_silent(f"{kind}://127.0.0.1:what")


def test_an_archive_comes_before_what_a_user_has() -> None:
    assert unpacked("a.tgz", {}) == {
        "spark.archives": "a.tgz#rocketbed_archive",
        "spark.executorEnv.PYTHONPATH": "rocketbed_archive",
    }
    theirs = {"spark.archives": "b.zip#b", "spark.executorEnv.PYTHONPATH": "b", "spark.x": "y"}
    assert unpacked("hdfs://h/a.tgz", theirs) == {
        "spark.archives": "hdfs://h/a.tgz#rocketbed_archive,b.zip#b",
        "spark.executorEnv.PYTHONPATH": "rocketbed_archive:b",
    }


def test_python_has_one_name_unless_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "python{}.{}".format(*sys.version_info)
    monkeypatch.setattr(sys, "executable", "/here/bin/python")
    environment = {"PATH": "/usr/bin"}
    name_python(environment)
    assert environment == {"PATH": "/here/bin:/usr/bin", "PYSPARK_PYTHON": name}
    python_environment = {"PATH": "/usr/bin", "PYSPARK_DRIVER_PYTHON": "python4"}
    name_python(python_environment)
    assert python_environment == {"PATH": "/usr/bin", "PYSPARK_DRIVER_PYTHON": "python4"}


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
    with pytest.raises(SparkMissing, match=r"pip install 'rocketbed\[connect\] @ file:"):
        build_session(remote="local[2]")
