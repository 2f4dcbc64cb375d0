"""`rocketbed chaos` as a command: what it prints, how it ends, what it leaves (nothing)."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketbed.cli.main import main
from rocketbed.host.janitor.processes import began
from rocketbed.host.janitor.record import OWNER, Ledger

pytestmark = pytest.mark.process
DEADLINE_S = 120
CLEAN_S = 15
"""How long a reaper may take after a SIGKILL, on a busy machine."""
TINY = """
name = "tiny"
steps = ["at 300ms kill leader for 200ms"]
[cluster]
brokers = 1
nameservers = 1
repl = "async"
[load.producer]
count = 1
rate = 20
[recovery]
at = "1s"
drain = "2s"
"""
LONG = TINY.replace('at = "1s"', 'at = "20s"').replace('name = "tiny"', 'name = "long"')
LOST = TINY + '[expect]\nprogress = [100000, "1s"]\n'
Signal = signal.Signals


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[[str], str]:
    """Writes a scenario; its path."""

    def write(text: str) -> str:
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return str(path)

    return write


@contextmanager
def command(
    tmp_path: Path, *arguments: str, limit_bytes: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """`rocketbed chaos ...` in a process group and with a temporary directory of its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)

    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rocketbed", "chaos", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=limit,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(tmp_path: Path, *arguments: str, limit_bytes: int | None = None) -> tuple[int, str, str]:
    """Exit code, standard output, standard error; the machine has to be clean after it."""
    with command(tmp_path, *arguments, limit_bytes=limit_bytes) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in errors
    until_clean(tmp_path, process.pid)
    return process.returncode, output, errors


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The same for what ends before anything begins; a process of its own has to import it all."""
    code = main(["chaos", *arguments])
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    return code, output, errors


def leftovers(tmp_path: Path, pid: int) -> list[str]:
    """Return all remains of a command: processes, mounts, loop devices, namespaces, scratch."""
    marker = f"TMPDIR={tmp_path / 'tmp'}".encode()
    remains = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                remains.append(f"process {entry.name}")
        except OSError:
            continue
    remains += [
        line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line
    ]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            remains += [str(backing)] if str(tmp_path) in backing.read_text() else []
        except OSError:
            continue
    runs = tmp_path / "tmp" / "rocketbed-runs"
    remains += [str(path) for path in runs.iterdir()] if runs.exists() else []
    remains += [str(path) for path in (tmp_path / "tmp").glob("rocketbed-run-*")]
    remains += [str(path) for path in Path("/dev/shm").glob(f"rocketbed-run-{pid}-*")]
    run_ids = tmp_path / "run-ids"
    for run_id in run_ids.read_text().split() if run_ids.exists() else []:
        remains += [str(path) for path in Path("/run/netns").glob(f"rb-{run_id}-*")]
        remains += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/rocketbed*{run_id}*")]
    return remains


def until_clean(tmp_path: Path, pid: int) -> None:
    """Wait until nothing is left; the reaper needs a moment after a SIGKILL."""
    until = time.monotonic() + CLEAN_S
    while remains := leftovers(tmp_path, pid):
        assert time.monotonic() < until, remains
        time.sleep(0.02)


def note_runs(tmp_path: Path) -> None:
    """Write down which runs have begun."""
    names = [path.name for path in (tmp_path / "tmp" / "rocketbed-runs").glob("*")]
    (tmp_path / "run-ids").write_text(" ".join(names))


def until_said(process: "subprocess.Popen[str]", words: str) -> None:
    """Read what is printed until these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    assert process.stderr is not None
    pytest.fail(f"it ended without {words!r}: {process.stderr.read()}")


# --- what it prints


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "process"])
def test_json_and_progress_use_separate_streams(
    backend: str, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    code, output, errors = run(
        tmp_path,
        "run",
        scenario(TINY),
        "--backend",
        backend,
        "--net",
        "plain",
        "--seed",
        "1",
        "--json",
        "--report",
        str(tmp_path / "report"),
    )
    row: dict[str, Any] = json.loads(output)
    assert (code, row["verdict"], row["exit_code"]) == (0, "pass", 0), errors
    assert (row["findings"], row["seed"], row["backend"]) == ([], 1, backend)
    assert row["bounds"] == []
    assert bool(row["digest"]) == (backend == "sim")
    assert "kill b1" in errors
    assert "PASS" in errors
    assert (Path(row["directory"]) / "index.html").exists()


def test_many_seeds_come_as_a_table(scenario: Callable[[str], str], tmp_path: Path) -> None:
    code, output, errors = run(
        tmp_path,
        "run",
        scenario(TINY),
        "--seed",
        "3",
        "--seeds",
        "3",
        "--json",
        "--report",
        str(tmp_path / "report"),
    )
    row = json.loads(output)
    assert (code, row["counts"]) == (0, {"pass": 3}), errors
    assert sorted(one["seed"] for one in row["runs"]) == [3, 4, 5]
    assert list((tmp_path / "report").iterdir()) == [], "what passed is not kept"


@pytest.mark.slow
def test_missed_expectation_exits_2_and_can_be_replayed(
    scenario: Callable[[str], str], tmp_path: Path
) -> None:
    code, output, _ = run(
        tmp_path, "run", scenario(LOST), "--seed", "1", "--report", str(tmp_path / "report")
    )
    assert code == 2
    assert "STALLED" in output
    (replay,) = (tmp_path / "report").glob("FAIL-tiny-1.rbx")
    code, output, _ = run(
        tmp_path, "replay", str(replay), "--json", "--report", str(tmp_path / "again")
    )
    row = json.loads(output)
    assert (code, row["same_digest"], row["same_finding"]) == (2, True, True)


# --- bad input


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (TINY.replace("brokers", "brokrs"), "cluster.brokrs: unknown key; did you mean 'brokers'?"),
        (TINY.replace("kill leader", "kil leader"), "unknown fault 'kil'; did you mean 'kill'?"),
        (TINY.replace("leader", "leadr"), "unknown target 'leadr'; did you mean 'leader'?"),
        (TINY.replace("at 300ms", "at -1s"), "before the cluster is up"),
        (TINY.replace("at 300ms", "every 1s~2s").replace("1s~2s", "0s"), "needs a positive time"),
        ("name = [", "scenario.toml"),
    ],
)
def test_mistake_in_a_scenario_names_file_and_place(
    text: str,
    expected_text: str,
    scenario: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "r"
    code, output, errors = run_here(capsys, "run", scenario(text), "--report", str(report))
    assert (code, output) == (64, "")
    assert expected_text in errors
    assert "scenario.toml" in errors
    assert not report.exists()


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["run", "sync-failovr"], "did you mean 'sync-failover'?"),
        (["run", "/nowhere/x.toml"], "/nowhere/x.toml"),
        (["run", "soak-swarm", "--backend", "process"], "not made for process"),
        (["run", "abort-file", "--backend", "cloud"], "cloud"),
        (["run", "soak-swarm", "--backend", "docker"], "not made for docker"),
        (["run", "sync-failover", "--mode", "controller"], "add --target"),
        (["replay", "/nowhere/x.rbx"], "/nowhere/x.rbx"),
        (["doctor", "disk.powerct"], "disk.powerct"),
    ],
)
def test_wrong_usage(
    arguments: list[str], expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run_here(capsys, *arguments)
    assert code == 64
    assert expected_text in errors


@pytest.mark.parametrize(
    ("content", "expected_text"),
    [
        ('{"kind": "rocketbed replay", "format": 99}', "in format 99, and this rocketbed"),
        ('{"kind": "rocketbed replay", "format": 3}', "the replay file is damaged"),
        ('{"kind": "something"}', "not a rocketbed replay file"),
        ('{"kind": "rocketbed rep', "cannot read the replay file"),
    ],
)
def test_a_replay_file_that_cannot_be_used(
    content: str, expected_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "FAIL.rbx"
    path.write_text(content)
    code, _, errors = run_here(capsys, "replay", str(path), "--report", str(tmp_path / "r"))
    assert code == 64
    assert expected_text in errors
    assert "FAIL.rbx" in errors
    assert not (tmp_path / "r").exists()


def test_directory_without_a_run_is_left_alone(
    scenario: Callable[[str], str], tmp_path: Path
) -> None:
    precious = tmp_path / "r" / "tiny-1-sim" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    code, _, errors = run(
        tmp_path, "run", scenario(TINY), "--seed", "1", "--report", str(tmp_path / "r")
    )
    assert code == 64
    assert "choose another --report" in errors
    assert precious.read_text() == "mine"


# --- what this machine lacks

STALE = TINY.replace("steps = [", 'steps = ["at 600ms restart ns:1 stale-table", ')
NEEDS = 'needs = ["net.cut"]\n' + TINY


SAID = {
    STALE: "skipped: at 600ms restart ns:1 stale-table: a nameserver process cannot be given",
    NEEDS: "skipped: all of tiny, which needs net.cut: the cluster runs on plain loopback",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "strict", "verdict"),
    [
        pytest.param(STALE, False, "PASS", marks=pytest.mark.slow),
        (STALE, True, "PASS"),
        (NEEDS, False, "SKIPPED"),
        (NEEDS, True, "SKIPPED"),
    ],
)
def test_impossible_steps_are_skipped_with_a_reason(
    text: str,
    strict: bool,
    verdict: str,
    scenario: Callable[[str], str],
    tmp_path: Path,
) -> None:
    code, output, _ = run(
        tmp_path,
        "run",
        scenario(text),
        "--backend",
        "process",
        "--net",
        "plain",
        "--seed",
        "1",
        "--report",
        str(tmp_path / "report"),
        *(["--strict"] if strict else []),
    )
    assert code == (5 if strict else 0), output
    assert f"{verdict}  tiny" in output
    assert SAID[text] in output


@pytest.mark.slow
def test_lossless_link_is_reported(scenario: Callable[[str], str], tmp_path: Path) -> None:
    text = TINY.replace("brokers = 1", "brokers = 2").replace(
        "at 300ms kill leader for 200ms", "at 300ms link b1 -> b2 loss 10% for 200ms"
    )
    code, output, _ = run(
        tmp_path,
        "run",
        scenario(text),
        "--backend",
        "process",
        "--net",
        "proxy",
        "--seed",
        "1",
        "--report",
        str(tmp_path / "report"),
        "--strict",
    )
    assert code == 5
    assert "net.loss: a proxy sees no packets" in output


# --- no space left


@pytest.mark.parametrize("as_json", [False, True])
def test_file_that_cannot_grow_ends_with_one_sentence(
    as_json: bool, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    report = tmp_path / "report"
    code, output, errors = run(
        tmp_path,
        "run",
        scenario(TINY),
        "--seed",
        "1",
        "--report",
        str(report),
        *(["--json"] if as_json else []),
        limit_bytes=40_000,
    )
    assert code == 4
    text = errors if as_json else output
    (line,) = [line for line in text.splitlines() if "the run failed" in line]
    assert "no space left where the harness writes" in line
    assert list(report.iterdir()) == []
    if as_json:
        assert json.loads(output)["verdict"] == "harness-error"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "size"), [("sim", "64k"), ("sim", "200k"), ("process", "400k"), ("process", "20m")]
)
def test_a_full_disk_under_the_report(
    backend: str, size: str, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    report = tmp_path / "report"
    report.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(report)]
    subprocess.run(mount, check=True)
    try:
        arguments = ["run", scenario(TINY), "--backend", backend, "--net", "plain", "--seed", "1"]
        with command(tmp_path, *arguments, "--report", str(report)) as process:
            if size == "20m":  # enough to begin with
                until_said(process, "faults")
                (report / "filler").write_bytes(bytes(8 << 20))
            output, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 4, output + errors
        (report / "filler").unlink(missing_ok=True)
        assert output.count("no space left where the harness writes") == 1
        assert "Traceback" not in errors
        assert list(report.iterdir()) == []
    finally:
        subprocess.run(["umount", str(report)], check=True)
    until_clean(tmp_path, process.pid)


def test_report_directory_that_cannot_be_made_is_wrong_usage(
    scenario: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "r")
    code, output, errors = run(tmp_path, "run", scenario(TINY), "--seed", "1", "--report", place)
    assert code == 64, output
    assert f"{place} cannot be made: Not a directory" in errors


# --- interrupted


def interrupt(
    tmp_path: Path, number: Signal, words: str, *arguments: str, group: bool = False
) -> None:
    """Send a signal once these words were said; everything has to go."""
    with command(tmp_path, *arguments, "--report", str(tmp_path / "report")) as process:
        until_said(process, words)
        note_runs(tmp_path)
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output, errors = process.communicate(timeout=DEADLINE_S)
        expected = -number if number is Signal.SIGKILL else 130
        assert process.returncode == expected, output + errors
        assert "Traceback" not in errors
    until_clean(tmp_path, process.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "group"),
    [
        pytest.param(Signal.SIGINT, False, marks=pytest.mark.slow),
        (Signal.SIGINT, True),
        (Signal.SIGTERM, False),
        pytest.param(Signal.SIGHUP, True, marks=pytest.mark.slow),
        (Signal.SIGKILL, False),
    ],
)
def test_an_interrupted_simulation(
    number: Signal, group: bool, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    arguments = ["run", scenario(LONG), "--seed", "1", "--seeds", "40"]
    interrupt(tmp_path, number, "seed", *arguments, group=group)


@pytest.mark.parametrize("words", ["faults", pytest.param("recovery", marks=pytest.mark.slow)])
def test_a_single_simulation(words: str, scenario: Callable[[str], str], tmp_path: Path) -> None:
    interrupt(tmp_path, Signal.SIGINT, words, "run", scenario(LONG), "--seed", "1", group=True)


@pytest.mark.parametrize("number", [Signal.SIGTERM, Signal.SIGKILL])
def test_an_end_while_it_shrinks(
    number: Signal, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    interrupt(tmp_path, number, "shrinking", "run", scenario(LOST), "--seed", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words", "group"),
    [
        (Signal.SIGINT, "faults", True),
        (Signal.SIGTERM, "kill b1", False),
        pytest.param(Signal.SIGHUP, "recovery", False, marks=pytest.mark.slow),
        pytest.param(Signal.SIGINT, "stopping", False, marks=pytest.mark.slow),
        (Signal.SIGKILL, "kill b1", False),
    ],
)
def test_an_interrupted_run_of_processes(
    number: Signal, words: str, group: bool, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    arguments = ["run", scenario(TINY), "--backend", "process", "--net", "proxy", "--seed", "1"]
    interrupt(tmp_path, number, words, *arguments, group=group)


@pytest.mark.parametrize("number", [Signal.SIGINT, Signal.SIGTERM])
def test_an_end_while_processes_are_set_up(
    number: Signal, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    arguments = ["run", scenario(TINY), "--backend", "process", "--net", "plain", "--seed", "1"]
    report = tmp_path / "report"
    with command(tmp_path, *arguments, "--report", str(report)) as process:
        until = time.monotonic() + DEADLINE_S
        while not list(report.glob("*/nodes/*/pid")):
            assert time.monotonic() < until
            time.sleep(0.002)
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    until_clean(tmp_path, process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [Signal.SIGINT, Signal.SIGTERM, Signal.SIGHUP, Signal.SIGKILL])
@pytest.mark.parametrize("words", ["faults", "powercut", "recovery"])
def test_volumes_and_namespaces_go_too(
    words: str, number: Signal, scenario: Callable[[str], str], tmp_path: Path
) -> None:
    text = TINY.replace("kill leader for 200ms", "powercut leader for 200ms")
    arguments = ["run", scenario(text), "--backend", "process", "--net", "switch", "--seed", "1"]
    interrupt(tmp_path, number, words, *arguments)


# --- swept by hand


def test_doctor_sweeps_what_was_left(tmp_path: Path) -> None:
    root = tmp_path / "tmp" / "rocketbed-runs"
    abandoned = Ledger.begin(root, guard=False)
    abandoned_path = tmp_path / "left"
    abandoned.note("directory", abandoned_path)
    abandoned_path.mkdir()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile True: time.sleep(60)"],
        env={**os.environ, **abandoned.environment()},
    )
    owner = json.loads((abandoned.directory / OWNER).read_text())
    (abandoned.directory / OWNER).write_text(json.dumps({**owner, "began": owner["began"] - 1}))
    assert began(sleeper.pid)
    code, output, errors = run(tmp_path, "doctor", "--sweep", "proc.pause")
    assert code == 0, errors
    assert f"removed directory {abandoned_path}" in errors
    assert f"removed process {sleeper.pid}" in errors
    assert "proc.pause" in output
    assert not abandoned_path.exists()
    assert sleeper.wait() == -signal.SIGKILL
