"""The whole demo, short: green without faults, red when something is wrong, and no remains."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.chaos.checks.judgement import Judgement, judge_run
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.demo.run import RUN, SECONDS_MIN, DemoOptions, DemoResult, run_demo
from rocketbed.chaos.evidence.history import read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE
from rocketbed.cli.main import main
from rocketbed.inspect import Fault, Record, Scanned, open_directory
from tests.support.paths import KILLED_STORE

pytestmark = pytest.mark.process
DEADLINE_S = 120
SECONDS = (SECONDS_MIN, 3 * SECONDS_MIN, 10 * SECONDS_MIN)
"""How long a demo is to be, until its kills come when they are to; each is due at a share of it."""


def run(
    report: Path,
    *,
    seed: int = 1,
    store: Path | None = None,
) -> DemoResult:
    """A demo, with its page; as short as this machine lets it be."""
    for seconds in SECONDS:
        options = DemoOptions(seed=seed, report=report, seconds=seconds, store=store)
        result = run_demo(options, lambda line: None)
        if not missed(verdicts(result)):
            break
    return result


def missed(verdicts_by_aim: Mapping[str, str]) -> bool:
    """True if it was too short: on a busy machine a node is not back when the next one is due."""
    return any(
        verdicts_by_aim[aim] == Verdict.DID_NOT_RUN
        for aim in (
            "master-killed-while-writing",
            "slave-killed-while-writing",
            "killed-in-recovery",
        )
    )


def verdicts(result: DemoResult) -> dict[str, Verdict]:
    return {check.id: check.verdict for check in result.judgement.results}


@contextmanager
def command(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """`rocketbed demo` as a process."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rocketbed", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_command_is_green_and_writes_its_page(tmp_path: Path) -> None:
    for seconds in SECONDS:
        words = ["--seed", "4", "--seconds", f"{seconds:g}", "--report", str(tmp_path)]
        with command(*words, "--json", "--keep") as process:
            output, progress = process.communicate(timeout=DEADLINE_S + seconds)
        row: dict[str, Any] = json.loads(output)
        checks = {check["id"]: check["verdict"] for check in row["checks"]}
        if not missed(checks):
            break
    assert process.returncode == 0, progress
    assert row["verdict"] == "pass"
    verbs = [step.split()[2] for step in row["steps"]]
    assert verbs.count("kill") == 3
    assert verbs.count("crash") == 1
    assert {
        checks[name]
        for name in (
            "lost-write",
            "loss-within-bound",
            "unseen-message",
            "equal-logs",
            "log-files-tile",
            "master-killed-while-writing",
            "slave-killed-while-writing",
            "killed-in-recovery",
            "back-after-every-kill",
            "another-node-led",
        )
    } == {"ok"}
    assert "lost 0 of" in progress
    run_directory = tmp_path / RUN
    assert (run_directory / "stores" / "b1" / "commitlog").is_dir()
    assert (run_directory / "history.rbh").exists()
    assert "demo" in (run_directory / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_rocketmq_directory_is_served_and_continued(tmp_path: Path) -> None:
    with tarfile.open(KILLED_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    result = run(tmp_path / "report", seed=2, store=tmp_path / "store")
    assert result.judgement.exit_code == 0, result.judgement.findings
    assert verdicts(result)["old-messages-served"] is Verdict.OK
    old = next(check for check in result.judgement.results if check.id == "old-messages-served")
    assert old.examined > 600
    assert old.note.startswith(f"{old.examined} before the faults, {old.examined} after")
    assert not (tmp_path / "report" / RUN / "stores").exists(), "green keeps nothing unless asked"


def erase_last_message(directory: Path) -> None:
    """The last leader's last message disappears, and what its tables wrote since, as if they had
    never been written."""
    led = [
        one.node for one in read_history(directory / HISTORY_FILE).events if one.kind == "promote"
    ]
    store = open_directory(directory / "stores" / led[-1])
    last: Record | None = None
    for item in store.log.scan():
        if isinstance(item, Scanned):
            record = store.log.record_at(item.offset, item.size)
            assert not isinstance(record, Fault)
            end = item.offset + item.size
            last = record if record.topic.startswith("demo") else last
    assert last is not None
    segment = store.log.segments[-1]
    store.close()
    with open(segment.path, "r+b") as file:
        file.seek(last.offset - segment.start)
        file.write(bytes(end - last.offset))


@pytest.mark.slow
def test_lost_message_fails_and_missing_store_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_slave = tmp_path / "without-slave"

    def harm_and_judge(directory: Path) -> Judgement:
        shutil.rmtree(without_slave, ignore_errors=True)
        shutil.copytree(directory, without_slave)
        erase_last_message(directory)
        return judge_run(directory)

    monkeypatch.setattr("rocketbed.chaos.demo.run.judge_run", harm_and_judge)
    result = run(tmp_path)
    assert result.judgement.exit_code == 1, result.judgement.findings
    verdict_of = verdicts(result)
    assert verdict_of["lost-write"] is Verdict.VIOLATED
    assert verdict_of["loss-within-bound"] is Verdict.VIOLATED
    assert verdict_of["duplicate"] is Verdict.OK
    lost = result.judgement.result("lost-write")
    assert lost.found == 1
    page = result.page.read_text(encoding="utf-8")
    assert lost.findings[0].partition(",")[0] in page, "the page names the message"
    assert (tmp_path / RUN / "stores").is_dir(), "a red demo keeps its evidence"

    shutil.rmtree(without_slave / "stores" / "b3")
    judgement = judge_run(without_slave)
    assert Verdict.DID_NOT_RUN in {check.verdict for check in judgement.results}
    assert judgement.exit_code == 6, judgement.findings


def running_nodes(work: Path) -> dict[str, int]:
    """Descriptors of the running processes of a run, by name."""
    pids = {path.parent.name: int(path.read_text().split()[0]) for path in work.glob("*/pid")}
    return {name: os.pidfd_open(pid) for name, pid in pids.items()}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with command("--seed", "1", "--seconds", "15", "--report", str(tmp_path)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.search(r"\d s  kill b1", line):
                break
        running = running_nodes(tmp_path / RUN / "nodes")
        assert {"ns1", "b2", "b3"} <= set(running)
        process.send_signal(number)
        with trio.fail_after(DEADLINE_S):
            for descriptor in running.values():
                await trio.lowlevel.wait_readable(descriptor)
                os.close(descriptor)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130)


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["--seconds", "1"], "at least"),
        (["--store", "."], "--store"),
        (["--flush", "often"], "often"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_wrong_usage_says_what_to_do(
    tmp_path: Path, arguments: list[str], expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    real_arguments = [str(empty) if word == "." else word for word in arguments]
    code = main(["demo", *real_arguments, "--report", str(tmp_path / "report")])
    errors = capsys.readouterr().err
    assert code == 64
    assert expected_text in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "report").exists()


def test_directory_without_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "precious").write_text("mine")
    with command("--report", str(tmp_path)) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 64
    assert "choose another --report" in errors
    assert (tmp_path / RUN / "precious").read_text() == "mine"
