"""The live page over containers: broken by hand, judged, and run again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketbed.host.docker.client import Daemon
from tests.support.docker_daemon import nothing_left
from tests.support.live_page import live, rocketbed, run_live

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("image")]


def is_in(node: str, state: str) -> Callable[[dict[str, Any]], bool]:
    return lambda values: values[f"machine:{node}"]["state"] == state


def follows(node: str) -> Callable[[dict[str, Any]], bool]:
    return lambda values: bool(values.get(f"at:{node}", {}).get("following"))


@pytest.mark.ci
def test_a_run_in_containers_is_broken_by_hand(daemon: Daemon, tmp_path: Path) -> None:
    words = [word if word != "process" else "docker" for word in run_live(tmp_path)]
    with live(tmp_path / "log", *words) as run:
        run.wait_faults()
        for action, mend, state in (("kill", "start", "down"), ("pause", "resume", "paused")):
            run.do(action, "b2")
            run.wait_for(is_in("b2", state))
            run.do(mend, "b2")
            run.wait_for(follows("b2"))
        run.do("cut", "b3")
        run.wait_for(lambda values: values["machine:b3"]["cut"])
        run.do("heal", "b3")
        run.wait_for(follows("b3"))
        run.interrupt()
        assert run.wait() == 0, run.output()
    assert "PASS" in run.output()
    assert nothing_left(daemon)
    file = tmp_path / "report" / "LIVE-by-hand-3.rbx"
    replayed = rocketbed("chaos", "replay", str(file), "--report", str(tmp_path / "again"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "seed 3, docker" in replayed.stdout
    assert nothing_left(daemon)


@pytest.mark.ci
def test_a_cluster_in_containers_is_watched(daemon: Daemon, tmp_path: Path) -> None:
    place = str(tmp_path / "cluster")
    up = rocketbed("cluster", "up", "--docker", "--dir", place, "--port", "0", "--slaves", "1")
    assert up.returncode == 0, up.stderr
    try:
        with live(tmp_path / "log", "cluster", "watch", "--dir", place, "--load", "50") as watch:
            watch.wait_for(follows("slave-1"))
            watch.do("kill", "slave-1")
            watch.wait_for(is_in("slave-1", "down"))
            watch.do("start", "slave-1")
            watch.wait_for(follows("slave-1"))
            watch.do("pause", "slave-1")
            watch.wait_for(is_in("slave-1", "paused"))
            watch.do("resume", "slave-1")
            watch.wait_for(is_in("slave-1", "running"))
            watch.interrupt()
            assert watch.wait() == 0, watch.output()
    finally:
        assert rocketbed("cluster", "down", "--dir", place, "--remove").returncode == 0
    assert nothing_left(daemon)
