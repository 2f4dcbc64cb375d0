"""The live page over containers: broken by hand, judged, and run again."""

from pathlib import Path

import pytest

from chaos.docker.client import LABEL, Daemon
from tests.process.live_support import live, run_live
from tests.process.test_live_run import rocketbed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("image")]


def nothing_left(daemon: Daemon) -> bool:
    return not daemon.api.containers(all=True, filters={"label": LABEL})


def test_a_run_in_containers_is_broken_by_hand(daemon: Daemon, tmp_path: Path) -> None:
    words = [word if word != "process" else "docker" for word in run_live(tmp_path)]
    with live(tmp_path / "log", *words) as run:
        run.wait_storm()
        for action, mend, state in (("kill", "start", "down"), ("pause", "resume", "paused")):
            run.do(action, "b2")
            run.wait_for(lambda values, wanted=state: values["machine:b2"]["state"] == wanted)
            run.do(mend, "b2")
            run.wait_for(lambda values: values["at:b2"]["following"])
        run.do("cut", "b3")
        run.wait_for(lambda values: values["machine:b3"]["cut"])
        run.do("heal", "b3")
        run.wait_for(lambda values: values["at:b3"]["following"])
        run.interrupt()
        assert run.wait() == 0, run.said()
    assert "PASS" in run.said()
    assert nothing_left(daemon)
    file = tmp_path / "report" / "LIVE-by-hand-3.rbx"
    again = rocketbed("chaos", "replay", str(file), "--report", str(tmp_path / "again"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "seed 3, docker" in again.stdout
    assert nothing_left(daemon)


def test_a_cluster_in_containers_is_watched(daemon: Daemon, tmp_path: Path) -> None:
    place = str(tmp_path / "cluster")
    made = rocketbed("cluster", "up", "--docker", "--dir", place, "--port", "0", "--slaves", "1")
    assert made.returncode == 0, made.stderr
    try:
        with live(tmp_path / "log", "cluster", "watch", "--dir", place, "--load", "50") as watch:
            watch.wait_for(lambda values: values["at:slave-1"]["following"])
            watch.do("kill", "slave-1")
            watch.wait_for(lambda values: values["machine:slave-1"]["state"] == "down")
            watch.do("start", "slave-1")
            watch.wait_for(lambda values: values["at:slave-1"]["following"])
            watch.do("pause", "slave-1")
            watch.wait_for(lambda values: values["machine:slave-1"]["state"] == "paused")
            watch.do("resume", "slave-1")
            watch.wait_for(lambda values: values["machine:slave-1"]["state"] == "running")
            watch.interrupt()
            assert watch.wait() == 0, watch.said()
    finally:
        assert rocketbed("cluster", "down", "--dir", place, "--remove").returncode == 0
    assert nothing_left(daemon)
