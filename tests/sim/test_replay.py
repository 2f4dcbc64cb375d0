"""Replay files: written, read, refused, and run again to the last event."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.generator import Generate, generate
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.corpus import Corpus, coverage, vary
from rocketbed.chaos.search.crashpoints import crash_points, disk_events
from rocketbed.chaos.search.replay import Replay, load_replay, read_replay, run_replay, save_replay
from rocketbed.chaos.search.runner import Outcome, run_plan
from rocketbed.chaos.search.shrink import Budget, shrink

STEPS = (
    "at 500ms pause b1 for 200ms",
    "at 1s kill leader as k",
    "after k+500ms restart @k",
    "at 2s clock b1 jump 2s",
    "at 2500ms stop leader",
)
SMALL = Plan(
    name="small",
    seed=3,
    shape=Shape(brokers=1, nameservers=1, repl="async"),
    producers=Producers(count=1, rate=10.0),
    consumers=Consumers(count=0),
    steps=tuple(map(parse_step, STEPS)),
    faults_s=3.0,
    recovery_s=3.0,
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """Run the small plan once."""
    return run_plan(SMALL)


def test_a_file_holds_all_of_it(outcome: Outcome, tmp_path: Path) -> None:
    replay = Replay.of(outcome)
    path = tmp_path / "deep" / "FAIL-small-3.rbx"
    save_replay(replay, path)
    assert load_replay(path) == replay
    assert replay.versions.keys() >= {"rocketbed", "python", "trio", "git"}
    assert list(path.parent.iterdir()) == [path]


def test_a_replay_is_the_same_run(outcome: Outcome) -> None:
    replayed = run_replay(Replay.of(outcome))
    assert (replayed.same_digest, replayed.same_finding, replayed.note) == (True, True, "")
    assert replayed.outcome.digest == outcome.digest != ""


def test_divergence_is_reported_with_its_place(outcome: Outcome) -> None:
    replay = Replay.of(outcome)
    second_plan = replace(SMALL, producers=replace(SMALL.producers, rate=11.0))
    changed = replace(replay, plan=second_plan, versions={**replay.versions, "trio": "0.1"})
    replayed = run_replay(changed)
    assert replayed.same_digest is False
    assert "it diverged from the first run after event" in replayed.note
    assert "of this run is (" in replayed.note
    assert "trio was 0.1 and is" in replayed.note


def test_files_that_cannot_be_used(outcome: Outcome, tmp_path: Path) -> None:
    path = tmp_path / "x.rbx"
    with pytest.raises(ScenarioError, match="cannot read the replay file"):
        load_replay(path)
    save_replay(Replay.of(outcome), path)
    row = json.loads(path.read_text(encoding="utf-8"))

    def refused(changed: object) -> str:
        path.write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(ScenarioError) as raised:
            load_replay(path)
        return str(raised.value)

    assert "not a rocketbed replay file" in refused({**row, "kind": "x"})
    assert "not a rocketbed replay file" in refused([])
    later = refused({**row, "format": 99, "versions": {"rocketbed": "9.1"}})
    assert "written by rocketbed 9.1 in format 99, and this rocketbed" in later
    assert "the replay file is damaged" in refused({**row, "plan": {}})
    assert "the replay file is damaged" in refused({**row, "taken": {"x": 1}})
    test = {
        "node": "test_a.py::test_b[sim-1]",
        "left_out": [2],
        "fault_phases": {"1": ["at 1s heal"]},
    }
    of_a_test = refused({**row, "test": test})
    assert "this file belongs to a test; use pytest test_a.py::test_b --rb-replay" in of_a_test
    read = read_replay(path)
    assert read.test is not None
    assert (read.test.left_out, read.test.fault_phases) == ((2,), {1: ("at 1s heal",)})
    assert "unknown backend 'dokcer'; did you mean 'docker'?" in refused(
        {**row, "backend": "dokcer"}
    )
    assert "unknown fault 'kil'" in refused(
        {**row, "plan": {**row["plan"], "steps": ["at 1s kil b1"]}}
    )
    path.write_text(json.dumps(row)[:-40], encoding="utf-8")
    with pytest.raises(ScenarioError, match="cannot read the replay file"):
        load_replay(path)


def test_finding_is_shrunk_to_the_step_that_causes_it(tmp_path: Path) -> None:
    """What was damaged on the only disk cannot be read to the end."""
    steps = (
        *STEPS[:1],
        *STEPS[3:4],
        "at 1s damage b1 flip body for 100ms",
        "at 2500ms cpu b1 slow 2 for 200ms",
    )
    plan = replace(SMALL, steps=tuple(map(parse_step, steps)), seed=8)
    failed = run_plan(plan)
    assert "everything-read" in failed.finding_ids
    shrunk = shrink(failed, finding="everything-read", jobs=2, budget=Budget(30))
    assert shrunk.reproduced
    assert [step.verb for step in shrunk.plan.steps] == ["damage"]
    assert shrunk.replay is not None
    path = tmp_path / "small.rbx"
    save_replay(shrunk.replay, path)
    small = run_replay(load_replay(path))
    assert (small.same_digest, small.same_finding) == (True, True)
    whole = run_replay(load_replay(path).of_original())
    assert (whole.same_digest, whole.outcome.digest) == (True, failed.digest)
    with pytest.raises(ScenarioError, match="no other original"):
        load_replay(path).of_original().of_original()


def test_a_run_without_findings_is_not_shrunk(outcome: Outcome) -> None:
    with pytest.raises(ScenarioError, match="no finding to shrink"):
        shrink(outcome)


def test_coverage_knows_role_and_fault(outcome: Outcome) -> None:
    assert outcome.record is not None
    points = coverage(outcome.record)
    assert {"store.recovery_scan ASYNC_MASTER -", "store.recovery_scan ASYNC_MASTER kill"} <= points
    assert "node.stopping ASYNC_MASTER stop" in points
    assert not any(point.endswith("powercut") for point in points)


def test_a_corpus_keeps_what_was_new(outcome: Outcome, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.plan(generate(1)) == generate(1)
    assert corpus.add(outcome)
    assert corpus.add(outcome) == []
    reopened = Corpus(tmp_path / "corpus")
    assert (reopened.plans, sorted(reopened.reached)) == ([SMALL], sorted(corpus.reached))
    assert reopened.plan(generate(2)) == generate(2)
    varied = reopened.plan(generate(5))
    assert (varied.seed, varied.shape.brokers) == (5, 1)
    assert reopened.plan(generate(5)) == varied
    (tmp_path / "corpus" / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ScenarioError, match="not a corpus plan"):
        Corpus(tmp_path / "corpus")


def test_variations_keep_the_order_of_lives() -> None:
    from random import Random

    lives = ("kill", "stop", "restart", "promote", "wipe", "powercut")
    for seed in range(100):
        plan, fresh = generate(seed), generate(seed + 1000, Generate())
        varied = vary(plan, fresh, Random(seed))
        assert [step for step in varied.steps if step.verb in lives] == [
            step for step in plan.steps if step.verb in lives
        ]


def test_crash_points_are_spread_over_the_run() -> None:
    quiet = replace(SMALL, steps=(), faults_s=2.0, recovery_s=1.0)
    count = disk_events(quiet, "b1")
    plans = list(crash_points(quiet, node="b1", sample=4))
    events = [int(plan.steps[0].words["store-event"]) for plan in plans]
    assert len(set(events)) == 4
    assert 0 < min(events) < max(events) <= count
    died = run_plan(plans[0])
    assert died.record is not None
    assert died.verdict == "pass"
    assert any("restart b1" in step for step in died.record.steps)
    with pytest.raises(ScenarioError, match="no node 'b7'"):
        next(crash_points(quiet, node="b7"))
