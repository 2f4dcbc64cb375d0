"""A seed of a campaign as a process with limits; order and memory of seeds."""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs import seeds
from rocketbed.pipeline.jobs.campaign import CampaignOptions, campaign, checked, in_turn, results
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.seeds import SeedOptions, run_seed, tree_memory, unpack
from tests.support.campaigns import SCENARIO


def options(tmp_path: Path, text: str = "", faults: str = "1s") -> SeedOptions:
    path = tmp_path / "tiny.toml"
    path.write_text(SCENARIO.replace("FAULTS", faults) + text)
    return SeedOptions(scenario=str(path), text=path.read_text())


def test_a_seed_that_passes_leaves_its_line_only(tmp_path: Path) -> None:
    requested = options(tmp_path)
    Path(requested.scenario).unlink()  # as on another machine
    row, archive = run_seed(3, requested)
    assert archive == b""
    assert (row["seed"], row["verdict"], row["exit_code"], row["tail"]) == (3, "pass", 0, "")
    assert len(row["digest"]) == 32
    assert (row["looked"]["lost-write"], row["looked"]["delayed-duplicate"]) == (True, False)


@pytest.mark.slow
def test_failing_seed_is_kept_and_can_be_replayed(tmp_path: Path) -> None:
    missed = options(tmp_path, '[expect]\nprogress = [100000, "1s"]\n')
    row, archive = run_seed(3, missed)
    assert (row["verdict"], row["findings"], row["exit_code"]) == ("stalled", "progress", 2)
    unpack(archive, tmp_path / "kept")
    assert {row["replay"], "tiny-3-sim"} == {path.name for path in (tmp_path / "kept").iterdir()}
    repeated, nothing = run_seed(3, missed, repeat=True)
    assert repeated["digest"] == row["digest"]
    assert nothing == b""


def test_replay_file_of_a_large_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "KEPT_MAX", 1000)
    row, archive = run_seed(3, options(tmp_path, '[expect]\nprogress = [100000, "1s"]\n'))
    unpack(archive, tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [row["replay"]]


def test_seed_over_its_time_or_size_limit_is_ended(tmp_path: Path) -> None:
    long = options(tmp_path, faults="3000s")
    slow, _ = run_seed(1, replace(long, timeout_s=1.5))
    assert (slow["verdict"], slow["exit_code"]) == ("timeout", -signal.SIGKILL)
    large, _ = run_seed(1, replace(long, memory_mib=20))
    assert (large["verdict"], large["exit_code"]) == ("oom", -signal.SIGKILL)


def test_a_seed_that_cannot_run_says_why(tmp_path: Path) -> None:
    row, _ = run_seed(1, options(tmp_path, "[colour]\n"))
    assert (row["verdict"], row["exit_code"]) == ("crash", 64)
    assert "colour" in row["tail"]


def test_a_seed_ends_with_its_worker(tmp_path: Path) -> None:
    long = replace(options(tmp_path, faults="3000s"), timeout_s=600)
    code = (
        "from rocketbed.pipeline.jobs.seeds import *\n"
        f"run_seed(1, SeedOptions(scenario={long.scenario!r}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as worker:
        pids: list[int] = []
        while not pids:
            children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
            pids = [int(word) for word in children.read_text().split()]
        run = os.pidfd_open(pids[0])
        worker.kill()
    assert select.select([run], [], [], 30)[0] == [run]
    os.close(run)


def test_memory_of_a_tree() -> None:
    assert tree_memory(os.getpid()) > 1 << 20
    assert tree_memory(1 << 30) == 0


def test_order_of_seeds_is_deterministic() -> None:
    waiting = [(seed, False) for seed in range(100)] + [(7, True)]
    runs = in_turn(waiting)
    assert sorted(runs) == sorted(waiting)
    assert runs == in_turn(list(reversed(waiting)))
    assert runs[:20] != waiting[:20]
    assert runs[-1] == (7, True)


def test_number_of_repeated_seeds() -> None:
    options = CampaignOptions(seeds=SeedOptions(scenario="s"), out=Path("o"))
    assert checked(range(5, 205), options) == [104, 204]
    assert checked(range(3), options) == [2]
    assert checked(range(300), replace(options, check_share=0.0)) == []


def test_a_line_that_was_cut_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    line = json.dumps({"seed": 2, "again": False})
    (tmp_path / "results" / "a.jsonl").write_text(line.replace("2", "1") + "\n" + line[:-4])
    assert [row["seed"] for row in results(tmp_path)] == [1]


def test_another_campaign_is_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def run(**change: object) -> None:
        options_used = CampaignOptions(seeds=options(tmp_path), out=out, count=1, check_share=0.0)
        options_used = replace(options_used, **change)  # type: ignore[arg-type]
        campaign(Job("campaign", JobSettings()), options_used)

    (out / "results").mkdir(parents=True)
    row, _ = run_seed(0, options(tmp_path))
    (out / "results" / "a.jsonl").write_text(json.dumps(row) + "\n")
    run()
    with pytest.raises(WrongUsage, match="continue it with --resume"):
        run()
    run(resume=True)
    with pytest.raises(WrongUsage, match="not of"):
        run(resume=True, seeds=replace(options(tmp_path), quick=True))
    (out / "campaign.json").write_text("{")
    with pytest.raises(PipelineError, match="for a campaign: "):
        run()


@pytest.mark.parametrize(("count", "ran_in", "code"), [(200, -1, 1), (200, 150, 0), (199, -1, 0)])
def test_large_campaign_fails_for_a_check_that_never_ran(
    tmp_path: Path, count: int, ran_in: int, code: int
) -> None:
    usual = options(tmp_path)
    path = Path(usual.scenario)
    path.write_text("seeds = { sim = 200 }\n" + path.read_text())
    rows = []
    for seed in range(count):
        row = {"seed": seed, "again": False, "verdict": "pass", "digest": ""}
        rows.append(
            json.dumps(
                {**row, "looked": {"lost-write": True, "write-after-disk-failure": seed == ran_in}}
            )
        )
    (tmp_path / "out" / "results").mkdir(parents=True)
    (tmp_path / "out" / "results" / "a.jsonl").write_text("\n".join(rows))
    job = Job("campaign", JobSettings())
    campaign_options = CampaignOptions(
        seeds=usual, out=tmp_path / "out", count=count, check_share=0.0
    )
    campaign(job, campaign_options)
    assert job.report.exit_code == code
    texts = [example["text"] for found in job.report.findings for example in found["examples"]]
    assert texts == (["write-after-disk-failure: nothing to look at in 200 seeds"] if code else [])
    assert bool(job.report.notes) == (count == 199), "a small one only says so"
