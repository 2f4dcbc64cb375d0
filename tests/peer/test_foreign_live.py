"""A real RocketMQ on the live page: what it shows, which buttons work, what is said in the end."""

from pathlib import Path

import pytest

from rocketbed.chaos.search.replay import load_replay
from tests.support.live_page import live
from tests.support.peer.installation import Installation

SCENARIO = """
name = "by-hand"
description = "One broker, and nothing but what somebody does to it"
steps = []

[cluster]
brokers = 1
nameservers = 1

[load.producer]
count = 1
rate = 30

[recovery]
at = "1s"
drain = "2s"
"""


@pytest.mark.ci
def test_a_rocketmq_is_paused_by_hand(installation: Installation, tmp_path: Path) -> None:
    scenario, target = tmp_path / "by-hand.toml", str(installation.lib)
    scenario.write_text(SCENARIO)
    where = ("--backend", "process", "--net", "plain", "--target", target)
    words = ("chaos", "run", str(scenario), "--live", "--seed", "3", "--report", str(tmp_path))
    with live(tmp_path / "log", *words, *where) as run:
        run.wait_faults()
        assert run.feed()["run"]["backend"] == f"process · {target}, classic"
        moved = ("written", "flushed", "confirmed", "dispatched")
        run.wait_for(lambda values: all(values.get("at:b1", {}).get(what) for what in moved))
        run.do("pause", "b1")
        run.wait_for(lambda values: values["machine:b1"]["state"] == "paused")
        run.do("resume", "b1")
        run.wait_for(lambda values: values["machine:b1"]["state"] == "running")
        status, text = run.press("cut", "b1")
        assert status == 409
        assert text.startswith("cut b1: the cluster runs on plain loopback")
        run.do("end")
        assert run.wait() == 0, run.output()
    replay = load_replay(tmp_path / "LIVE-by-hand-3.rbx")
    assert (replay.target, replay.mode) == (target, "classic")
    assert [step.verb for step in replay.plan.steps] == ["pause"]
    assert f"--seed 3 --target {target} --mode classic\n" in run.output()
