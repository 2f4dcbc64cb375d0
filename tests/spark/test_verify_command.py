"""The commands as processes: Ctrl-C leaves nothing, and `--verify spark` has the last word."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.paths import FIXTURES

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COMMAND = (sys.executable, "-P", "-m", "rocketbed")
LIMIT_S = 900.0


def processes_of(session: int) -> list[str]:
    """Processes of a session, by their commands' first words."""
    commands = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            commands.append(b" ".join(words[:3]).decode())
    return commands


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURES / "rocketmq-store-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_leaves_nothing(store: Path, number: signal.Signals) -> None:
    out, report = store.parent / "out", store.parent / "report.json"
    words = ["pipeline", "export", "--store", str(store), "--out", str(out)]
    words += ["--master", "local[2]", "--report", str(report)]
    with subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("exporting"):
                break
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 130
    assert processes_of(process.pid) == []
    assert not (out / "_staging").exists()
    assert json.loads(report.read_text())["verdict"] == "interrupted"
    manifest = json.loads((out / "_rocketbed_manifest.json").read_text())
    assert manifest["parts"] == []


def has_port(session: int) -> bool:
    """True if a process of a session's, Java, listens: Spark is about to be started in it."""
    own = set()
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            is_ours = int((place / "stat").read_text().rpartition(")")[2].split()[3]) == session
            own |= {os.readlink(one) for one in (place / "fd").iterdir()} if is_ours else set()
    listening = [
        line.split()[9]
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    return any(f"socket:[{inode}]" in own for inode in listening)


def test_job_ended_while_spark_starts_leaves_no_java(store: Path) -> None:
    """Java did not end then, even when its standard input was closed."""
    words = ["pipeline", "verify", "--store", str(store), "--master", "local[2]"]
    for pause_s in (0.0, 0.5, 1.0):  # at some moments of its start; none is waited for
        with subprocess.Popen([*COMMAND, *words], start_new_session=True) as process:
            while not has_port(process.pid):
                time.sleep(0.02)
            time.sleep(pause_s)
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 130
        assert processes_of(process.pid) == []


def test_job_without_a_store_ends_with_a_sentence(tmp_path: Path) -> None:
    words = ["pipeline", "verify", "--store", str(tmp_path), "--json"]
    run = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert run.returncode == 3
    assert run.stderr.strip().endswith("is no store directory: no commitlog is in it")
    assert "Traceback" not in run.stderr
    assert json.loads(run.stdout)["verdict"] == "unreadable"


def test_a_run_is_judged_twice_and_both_agree(tmp_path: Path) -> None:
    words = ["chaos", "run", "promote-async", "--seed", "3", "--quick", "--verify", "spark"]
    words += ["--report", str(tmp_path)]
    run = subprocess.run(
        [*COMMAND, *words, "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    row = json.loads(run.stdout)
    assert (run.returncode, row["verdict"]) == (0, "pass"), run.stderr
    (check,) = [check for check in row["checks"] if check["id"] == "second-opinion"]
    assert (check["verdict"], check["examined"]) == ("ok", 7)
    directory = next(tmp_path.glob("promote-async-3-sim"))
    spark = json.loads((directory / "verify.json").read_text())
    lost = next(one for one in row["checks"] if one["id"] == "lost-write")
    allowed = next(one for one in spark["checks"] if one["id"] == "V1")["allowed"]
    assert allowed == lost["allowed_found"] > 0
