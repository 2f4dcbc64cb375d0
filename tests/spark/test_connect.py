"""Jobs through Spark Connect give what they give without it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pyarrow.dataset
import pytest

from rocketbed.pipeline.errors import EXIT_GOOD
from rocketbed.pipeline.jobs.export.manifest import NAME as MANIFEST
from tests.support.paths import CLEAN_STORE

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MESSAGES, RECORDS = 268, 256  # some records hold several
JOB_S = 240.0
END_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(CLEAN_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def run(job: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a job through a Connect server of its own, which leaves nothing."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "rocketbed",
            "pipeline",
            job,
            "--remote",
            "local[2]",
            "--json",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=JOB_S)
        await_end(process.pid)
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def members(session: int) -> list[str]:
    """Processes of a session that still run: their command lines."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, *fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[2]) == session and state != "Z":
                    commands.append((entry / "cmdline").read_text().replace("\0", " "))
            except (OSError, ValueError):
                continue  # it ended meanwhile
    return commands


def await_end(session: int) -> None:
    """Wait until the whole session is gone."""
    end = time.monotonic() + END_S
    while running := members(session):
        assert time.monotonic() < end, running
        os.sched_yield()


@pytest.mark.ci
def test_export_tail_and_verify(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("export", "--store", str(store), "--out", str(out))
    assert done.returncode == EXIT_GOOD, done.stderr
    assert json.loads(done.stdout)["counts"]["rows"] == MESSAGES
    manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    files = [str(out / file["path"]) for part in manifest["parts"] for file in part["files"]]
    assert pyarrow.dataset.dataset(files, format="parquet").count_rows() == MESSAGES

    report = tmp_path / "tail.json"
    options = ("--from", "earliest", "--once", "--report", str(report))
    done = run("tail", "--store", str(store), "--out", str(tmp_path / "tail"), *options)
    assert done.returncode == EXIT_GOOD, done.stderr
    assert json.loads(report.read_text())["counts"] == {"messages": MESSAGES, "batches": 1}

    copy = shutil.copytree(store, tmp_path / "copy")
    replicas = ("--store", f"a/0={store}", "--store", f"a/1={copy}")
    done = run("verify", *replicas)
    assert done.returncode == EXIT_GOOD, done.stderr
    assert json.loads(done.stdout)["counts"]["records"] == RECORDS
