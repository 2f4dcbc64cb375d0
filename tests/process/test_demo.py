"""The whole trial, short: green as it is, red when something is wrong, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.checkers.result import Verdict
from chaos.demo.load import Counts
from chaos.demo.plan import MASTER, MESSAGES_MIN, SLAVES, Target, make_plan
from chaos.demo.report import write_report
from chaos.demo.run import HISTORY, WORK, DemoOptions, run_demo
from chaos.demo.strikes import TRIES, Start, Striker
from chaos.demo.verdict import CRASH_CHECK, DemoVerdict
from chaos.process.cluster import LocalCluster
from rocketbed.inspect import Fault, Record, Scanned, open_directory

pytestmark = pytest.mark.process
FIXTURE = Path(__file__).parent.parent / "fixtures" / "rocketmq-store-killed.tar.gz"
DEADLINE_S = 120


class Quiet:
    """Keeps what a trial says."""

    def __init__(self, listener: Callable[[str], None] | None = None) -> None:
        self.lines: list[str] = []
        self._listener = listener

    def say(self, line: str) -> None:
        self.lines.append(line)
        if self._listener is not None:
            self._listener(line)

    def tick(self, phase: str, at_s: float, counts: Counts, total: int) -> None:
        assert counts.acknowledged <= total


async def run(
    report: Path,
    *,
    seed: int = 1,
    store: Path | None = None,
    before_checks: Callable[[LocalCluster], None] | None = None,
    listener: Callable[[str], None] | None = None,
) -> DemoVerdict:
    """A short trial, with its report."""
    plan = make_plan(seed=seed, messages=MESSAGES_MIN)
    options = DemoOptions(plan=plan, report=report, store=store)
    with trio.fail_after(DEADLINE_S):
        verdict = await run_demo(options, Quiet(listener), before_checks=before_checks)
    write_report(report, verdict.as_row())
    return verdict


def results(verdict: DemoVerdict) -> dict[str, Verdict]:
    return {check.title: check.verdict for check in verdict.checks}


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


def test_the_command_is_green_and_writes_its_report(tmp_path: Path) -> None:
    with command(
        "--seed", "4", "--messages", "500", "--json", "--keep", "--report", str(tmp_path)
    ) as process:
        output, progress = process.communicate(timeout=DEADLINE_S)
    row: dict[str, Any] = json.loads(output)
    assert process.returncode == 0, progress
    assert row["result"] == "pass"
    assert row["loss"] == {"allowed": 0, "lost": 0, "acknowledged": 500}
    assert {kill["target"] for kill in row["kills"]} == set(map(str, Target))
    assert {check["verdict"] for check in row["checks"]} == {"ok"}
    assert json.loads((tmp_path / "verdict.json").read_text()) == row
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Every check ran" in page
    for name in ("master", *SLAVES):
        assert f"Log of {name}" in page
        assert (tmp_path / WORK / name / "store" / "commitlog").is_dir()
    assert (tmp_path / WORK / HISTORY).exists()
    assert "allowed loss 0, lost 0" in progress


async def test_a_directory_of_rocketmq_is_served_and_gone_on_with(tmp_path: Path) -> None:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    report = tmp_path / "report"
    verdict = await run(report, seed=2, store=tmp_path / "store")
    assert verdict.exit_code == 0, [check for check in verdict.checks if not check.passed]
    assert results(verdict)["O1 old messages served"] is Verdict.OK
    old = verdict.facts["old"]
    assert old["served"] == {
        "before the kills": old["messages"],
        "after the kills": old["messages"],
    }
    assert old["messages"] > 600
    assert not (report / WORK).exists(), "a green trial keeps nothing unless asked"


def erase_last_message(cluster: LocalCluster) -> None:
    """The leader's last message disappears, as if it had never been written."""
    directory = open_directory(cluster.store_directory(MASTER))
    last: Record | None = None
    for item in directory.log.scan():
        if isinstance(item, Scanned):
            record = directory.log.record_at(item.offset, item.size)
            assert not isinstance(record, Fault)
            last = record
    assert last is not None
    segment = directory.log.segments[-1]
    directory.close()
    with open(segment.path, "r+b") as file:
        file.seek(last.offset - segment.start)
        file.write(bytes(last.size))


async def test_a_lost_message_makes_it_red_and_is_named(tmp_path: Path) -> None:
    verdict = await run(tmp_path, before_checks=erase_last_message)
    assert verdict.exit_code == 1
    found = results(verdict)
    assert found["A1 lost write"] is Verdict.VIOLATED
    assert found["2.3 allowed loss"] is Verdict.VIOLATED
    assert found["A5 duplicate"] is Verdict.OK
    assert verdict.facts["loss"]["lost"] == 1
    lost = next(check for check in verdict.checks if check.title == "A1 lost write")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert lost.findings[0].partition(",")[0] in page, "the page names the message"
    assert (tmp_path / WORK).is_dir(), "a red trial keeps its evidence"


def remove_slave(cluster: LocalCluster) -> None:
    """Nothing of one slave can be read."""
    cluster.store_directory("slave-2").rename(cluster.store_directory("slave-2") / "../away")


async def test_a_check_that_did_not_run_is_no_pass(tmp_path: Path) -> None:
    verdict = await run(tmp_path, before_checks=remove_slave)
    assert Verdict.VIOLATED not in results(verdict).values()
    assert Verdict.DID_NOT_RUN in results(verdict).values()
    assert verdict.exit_code == 6
    assert "did not run" in (tmp_path / "index.html").read_text(encoding="utf-8")


async def test_a_node_that_ends_by_itself_is_told_from_those_that_were_killed(
    tmp_path: Path,
) -> None:
    spared = next(
        name
        for name in SLAVES
        if name not in {one.node for one in make_plan(seed=4, messages=MESSAGES_MIN).strikes}
    )

    def end_another(line: str) -> None:
        if "acknowledged (" in line:
            pid = LocalCluster.load(tmp_path / WORK).pid(spared)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    verdict = await run(tmp_path, seed=4, listener=end_another)
    assert verdict.exit_code == 3, verdict.as_row()
    found = {check.title: check for check in verdict.checks}
    assert found[CRASH_CHECK].found == 1
    assert found[CRASH_CHECK].findings[0].startswith(f"{spared} ended by itself")
    assert found["A1 lost write"].passed


async def test_a_kill_that_missed_the_recovery_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until_recovered(striker: Striker, start: Start) -> bool:
        await striker._cluster.wait_serving(start.node)
        return True

    monkeypatch.setattr(Striker, "_recovery_began", until_recovered)
    verdict = await run(tmp_path)
    assert verdict.exit_code == 6
    check = next(check for check in verdict.checks if check.title.startswith("D3"))
    assert check.verdict is Verdict.DID_NOT_RUN
    assert check.note == f"{TRIES} tried, but the recovery was over at that moment"
    assert check.note in (tmp_path / "index.html").read_text(encoding="utf-8")


def members(work: Path) -> dict[str, int]:
    """Descriptors of the running processes of a cluster, by name."""
    cluster = LocalCluster.load(work)
    pids = {name: cluster.pid(name) for name in cluster.names}
    return {name: os.pidfd_open(pid) for name, pid in pids.items() if pid is not None}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_end_on_the_way_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    with command("--seed", "1", "--messages", "100000", "--report", str(tmp_path)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "killed master" in line:
                break
        running = members(tmp_path / WORK)
        assert {"nameserver", *SLAVES} <= set(running)
        process.send_signal(number)
        with trio.fail_after(DEADLINE_S):
            for descriptor in running.values():
                await trio.lowlevel.wait_readable(descriptor)
                os.close(descriptor)
        process.communicate(timeout=DEADLINE_S)
    if number is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert not (tmp_path / WORK).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--messages", "1"], "at least"),
        (["--store", "."], "--store"),
        (["--flush", "often"], "often"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_wrong_usage_says_what_to_do(tmp_path: Path, arguments: list[str], said: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    given = [str(empty) if word == "." else word for word in arguments]
    with command(*given, "--report", str(tmp_path / "report")) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 64
    assert said in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "report").exists()


def test_a_directory_that_is_no_cluster_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir()
    (tmp_path / WORK / "precious").write_text("mine")
    with command("--messages", "500", "--report", str(tmp_path)) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 64
    assert "choose another --report" in errors
    assert (tmp_path / WORK / "precious").read_text() == "mine"
