"""Live runs on real processes: broken by hand, judged, run again; and how they end."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rocketbed.chaos.evidence.record import RunRecord, read_record
from rocketbed.chaos.plan.step import At, Step, parse_step
from tests.support.live_page import Live, live, rocketbed, run_live

pytestmark = [pytest.mark.slow, pytest.mark.process]
LATE_S = 0.5
"""By how much a step may come later than it did by hand: the machine may be busy."""


def ours(directory: Path) -> list[int]:
    """Processes that work somewhere below a directory."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                place = os.readlink(entry / "cwd")
            except OSError:
                continue
            if place.startswith(str(directory)):
                pids.append(int(entry.name))
    return pids


def by_verb(record: RunRecord) -> dict[str, Step]:
    return {step.verb: step for step in map(parse_step, record.steps)}


def same_steps(first: RunRecord, second: RunRecord) -> None:
    early, late = by_verb(first), by_verb(second)
    assert [step.target for step in early.values()] == [step.target for step in late.values()]
    for verb, step in early.items():
        repeated = late[verb]
        assert isinstance(step.trigger, At)
        assert isinstance(repeated.trigger, At)
        assert repeated.trigger.seconds == pytest.approx(step.trigger.seconds, abs=LATE_S)
        assert repeated.for_s == pytest.approx(step.for_s, abs=0.002)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Live]:
    """A run that was broken by hand and ended by Ctrl-C."""
    directory = tmp_path_factory.mktemp("live")
    with live(directory / "log", *run_live(directory)) as run:
        run.wait_faults()
        _wait_acknowledged(run, 60)
        run.do("kill", "b2")
        run.wait_for(lambda values: values["machine:b2"]["state"] == "down")
        run.do("start", "b2")
        run.wait_for(lambda values: values["at:b2"]["following"])
        run.do("pause", "b3")
        run.wait_for(lambda values: values["machine:b3"]["state"] == "paused")
        run.do("resume", "b3")
        run.do("cut", "b1")
        run.wait_for(lambda values: values["machine:b1"]["cut"])
        run.do("heal", "b1")
        run.wait_for(lambda values: values["at:b2"]["following"] and not values["links"])
        _wait_acknowledged(run, 120)  # a busy machine does the same later, and has to be ready
        run.do("promote", "b2")
        run.wait_for(lambda values: values["machine:b2"]["role"] == "master")
        run.interrupt()
        assert run.wait() == 0, run.output()
    assert ours(directory) == []
    return directory, run


def _wait_acknowledged(run: Live, more: int) -> None:
    """Wait until so many further messages are acknowledged."""
    before = run.feed()["counts"]["ok"]
    run.wait_for(lambda values: values["counts"]["ok"] >= before + more)


@pytest.mark.ci
def test_a_session_is_judged_and_reported(session: tuple[Path, Live]) -> None:
    directory, run = session
    place = directory / "report" / "by-hand-3-process"
    assert "PASS" in run.output()
    assert (place / "index.html").exists()
    assert json.loads((place / "verdict.json").read_text())["verdict"] == "pass"
    steps = by_verb(read_record(place))
    assert list(steps) == ["kill", "pause", "isolate", "promote"]
    assert [step.for_s is not None for step in steps.values()] == [True, True, True, False]


def test_its_replay_file_does_the_same_again(session: tuple[Path, Live], tmp_path: Path) -> None:
    directory, run = session
    file = directory / "report" / "LIVE-by-hand-3.rbx"
    assert f"rocketbed chaos replay {file}" in run.output()
    answer = rocketbed("chaos", "replay", str(file), "--report", str(tmp_path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    first = read_record(directory / "report" / "by-hand-3-process")
    same_steps(first, read_record(tmp_path / file.stem))


def test_its_scenario_does_too(session: tuple[Path, Live], tmp_path: Path) -> None:
    directory, run = session
    file = directory / "report" / "LIVE-by-hand-3.toml"
    words = ("chaos", "run", str(file), "--backend", "process", "--seed", "3")
    assert " ".join(words) in run.output()
    answer = rocketbed(*words, "--report", str(tmp_path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    first = read_record(directory / "report" / "by-hand-3-process")
    same_steps(first, read_record(tmp_path / "by-hand-3-process"))


def test_two_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    first_directory, second_directory = tmp_path / "one", tmp_path / "other"
    first_directory.mkdir()
    second_directory.mkdir()
    with live(first_directory / "log", *run_live(first_directory)) as first:
        refused = rocketbed(*run_live(second_directory, "--live-port", str(first.port)))
        assert refused.returncode == 64
        assert "choose another --live-port" in refused.stderr
        with live(second_directory / "log", *run_live(second_directory)) as second:
            first.wait_faults()
            second.wait_faults()
            first.do("kill", "b1")
            first.wait_for(lambda values: values["machine:b1"]["state"] == "down")
            assert second.feed()["machine:b1"]["state"] == "running"
            assert Live(second.process, first.address, second.log).press("kill", "b2")[0] == 200
            stolen = first.address.replace(str(first.port), str(second.port))
            assert Live(second.process, stolen, second.log).press("kill", "b2")[0] == 403
            assert second.feed()["machine:b2"]["state"] == "running"
            for run in (first, second):
                run.interrupt()
            first.wait_for(lambda values: values["phase"]["name"] != "faults")
            first.interrupt()  # the second one breaks off
            assert first.wait() == 130
            assert second.wait() == 0, second.output()
    assert ours(tmp_path) == []


def test_a_killed_harness_leaves_nothing(tmp_path: Path) -> None:
    with live(tmp_path / "log", *run_live(tmp_path)) as run:
        run.wait_faults()
        assert ours(tmp_path)
        run.process.kill()
        run.wait()
        nodes: list[int] = ours(tmp_path)
        while nodes:
            nodes = ours(tmp_path)


def test_a_simulation_has_no_live_page(tmp_path: Path) -> None:
    words = [word if word != "process" else "sim" for word in run_live(tmp_path)]
    answer = rocketbed(*words)
    assert answer.returncode == 64
    assert "simulation" in answer.stderr


def test_a_local_cluster_is_watched(tmp_path: Path) -> None:
    place = str(tmp_path / "cluster")
    created = rocketbed("cluster", "up", "--classic", "--dir", place, "--port", "0")
    assert created.returncode == 0, created.stderr
    try:
        with live(tmp_path / "log", "cluster", "watch", "--dir", place, "--load", "100") as watch:
            _break_a_local_cluster(watch)
            watch.interrupt()
            assert watch.wait() == 0, watch.output()
        assert rocketbed("cluster", "status", "--dir", place).returncode == 0
        text = (tmp_path / "cluster" / "watch.toml").read_text()
        for words in ("kill b3 for", "pause b2 for", "promote b2"):
            assert words in text
    finally:
        rocketbed("cluster", "down", "--dir", place, "--remove")


def test_a_cluster_that_fails_over_is_watched(tmp_path: Path) -> None:
    place = str(tmp_path / "cluster")
    created = rocketbed("cluster", "up", "--dir", place, "--port", "0")
    assert created.returncode == 0, created.stderr

    def master(values: dict[str, Any]) -> str:
        roles = {name: values.get(f"machine:{name}", {}).get("role") for name in nodes}
        return next((name for name in nodes if roles[name] == "master"), "")

    nodes = ("node-1", "node-2", "node-3")
    try:
        with live(tmp_path / "log", "cluster", "watch", "--dir", place, "--load", "100") as watch:
            first = watch.wait_for(master)
            watch.do("kill", first)
            second = watch.wait_for(lambda values: master(values).replace(first, ""))
            watch.do("start", first)
            watch.wait_for(lambda values: values[f"at:{first}"]["following"])
            leads = re.compile(r"epoch [2-9]: leads, lease 0\.\d s, 3 of 3 in sync: 1, 2, 3")
            watch.wait_for(lambda values: leads.fullmatch(values[f"at:{second}"]["group"]))
            follows = re.compile(rf"epoch [2-9]: follows {second[-1]}, in sync")
            watch.wait_for(lambda values: follows.fullmatch(values[f"at:{first}"]["group"]))
            watch.do("promote", first)
            watch.wait_for(lambda values: master(values) == first)
            watch.interrupt()
            assert watch.wait() == 0, watch.output()
        text = (tmp_path / "cluster" / "watch.toml").read_text()
        assert "failover = true" in text
    finally:
        rocketbed("cluster", "down", "--dir", place, "--remove")


def _break_a_local_cluster(watch: Live) -> None:
    def grown(values: dict[str, Any]) -> bool:
        points = [value for key, value in values.items() if key.startswith("point:")]
        return sum(float(point["ok"]) for point in points) > 50

    watch.wait_for(grown)
    watch.do("kill", "slave-2")
    watch.wait_for(lambda values: values["machine:slave-2"]["state"] == "down")
    watch.do("start", "slave-2")
    watch.do("pause", "slave-1")
    watch.wait_for(lambda values: values["machine:slave-1"]["state"] == "paused")
    watch.do("resume", "slave-1")
    status, text = watch.press("cut", "slave-1")
    assert status == 409
    assert "chaos run --live" in text
    watch.wait_for(
        lambda values: all(
            values[f"at:{name}"]["answers"] and values[f"at:{name}"]["following"]
            for name in ("slave-1", "slave-2")
        )
    )
    watch.do("promote", "slave-1")
    watch.wait_for(lambda values: values["machine:slave-1"]["role"] == "master")
    watch.wait_for(lambda values: all(values[f"at:{n}"]["answers"] for n in ("master", "slave-2")))
